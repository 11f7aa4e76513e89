"""Grids of settings, as the specs ``name:key=value:…`` that a comparison takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Grid = Mapping[str, Sequence[Any]]


def points(name: str, grid: Grid) -> Iterator[str]:
    """Every point of a method's grid.

    >>> list(points("qffl", {"q": [1], "train.lr": [0.1, 0.2]}))
    ['qffl:q=1:train.lr=0.1', 'qffl:q=1:train.lr=0.2']
    """
    for values in itertools.product(*grid.values()):
        yield ":".join([name, *(f"{key}={value}".lower() for key, value in zip(grid, values, strict=True))])
