"""A user's model is tried out before it is trained: does it turn a batch into what the task needs?"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from fairmean.errors import UserCodeError, UserError
from fairmean.importing import failure
from fairmean.models.dropout import Dropout

_ONE_NUMBER = ("binary", "regression")


def try_out(
    model: nn.Module,
    name: str,
    shape: tuple[int, ...],
    outputs: int,
    example: Tensor | None,
    task: str = "classification",
    vocabulary: int | None = None,
) -> None:
    """Raise unless a user's model turns a batch into the logits of the task, by parameters that can be trained.

    A model that draws from torch's global generator is refused: its results would not repeat, and would depend on how
    samples are batched.
    """
    if not any(p.requires_grad for p in model.parameters()):
        raise UserCodeError(f"model '{name}' has no parameters that can be trained")
    if any(p.is_meta or not p.is_floating_point() for p in model.parameters()):
        raise UserCodeError(f"model '{name}' has parameters that are not real numbers in memory")
    device, dtype = next((p.device, p.dtype) for p in model.parameters())
    for module in model.modules():
        if isinstance(module, Dropout):
            module.rows, module.key = torch.arange(2, device=device), 0
    x = _two_inputs(shape, vocabulary) if example is None else example[:1].repeat_interleave(2, 0)
    x = x.to(device, dtype if x.is_floating_point() else None)
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        try:
            logits = model(x)
            _check_logits(logits, name, shape, outputs, task)
            torch.autograd.grad(logits.sum(), [p for p in model.parameters() if p.requires_grad], allow_unused=True)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise UserCodeError(
                f"model '{name}' fails on an input of shape {(2, *shape)} ({failure(error)})"
            ) from error
        drawn = not torch.equal(before, torch.get_rng_state())
    if drawn:
        raise UserCodeError(
            f"model '{name}' draws random numbers from torch's global generator{_who_draws(model)}: its results would "
            "not repeat; set that dropout to 0, and use nn.Dropout, which fairmean seeds"
        )


def _two_inputs(shape: tuple[int, ...], vocabulary: int | None) -> Tensor:
    if vocabulary is None:
        return torch.linspace(-1, 1, 2 * prod(shape)).view(2, *shape)
    return (torch.arange(2 * prod(shape)) % vocabulary).view(2, *shape)


def _check_logits(logits: object, name: str, shape: tuple[int, ...], outputs: int, task: str) -> None:
    if not isinstance(logits, Tensor):
        raise UserCodeError(f"model '{name}' returns a {type(logits).__name__}, not a tensor of logits")
    if task in _ONE_NUMBER:
        fits, wanted = logits.shape == (2, 1), f"2 samples and {task}; it must return (2, 1), one number per sample"
    elif task == "next-token":
        fits = logits.dim() == 3 and logits.shape[:2] == (2, shape[0]) and logits.shape[2] >= outputs
        wanted = f"2 sequences; it must return (2, {shape[0]}, {outputs}), one row of logits per token"
    else:
        fits = logits.dim() == 2 and len(logits) == 2 and logits.shape[1] >= outputs
        wanted = f"2 samples and {outputs} classes; it must return (2, {outputs}), one row of logits per sample"
    if not fits:
        raise UserCodeError(f"model '{name}' returns shape {tuple(logits.shape)} for {wanted}")
    if not logits.requires_grad:
        raise UserCodeError(f"model '{name}' returns logits that do not depend on its parameters")


def _who_draws(model: nn.Module) -> str:
    """The first module that is known to, for the message."""
    for label, module in model.named_modules():
        probability = getattr(module, "dropout", 0.0)  # of attention and recurrent layers
        kinds = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)
        if isinstance(module, kinds) or (isinstance(probability, float) and probability > 0):
            return f" ({type(module).__name__} at '{label}')"
    return " (in a forward)"
