"""FedNoRo: clients whose losses are large class by class count less, the farther they are from the others.

What is here follows the authors' paper and code in its two stages: training with logits adjusted by each client's own
label shares, then one judgement by a Gaussian mixture on losses by class, and sums in which judged clients count less.
What differs: noisy clients are not taught by the broadcast model's own predictions as well (the paper's distillation),
because a client is not told what the server thinks of it; distances are Euclidean over the whole message rather than
summed over layers; the mixture has variances by column and starts from fixed halves, where the code takes a vote among
nine fits with whole covariances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmean.checks import at_least
from fairmean.rules.aggregator import GramRule, register
from fairmean.rules.context import Context, Means
from fairmean.rules.mixture import two_gaussians
from fairmean.rules.objectives import Objective, of_classes, register_objective
from fairmean.rules.round import Round, State
from fairmean.rules.search_space import Search

RARE = 1e-3


@register_objective("logit-adjusted")
@dataclass(frozen=True)
class LogitAdjusted(Objective):
    """ℓ = −log softmax(z + log π_i)_y, where π_i are client i's own label shares (0.001 at least).

    A client learns its shares from the samples of its rounds; in its first round they count as equal. It measures its
    plain losses by class, which go to the server: the mean of 1[y = c] and of 1[y = c] · −log p_y for every class c.
    """

    def losses(self, logits: Tensor, y: Tensor, context: Context) -> Tensor:
        logits, y = of_classes(logits), y.long()
        shares = context.per_row(context.memory["shares"]).to(logits.dtype)
        return F.cross_entropy(logits + shares.clamp(min=RARE).log(), y, reduction="none")

    def measure(self, logits: Tensor, y: Tensor, context: Context) -> State:
        logits, y = of_classes(logits), y.long()
        mine = (y[:, None] == torch.arange(logits.shape[-1], device=y.device)).double()
        plain = F.cross_entropy(logits, y, reduction="none").double()
        return {"class_shares": mine, "class_losses": mine * plain[:, None]}

    def init(self, n: int, classes: int) -> State:
        even = torch.full((n, classes), 1 / classes, dtype=torch.float64)
        return {"shares": even, "rounds": torch.zeros(n, dtype=torch.float64)}

    def remember(self, memory: State, means: Means, context: Context) -> State:
        rounds = memory["rounds"]
        summed = memory["shares"] * rounds[:, None] + means["class_shares"]
        return {"shares": summed / (rounds + 1)[:, None], "rounds": rounds + 1}


@register("distance-aware", reference="Wu et al. 2023", named=False)
@dataclass(frozen=True)
class DistanceAware(GramRule):
    """λ_i ∝ m_i exp(−D_i / max D): D_i is a noisy client's distance to the nearest clean one; 0 for clean ones.

    For ``warm`` rounds nobody is noisy. Then every client's mean loss in each class is brought to [0, 1] over clients;
    a class that a client does not have counts as the lowest loss there. A mixture of two Gaussians divides the clients,
    and those of the component with larger losses are noisy from then on. Clients that took part in none of these rounds
    count as clean, and so do all if the mixture puts everybody on one side. In the authors' code warm is 10, and a
    round has five local epochs.
    """

    warm: int = 10
    search: ClassVar[Search] = {"warm": (10, 30, 100)}
    reads: ClassVar[tuple[str, ...]] = ("class_shares", "class_losses")

    def __post_init__(self) -> None:
        at_least("warm", self.warm, 1, "rounds before clients are judged")

    @property
    def needs_sizes(self) -> bool:
        return True

    def init(self, n: int) -> State:
        return {"noisy": torch.zeros(n, dtype=torch.float64), "rounds": torch.zeros((), dtype=torch.float64)}

    def __call__(self, round: Round, state: State) -> tuple[Tensor, State]:
        sizes, clients = round.sizes, round.clients
        noisy, rounds = state["noisy"].to(sizes.device), int(state["rounds"])
        shares, losses = round.means["class_shares"], round.means["class_losses"]
        by_class = torch.where(shares > 0, losses / shares.clamp(min=1e-12), -1.0)
        known = state.get("by_class", by_class.new_full((len(noisy), by_class.shape[1]), -1.0)).to(sizes.device)
        if rounds < self.warm:
            known = known.index_copy(0, clients, torch.where(by_class < 0, known[clients], by_class))
            if rounds + 1 == self.warm:
                noisy = judged(torch.where(known < 0, torch.nan, known))
        new = {"noisy": noisy, "rounds": state["rounds"] + 1, "by_class": known}
        bad = noisy[clients] > 0
        far = torch.zeros_like(sizes)
        if bad.any() and not bad.all():
            distances = round.squared_distances.clamp(min=0).sqrt()
            far = torch.where(bad, distances[:, ~bad].min(1).values, 0.0)
            far = far / far.max().clamp(min=1e-300)
        weights = sizes * torch.exp(-far)
        return weights / weights.sum(), new


def judged(by_class: Tensor) -> Tensor:
    """1 for noisy clients, from their mean losses in every class (n×K, NaN where a client has none of it)."""
    seen = ~by_class.isnan().all(1)
    noisy = torch.zeros(len(by_class), dtype=torch.float64, device=by_class.device)
    if not seen.any():
        return noisy
    losses = by_class[seen]
    lowest = losses.nan_to_num(nan=torch.inf).min(0).values
    losses = torch.where(losses.isnan(), lowest, losses)[:, lowest.isfinite()]
    low, high = losses.min(0).values, losses.max(0).values
    scaled = (losses - low) / (high - low).clamp(min=1e-12)
    worse = two_gaussians(scaled) > 0.5
    if not worse.all():
        noisy[seen] = worse.double()
    return noisy
