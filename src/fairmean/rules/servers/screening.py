"""Leave out the messages that stand out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairmean.rules.aggregator import GramRule, knows_f, register
from fairmean.rules.mixing import with_diagonal
from fairmean.rules.round import Round


def first(scores: Tensor, count: int) -> Tensor:
    """Marks the ``count`` lowest scores; of equal ones, the earlier."""
    return scores.argsort(stable=True).argsort(stable=True) < count


def indicator(index: Tensor, n: int) -> Tensor:
    """Marks one of n."""
    return torch.arange(n, device=index.device) == index


def uniform(kept: Tensor) -> Tensor:
    """Equal weights on the kept clients."""
    return kept.double() / kept.sum()


@dataclass(frozen=True)
class Screening(GramRule):
    """Leaves out f messages."""

    f: int = 2
    assumes: ClassVar[str] = "knows f"

    def check(self, n: int) -> None:
        knows_f(self.f, n, n - 1)


@register("norm-screening", reference="Zhou et al. 2023 (H-nobs)", named=False)
@dataclass(frozen=True)
class NormScreening(Screening):
    """d is the mean of the n − f messages of smallest norm."""

    def weights(self, round: Round) -> Tensor:
        return uniform(first(round.squared_norms, len(round.sizes) - self.f))


@register(
    "faba",
    reference="Xia et al. 2019",
    when="When clients are alike, and a few poisoned ones send messages that lie far out.",
)
@dataclass(frozen=True)
class FABA(Screening):
    """f times, the message farthest from the mean of those left is removed; d is the mean of the rest."""

    def weights(self, round: Round) -> Tensor:
        n = len(round.sizes)
        kept = torch.ones(n, dtype=torch.bool, device=round.sizes.device)
        if 25 * self.f > n:  # then the whole Gram matrix costs less than a product for each removal
            _ = round.gram
        if self.f == 0:
            return uniform(kept)
        to_sum = round.times(kept.double())  # v_i · Σ_{kept} v_j
        for _ in range(self.f):
            far = (round.squared_norms - 2 * to_sum / kept.sum()).masked_fill(~kept, -torch.inf).argmax()
            out = indicator(far, n)
            kept = kept & ~out
            to_sum = to_sum - round.times(out.double())
        return uniform(kept)


def krum_scores(distances: Tensor, f: int) -> Tensor:
    """Mean squared distance of each message to its n − f − 1 nearest others."""
    n = len(distances)
    others = with_diagonal(distances, torch.inf)
    return others.sort(dim=1).values[:, : max(n - f - 1, 0)].mean(1).nan_to_num(0.0)


@register(
    "krum",
    reference="Blanchard et al. 2017",
    when="When clients have nearly the same data and a few may send anything. It is poor when clients differ.",
)
@dataclass(frozen=True)
class Krum(GramRule):
    """d is the one message with the least mean squared distance to its n − f − 1 nearest others.

    The original counts n − f − 2 nearest others. Here the message itself and its neighbours are n − f messages, as many
    as there are honest ones.
    """

    f: int = 2
    assumes: ClassVar[str] = "knows f"

    def check(self, n: int) -> None:
        knows_f(self.f, n, (n - 1) // 2)

    def weights(self, round: Round) -> Tensor:
        best = krum_scores(round.squared_distances, self.f).argmin()
        return indicator(best, len(round.sizes)).double()


@register(
    "multi-krum",
    reference="Blanchard et al. 2017",
    when="In place of Krum: its direction varies less.",
)
@dataclass(frozen=True)
class MultiKrum(Krum):
    """d is the mean of the n − f messages with the best Krum scores."""

    def weights(self, round: Round) -> Tensor:
        return uniform(first(krum_scores(round.squared_distances, self.f), len(round.sizes) - self.f))
