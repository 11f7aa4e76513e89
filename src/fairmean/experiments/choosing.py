"""How one setting is chosen among many: by its mean over draws, and of equal ones the smallest step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Setting = TypeVar("Setting")
DIGITS = 2


def score(values: Sequence[float] | NDArray[np.float64]) -> float:
    """The mean over draws, more being better; −∞ if one of them has no value, because its run diverged.

    >>> score([60.0, 62.0]), score([60.0, math.nan])
    (61.0, -inf)
    """
    figures = np.asarray(values, dtype=np.float64)
    return float(figures.mean()) if len(figures) and np.isfinite(figures).all() else -math.inf


def ranked(scores: Mapping[Setting, float], step: Callable[[Setting], float], digits: int = DIGITS) -> list[Setting]:
    """From the best to the worst; of settings whose scores are equal to two decimals, the smaller step is better.

    >>> ranked({"a": 61.001, "b": 61.002, "c": 50.0}, {"a": 0.1, "b": 0.2, "c": 0.4}.__getitem__)
    ['a', 'b', 'c']
    """
    return sorted(scores, key=lambda setting: (-round(scores[setting], digits), step(setting)))
