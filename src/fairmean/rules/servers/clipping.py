"""Clip what lies far from a running centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairmean.checks import at_least
from fairmean.errors import UserError
from fairmean.rules.aggregator import CoordinateRule, register
from fairmean.rules.round import Round, State
from fairmean.rules.search_space import RADII, Search


def check_radius(radius: float) -> None:
    """A radius is a positive number."""
    if not radius > 0:
        raise UserError(f"radius = {radius}: must be > 0 (messages farther than this are clipped to it)")


@register(
    "centered-clipping",
    reference="Karimireddy et al. 2021",
    when="When a few clients may send anything over many rounds, with a radius that fits the gradients.",
)
@dataclass(frozen=True)
class CenteredClipping(CoordinateRule):
    """z ← z + mean of (v_i − z) min(1, r/‖v_i − z‖), starting from the last round's z (0 at first)."""

    radius: float = 1.0
    iterations: int = 1
    search: ClassVar[Search] = {"radius": RADII}

    def __post_init__(self) -> None:
        check_radius(self.radius)
        at_least("iterations", self.iterations, 1)

    def __call__(self, round: Round, state: State) -> tuple[Tensor, State]:
        centre = state.get("centre", torch.zeros_like(round.messages[0]))
        for _ in range(self.iterations):
            offsets = round.messages - centre
            norms = torch.linalg.vector_norm(offsets, dim=1).clamp(min=1e-300)
            centre = centre + (self.radius / norms).clamp(max=1) @ offsets / len(offsets)
        return centre, {"centre": centre}
