"""Models that were passed from Python, as modules or as functions that make one, under a name of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import nn

from fairmean.code_digest import value_digest
from fairmean.errors import UserError

PREFIX = "in-memory-"
_KEPT: dict[str, nn.Module | Callable[..., nn.Module]] = {}


def keep(model: nn.Module | Callable[..., nn.Module]) -> str:
    """Keep a model, or a function that makes one, which was passed from Python; the name by which a config knows it.

    A model is copied for every run, with the parameters that it has now. A function is called as a factory.
    """
    if not (isinstance(model, nn.Module) or callable(model)):
        raise UserError(f"model: a {type(model).__name__} is neither a torch.nn.Module nor a function that makes one")
    if isinstance(model, nn.Module):
        model = copy.deepcopy(model)  # as it is now, whatever is done to it later
    name = PREFIX + value_digest(model)
    _KEPT[name] = model
    return name


def kept(name: str) -> nn.Module | Callable[..., nn.Module]:
    """What was kept under this name."""
    if name not in _KEPT:
        raise UserError(f"model '{name}' was passed from Python, in another process; pass the same model again")
    return _KEPT[name]
