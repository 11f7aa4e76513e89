"""Averages: uniform, and by sample count."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairmean.rules.aggregator import SumRule, register
from fairmean.rules.round import Round


@register(
    "mean",
    reference="Peng et al. 2025",
    when="As the baseline to beat: every client counts the same.",
)
@dataclass(frozen=True)
class Mean(SumRule):
    """λ_i = 1/n."""

    def weights(self, round: Round) -> Tensor:
        return torch.full_like(round.sizes, 1 / len(round.sizes))


@register(
    "fedavg",
    reference="McMahan et al. 2017",
    when="As the usual default. Large clients count more, so a large poisoned client does more harm.",
)
@dataclass(frozen=True)
class FedAvg(SumRule):
    """λ_i = m_i / Σ_j m_j: clients count by their numbers of samples."""

    @property
    def needs_sizes(self) -> bool:
        return True

    def weights(self, round: Round) -> Tensor:
        return round.sizes / round.sizes.sum()
