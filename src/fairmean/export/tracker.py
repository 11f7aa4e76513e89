"""What a tracker must be able to do, and what a run is called there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

SCALARS = 20
"""Up to so many clients have a curve each; of more, there are histograms where the tracker has them."""


@dataclass(frozen=True)
class Identity:
    """A run for a tracker. The ``hash`` is its id there, so that a run which is exported twice is there once."""

    hash: str
    name: str
    group: str
    settings: Mapping[str, Any]


class Tracker(Protocol):
    """Four functions, called in this order for one run: ``start``, then for each round ``clients`` where there was an
    evaluation and ``round``, and ``finish`` at the end."""

    def start(self, run: Identity) -> int:
        """Begin, or go on with a run of this hash; the first round that the tracker does not have yet."""

    def clients(self, t: int, labels: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
        """A value of each of these quantities for each client in round t; NaN where a client has none.

        ``labels`` say who the clients are: ``03``, or ``03 Ulm`` for one that has a name.
        """

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        """Figures of round t. When it returns, round t will not be told again."""

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> str:
        """How the run ended, and files to keep with it; returns where the run can be looked at."""


def figures_of(summary: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a summary."""
    return {
        key: float(value)
        for key, value in summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def curves(labels: Sequence[str], values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """A figure for each client and quantity, where the clients are few enough; what there is none of is left out."""
    if len(labels) > SCALARS:
        return {}
    return {
        f"client {label}/{name}": value
        for name, column in values.items()
        for label, value in zip(labels, column, strict=True)
        if math.isfinite(value)
    }


def known(column: Sequence[float]) -> list[float]:
    """The values that are there."""
    return [value for value in column if math.isfinite(value)]
