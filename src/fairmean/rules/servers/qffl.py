"""q-FFL with its own step size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fairmean.checks import at_least
from fairmean.rules.aggregator import GramRule, register
from fairmean.rules.round import Round
from fairmean.rules.search_space import POWERS, Search


@register(
    "qffl-normalised",
    reference="Li et al. 2020 (q-FedSGD)",
    when="For q-FFL with the step that its own estimate of smoothness allows, which is at most lr.",
)
@dataclass(frozen=True)
class QFFLNormalised(GramRule):
    """w ← w − Σ F_i^q g_i / Σ h_i, h_i = q F_i^{q−1} ‖g_i‖² + F_i^q/lr, F_i = f_i + 1e-10; q = 0 is the mean.

    Its weights are λ_i = F_i^q / (lr Σ h_j). Every F is first divided by the largest one, which keeps the powers in
    range; the common factor F_max^q cancels.
    """

    q: float = 1.0
    search: ClassVar[Search] = {"q": POWERS}

    def __post_init__(self) -> None:
        at_least("q", self.q, 0, "0 is the plain mean")

    def weights(self, round: Round) -> Tensor:
        F = round.losses + 1e-10
        ratio = F / F.max()
        power = ratio**self.q
        h = self.q * power / F * round.squared_norms + power / round.lr
        return power / (round.lr * h.sum())
