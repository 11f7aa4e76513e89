"""AntiFLipper: clients score the model they receive on their own data, and trust follows the scores.

It follows the authors' code, in its version for a journal, which counts thresholds relative to the number of clients;
of the paper itself only the abstract could be read. Where not all clients take part, the threshold here is relative to
all clients that are not excluded, where the code takes those of the round: with everybody present they are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmean.checks import at_least
from fairmean.rules.aggregator import LossRule, register
from fairmean.rules.context import Context
from fairmean.rules.objectives import CrossEntropy, of_classes, register_objective
from fairmean.rules.round import Round, State
from fairmean.rules.search_space import Search


@register_objective("scored")
@dataclass(frozen=True)
class Scored(CrossEntropy):
    """ℓ = −log p_y; clients also measure their accuracy at the broadcast model, on the labels that they train on."""

    def losses(self, logits: Tensor, y: Tensor, context: Context) -> Tensor:
        return F.cross_entropy(of_classes(logits), y.long(), reduction="none")

    def measure(self, logits: Tensor, y: Tensor, context: Context) -> State:
        return {"accuracy": (of_classes(logits).argmax(-1) == y).double()}


@register("accuracy-trust", reference="Rahman et al. 2025", named=False)
@dataclass(frozen=True)
class AccuracyTrust(LossRule):
    """λ ∝ T: T_i ← max(0, T_i ± η (a_i − ā)²), + where accuracy a_i is above the mean ā; out for good if T_i stays low.

    T starts equal and is brought to sum 1 in every round. After ``grace`` rounds a client whose trust is below ``low``
    times the mean trust is counted; a client that was counted ``strikes`` times is out for the rest of the run. If
    all clients of a round are out, there is no step.
    """

    eta: float = 0.1
    low: float = 0.05
    strikes: int = 6
    grace: int = 2
    search: ClassVar[Search] = {"eta": (0.03, 0.1, 0.3, 1.0)}
    reads: ClassVar[tuple[str, ...]] = ("accuracy",)

    def __post_init__(self) -> None:
        at_least("eta", self.eta, 0, "how fast trust follows accuracies")
        at_least("low", self.low, 0, "trust below this share of the mean is counted")
        at_least("strikes", self.strikes, 1, "counts after which a client is out")
        at_least("grace", self.grace, 0, "rounds before anything is counted")

    def init(self, n: int) -> State:
        zeros = torch.zeros(n, dtype=torch.float64)
        return {
            "trust": torch.full_like(zeros, 1 / n),
            "strikes": zeros,
            "rounds": torch.zeros((), dtype=torch.float64),
        }

    def __call__(self, round: Round, state: State) -> tuple[Tensor, State]:
        accuracy, clients = round.means["accuracy"], round.clients
        trust, strikes = state["trust"].to(accuracy), state["strikes"].to(accuracy)
        rounds = state["rounds"].to(accuracy)
        asked = strikes[clients] < self.strikes
        mean = (accuracy * asked).sum() / asked.sum().clamp(min=1)
        above = accuracy - mean
        moved = (trust[clients] + self.eta * above * above.abs()).clamp(min=0)
        trust = trust.index_copy(0, clients, torch.where(asked, moved, 0.0))
        trust = shared(trust, strikes < self.strikes)
        below = trust[clients] * (strikes < self.strikes).sum() < self.low
        counted = (asked & below & (rounds >= self.grace)).to(strikes)
        strikes = strikes.index_copy(0, clients, strikes[clients] + counted)
        trust = shared(trust, strikes < self.strikes)
        weights = trust[clients]
        total = weights.sum()
        weights = weights / torch.where(total > 0, total, 1.0)
        return weights, {"trust": trust, "strikes": strikes, "rounds": rounds + 1}


def shared(trust: Tensor, inside: Tensor) -> Tensor:
    """Trust of sum 1 over those inside; equal if nobody has any."""
    trust = torch.where(inside, trust, 0.0)
    even = inside.to(trust) / inside.sum().clamp(min=1)
    total = trust.sum()
    return torch.where(total > 1e-15, trust / total.clamp(min=1e-300), even)
