"""Which values of a method's hyper-parameters ``fairmean tune`` looks at.

A part of a method says so itself, in a class attribute: ``search = {"q": (0.1, 1.0, 10.0)}``. A number that the
attribute does not name is looked for on a grid around its default, ``default · 4^k``; one with no values is left alone.
What a defence is told of the attack, ``f``, is an assumption and not a matter of taste, so it is never searched.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairmean.rules.hyper import hyper_parameters

Search = Mapping[str, Sequence[Any]]
"""Values by the name of the hyper-parameter."""

KAPPAS = (0.25, 0.5, 1.0, 4.0, 16.0)
TAUS = (0.1, 0.3, 1.0, 3.0, 10.0)
POWERS = (0.05, 0.1, 0.5, 1.0, 2.0)
RADII = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
NEVER = ("f",)
_FACTORS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)


def search_space(parts: Iterable[Any]) -> dict[str, tuple[Any, ...]]:
    """The values of every hyper-parameter of these parts that is worth a search, by name.

    >>> from fairmean.rules.named import method
    >>> search_space(method("qffl+cwtm").parts)
    {'q': (0.05, 0.1, 0.5, 1.0, 2.0)}
    """
    space: dict[str, tuple[Any, ...]] = {}
    for part in parts:
        own: Search = getattr(type(part), "search", {})
        for key, default in hyper_parameters(type(part)).items():
            values = tuple(own[key]) if key in own else _around(default)
            if values and key not in NEVER:
                space[key] = values
    return space


def _around(default: Any) -> tuple[float, ...]:
    """A grid about the default; nothing for what is not a number other than 0."""
    if not isinstance(default, float) or not math.isfinite(default) or default == 0:
        return ()
    return tuple(sorted(default * factor for factor in _FACTORS))
