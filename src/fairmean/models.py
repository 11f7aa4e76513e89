"""The paper's models, and any user's ``nn.Module`` by import path."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from fairmean.code_digest import value_digest
from fairmean.errors import UserCodeError, UserError, unknown
from fairmean.importing import call, failure, import_name
from fairmean.randomness import global_stream, hash32

Shape = tuple[int, ...]


def mlp(shape: Shape, classes: int) -> nn.Module:
    """784-200-200-10 with ReLU on Fashion-MNIST: 199,210 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, classes),
    )


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two 5×5×64 convolutions with pooling, then 384-192-10 with dropout: 797,962 parameters on CIFAR-10.

    ReLU and maximum commute, gradients included, so the ReLUs come after the pooling, where they cost a quarter.
    """
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise UserError(
            f"model 'cnn' needs images of at least channels×16×16, the data has {shape}; use model.name=mlp"
        )
    height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
    return nn.Sequential(
        nn.Conv2d(shape[0], 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * height * width, 384),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(192, classes),
    )


def linear(shape: Shape, classes: int) -> nn.Module:
    """Softmax regression: convex, so the theory's constants are known in closed form."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


PREFIX = "in-memory-"
_KEPT: dict[str, nn.Module | Callable[..., nn.Module]] = {}


def keep(given: nn.Module | Callable[..., nn.Module]) -> str:
    """Keep a model, or a function that makes one, which was passed from Python; the name by which a config knows it.

    A model is copied for every run, with the parameters that it has now. A function is called as a factory.
    """
    if not (isinstance(given, nn.Module) or callable(given)):
        raise UserError(f"model: a {type(given).__name__} is neither a torch.nn.Module nor a function that makes one")
    if isinstance(given, nn.Module):
        given = copy.deepcopy(given)  # as it is now, whatever is done to it later
    name = PREFIX + value_digest(given)
    _KEPT[name] = given
    return name


def _kept(name: str) -> nn.Module | Callable[..., nn.Module]:
    if name not in _KEPT:
        raise UserError(f"model '{name}' was passed from Python, in another process; pass the same model again")
    return _KEPT[name]


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {"mlp": mlp, "cnn": cnn, "linear": linear}


def build(
    name: str, shape: Shape, classes: int, seed: int, example: Tensor | None = None, plain: bool = False
) -> nn.Module:
    """The model called ``name``, initialised from its own random stream; 'auto' is the paper's choice for the data.

    ``package.module:factory`` is called with (input shape, number of classes), or with nothing if it takes no argument,
    and what it returns is tried out on ``example``, some inputs. A ``plain`` model is given as it was made, with
    PyTorch's own dropout, for use outside the engine.
    """
    if name == "auto":
        name = "cnn" if len(shape) == 3 and shape[0] == 3 else "mlp"
    in_memory = name.startswith(PREFIX)
    if name not in MODELS and ":" not in name and not in_memory:
        raise unknown("model", name, MODELS)
    with global_stream(seed, "initialisation"):
        kept = _kept(name) if in_memory else None
        if name in MODELS:
            model = MODELS[name](shape, classes)
        elif isinstance(kept, nn.Module):
            model = copy.deepcopy(kept)
        else:
            model = _made(f"model '{name}'", kept or import_name(name, f"model '{name}'"), shape, classes)
    if not isinstance(model, nn.Module):
        raise UserCodeError(f"model.name = '{name}' returned a {type(model).__name__}, not a torch.nn.Module")
    if plain:
        return model
    for label, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"model '{name}' has {type(module).__name__} at '{label}': batch statistics mix clients; "
                "use GroupNorm or LayerNorm instead"
            )
    _swap_dropout(model)
    for module in model.modules():
        if getattr(module, "inplace", False):  # the engine looks at layers' outputs, which must stay as they were
            module.inplace = False  # type: ignore[assignment]
    if name not in MODELS:
        _try_out(model, name, shape, classes, example)
    return model


def _made(what: str, factory: Callable[..., nn.Module], shape: Shape, classes: int) -> nn.Module:
    """What a user's factory returns for this shape and number of classes, or for as many of the two as it takes."""
    try:
        takes = len(inspect.signature(factory).parameters)
    except (TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserCodeError(f"{what} cannot be called as a factory; name a Python function") from None
    return call(factory, what, *(shape, classes)[: min(takes, 2)])  # type: ignore[no-any-return]


def _try_out(model: nn.Module, name: str, shape: Shape, classes: int, example: Tensor | None) -> None:
    """Raise unless a user's model turns a batch into one row of logits per sample, by parameters that can be trained.

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
    x = (
        torch.linspace(-1, 1, 2 * prod(shape)).view(2, *shape)
        if example is None
        else example[:1].repeat_interleave(2, 0)
    )
    x = x.to(device, dtype)
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        try:
            logits = model(x)
            _check_logits(logits, name, classes)
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


def _check_logits(logits: object, name: str, classes: int) -> None:
    if not isinstance(logits, Tensor):
        raise UserCodeError(f"model '{name}' returns a {type(logits).__name__}, not a tensor of logits")
    if logits.dim() != 2 or len(logits) != 2 or logits.shape[1] < classes:
        raise UserCodeError(
            f"model '{name}' returns shape {tuple(logits.shape)} for 2 samples and {classes} classes; it must return "
            f"(2, {classes}), one row of logits per sample"
        )
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


class Dropout(nn.Module):
    """Dropout whose mask is a hash of (key, row, unit): the same for a sample however the samples are batched.

    The engine sets ``rows`` (an identity per row) and ``key`` (a new one every step) before a forward pass. With
    ``whole`` set, whole channels are dropped, as ``nn.Dropout2d`` does.
    """

    rows: Tensor
    key: int | Tensor

    def __init__(self, p: float, salt: int, whole: bool = False) -> None:
        super().__init__()
        self.p, self.salt, self.whole = p, salt, whole

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.p >= 1:
            return torch.zeros_like(x)
        shape = x.shape[1:2] + (1,) * (x.dim() - 2) if self.whole else x.shape[1:]
        unit = torch.arange(prod(shape), device=x.device) * 0x9E3779B1
        mixed = hash32(hash32(self.rows + self.key + self.salt)[:, None] + unit)
        keep = (mixed >= int(self.p * 2**32)).view(-1, *shape)
        return x * (keep.to(x.dtype) / (1 - self.p))


def _swap_dropout(model: nn.Module) -> None:
    """Replace torch's dropout modules, which draw from the global generator, by ours."""
    salt = 0
    for parent in list(model.modules()):
        for label, child in list(parent._modules.items()):
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                salt += 1
                seeded = Dropout(child.p, salt * 0x632BE5AB, not isinstance(child, nn.Dropout))
                seeded.training = child.training  # a part of the model may be kept in eval()
                setattr(parent, label, seeded)
