"""A model by its name: what it is made for, its first parameters, and what the engine needs of it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

from torch import Tensor, nn

from fairmean.errors import UserCodeError, UserError, unknown
from fairmean.importing import call, import_name
from fairmean.models.dense import linear, mlp
from fairmean.models.dropout import swap_dropout
from fairmean.models.frozen import freeze
from fairmean.models.images import cnn, resnet18
from fairmean.models.in_memory import PREFIX, kept
from fairmean.models.sequences import lstm, transformer
from fairmean.models.trial import try_out
from fairmean.models.weights import load
from fairmean.randomness import global_stream

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "linear": linear,
    "resnet18": resnet18,
    "transformer": transformer,
    "lstm": lstm,
}
_FOR_TOKENS = ("transformer", "lstm")


def build(
    name: str,
    shape: tuple[int, ...],
    outputs: int,
    seed: int,
    example: Tensor | None = None,
    plain: bool = False,
    *,
    task: str = "classification",
    vocabulary: int | None = None,
    weights: str | None = None,
    weights_sha256: str | None = None,
    frozen: Sequence[str] = (),
) -> nn.Module:
    """The model called ``name``, initialised from its own random stream; 'auto' is the usual choice for the data.

    ``outputs`` is how many numbers it returns for a sample, or for every token in next-token prediction;
    ``vocabulary`` how many different tokens there are, None where inputs are no tokens. ``weights`` is a file of
    parameters to begin with (and ``weights_sha256`` what its content must be); ``frozen`` says which are not trained.

    ``package.module:factory`` is called with (input shape, outputs), or with as many of the two as it takes, and with
    ``vocabulary`` and ``task`` where it has parameters of these names; what it returns is tried out on ``example``,
    some inputs. A ``plain`` model is given as it was made, with PyTorch's own dropout, for use outside the engine.
    """
    if name == "auto":
        name = choice(shape, vocabulary)
    in_memory = name.startswith(PREFIX)
    if name not in MODELS and ":" not in name and not in_memory:
        raise unknown("model", name, MODELS)
    _check_inputs(name, shape, vocabulary)
    named = {"vocabulary": vocabulary, "task": task}
    with global_stream(seed, "initialisation"):
        passed = kept(name) if in_memory else None
        if isinstance(passed, nn.Module):
            model = copy.deepcopy(passed)
        elif name in MODELS:
            positional, by_name = _arguments(MODELS[name], name, (shape, outputs), named)
            model = MODELS[name](*positional, **by_name)
        else:
            what = f"model '{name}'"
            factory = passed or import_name(name, what)
            positional, by_name = _arguments(factory, what, (shape, outputs), named)
            model = call(factory, what, *positional, **by_name)
    if not isinstance(model, nn.Module):
        raise UserCodeError(f"model.name = '{name}' returned a {type(model).__name__}, not a torch.nn.Module")
    if weights is not None:
        load(model, name, weights, weights_sha256)
    freeze(model, name, frozen)
    if plain:
        return model
    for label, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"model '{name}' has {type(module).__name__} at '{label}': batch statistics mix clients; "
                "use GroupNorm or LayerNorm instead"
            )
    swap_dropout(model)
    for module in model.modules():
        if getattr(module, "inplace", False):  # the engine looks at layers' outputs, which must stay as they were
            module.inplace = False  # type: ignore[assignment]
    if name not in MODELS:
        try_out(model, name, shape, outputs, example, task, vocabulary)
    return model


def choice(shape: tuple[int, ...], vocabulary: int | None = None) -> str:
    """What 'auto' is for inputs of this shape: transformer for tokens, cnn for images in colour, mlp for all else."""
    if vocabulary is not None:
        return "transformer"
    return "cnn" if len(shape) == 3 and shape[0] == 3 else "mlp"


def _check_inputs(name: str, shape: tuple[int, ...], vocabulary: int | None) -> None:
    """Raise if a model of ours is for other inputs; models of the user's may look up what they like."""
    if name in _FOR_TOKENS and vocabulary is None:
        raise UserError(
            f"model '{name}' is for tokens, which are whole numbers (int64), and the data has inputs of shape {shape} "
            "that are none; use model.name=auto"
        )
    if name in MODELS and name not in _FOR_TOKENS and vocabulary is not None:
        raise UserError(
            f"model '{name}' computes with its inputs, and those of the data are tokens, which are only names; use "
            f"model.name={' or '.join(_FOR_TOKENS)}"
        )


def _arguments(
    factory: Callable[..., Any], what: str, values: tuple[Any, ...], named: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """What a factory is called with: as many of the values as it takes by position, and what it names."""
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserCodeError(f"{what} cannot be called as a factory; name a Python function") from None
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        only = [parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY]
        return list(values), {key: value for key, value in named.items() if key in only}
    left, positional, by_name = list(values), [], {}
    for parameter in parameters:
        if parameter.name in named and parameter.kind is not Parameter.VAR_KEYWORD:
            by_name[parameter.name] = named[parameter.name]
        elif left and parameter.kind is Parameter.POSITIONAL_ONLY:
            positional.append(left.pop(0))
        elif left and parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
            by_name[parameter.name] = left.pop(0)
    return positional, by_name
