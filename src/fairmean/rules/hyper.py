"""Hyper-parameters of rules: read from dataclass fields, checked with errors that name the value and the remedy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from fairmean.checks import as_float
from fairmean.errors import UserError


def hyper_parameters(cls: Any) -> dict[str, Any]:
    """Name and default of every hyper-parameter of a rule's class; and name and value, for a rule."""
    if isinstance(cls, type):
        return {field.name: field.default for field in dataclasses.fields(cls)}
    return {field.name: getattr(cls, field.name) for field in dataclasses.fields(cls)}


def check_rule(name: str, cls: Any, base: type[Any]) -> None:
    """A rule is a frozen dataclass below ``base``, and each of its hyper-parameters has a default."""
    label = f"'{name}' ({getattr(cls, '__qualname__', cls)})"
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise UserError(f"{label}: must be a class below fairmean's {base.__name__}")
    if "__dataclass_fields__" not in vars(cls):
        raise UserError(f"{label}: put @dataclass(frozen=True) between the registration and the class")
    if not vars(cls)["__dataclass_params__"].frozen:
        raise UserError(f"{label}: its dataclass must be frozen; write @dataclass(frozen=True)")
    for field in dataclasses.fields(cls):
        if field.default is dataclasses.MISSING:
            raise UserError(f"{label}: its hyper-parameter '{field.name}' has no default; give it one")
    if "rung" in base.__annotations__ and not hasattr(cls, "rung"):
        raise UserError(
            f"{label}: must say what the server sees; derive it from SumRule, LossRule, GramRule or another"
        )


def check_tilt(name: str, t: float) -> None:
    """A tilt is any finite number."""
    if not math.isfinite(t):
        raise UserError(
            f"{name} = {t}: must be a finite number (> 0 lifts large losses, < 0 suppresses them, 0 is Mean)"
        )


def typed(owner: str, name: str, value: Any, like: Any) -> Any:
    """``value`` as the type of the default ``like``: an int may stand for a float, nothing else is converted."""
    if isinstance(like, bool) or like is None or isinstance(like, str):
        good = like is None or type(value) is type(like)
    elif isinstance(like, int):
        good = isinstance(value, int) and not isinstance(value, bool)
    else:
        good = isinstance(value, int | float) and not isinstance(value, bool)
        value = as_float(f"{owner}: {name}", value) if good else value
    if not good:
        raise UserError(f"{owner}: {name} = {value!r}: must be a {type(like).__name__}, such as {like!r}")
    return value
