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


def marked(setting: str, grid: Grid) -> str:
    """A setting, with † where it lies at an edge of its grid.

    >>> marked("train.lr=0.2", {"train.lr": [0.1, 0.2]})
    'lr=0.2†'
    """
    key, _, value = setting.partition("=")
    values = grid.get(key, ())
    ends = {f"{end}".lower() for end in (min(values), max(values))} if len(values) > 1 else set()
    return setting.removeprefix("train.") + ("†" if value in ends else "")
