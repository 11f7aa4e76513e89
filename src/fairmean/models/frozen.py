"""Parts of a model that training leaves as they are."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from fairmean.errors import UserError


def freeze(model: nn.Module, name: str, patterns: Sequence[str]) -> None:
    """Let the parameters that these patterns name keep their values.

    A pattern such as '0' or 'encoder.*' names modules, with all that is inside, or single parameters.
    """
    for pattern in patterns:
        modules = [part for label, part in model.named_modules() if label and fnmatchcase(label, pattern)]
        chosen = [parameter for part in modules for parameter in part.parameters()]
        chosen += [parameter for label, parameter in model.named_parameters() if fnmatchcase(label, pattern)]
        if not chosen:
            raise UserError(
                f"model.frozen = '{pattern}': model '{name}' has no parameters there; its parts are {_parts(model)}"
            )
        for parameter in chosen:
            parameter.requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"model.frozen = {list(patterns)}: nothing of model '{name}' is left to train; freeze less")


def _parts(model: nn.Module) -> str:
    """The outermost names of what has parameters."""
    labels = dict.fromkeys(label.partition(".")[0] for label, _ in model.named_parameters())
    return ", ".join(f"'{label}'" for label in labels)
