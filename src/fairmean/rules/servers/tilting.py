"""Weights from the losses: in proportion, or by exponential tilting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairmean.rules.aggregator import LossRule, register
from fairmean.rules.hyper import check_tilt
from fairmean.rules.round import Round
from fairmean.rules.search_space import Search


@register(
    "drfl",
    reference="Zhao & Joshi 2022",
    when="As a simple fair baseline without hyper-parameters. Nothing bounds a poisoned client.",
)
@dataclass(frozen=True)
class DRFL(LossRule):
    """λ_i = f_i / Σ_j f_j: weights are in proportion to losses, without a bound."""

    def weights(self, round: Round) -> Tensor:
        total = round.losses.sum()
        return torch.where(total > 0, round.losses / total, 1 / len(round.losses))


@register(
    "term",
    reference="Li et al. 2023",
    when="With t > 0 for fairness without attack, with t < 0 for robustness without regard to fairness.",
)
@dataclass(frozen=True)
class TERM(LossRule):
    """λ = softmax(t f): t > 0 lifts large losses, t < 0 suppresses them, t → 0 is Mean."""

    t: float = 1.0
    search: ClassVar[Search] = {"t": (-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0)}

    def __post_init__(self) -> None:
        check_tilt("t", self.t)

    def weights(self, round: Round) -> Tensor:
        return torch.softmax(self.t * round.losses, 0)


@register("term-counts", reference="Li et al. 2023", named=False)
@dataclass(frozen=True)
class TERMCounts(LossRule):
    """λ_i ∝ m_i exp(t_out f_i): clients are tilted by their losses, each counted by its samples."""

    t_out: float = 1.0
    search: ClassVar[Search] = {"t_out": (0.25, 0.5, 1.0, 2.0)}

    def __post_init__(self) -> None:
        check_tilt("t_out", self.t_out)

    @property
    def needs_sizes(self) -> bool:
        return True

    def weights(self, round: Round) -> Tensor:
        return torch.softmax(self.t_out * round.losses + round.sizes.log(), 0)
