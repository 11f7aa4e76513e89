"""Two clusters of clients, by what they do to the output layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairmean.rules.aggregator import Aggregator, register
from fairmean.rules.round import Round, Rung
from fairmean.rules.servers.screening import uniform


@register(
    "lfighter",
    reference="Jebreel et al. 2024",
    when="Against label flips between two classes, by poisoned clients that resemble each other.",
)
@dataclass(frozen=True)
class LFighter(Aggregator):
    """Two clusters by 2-means on the two output rows of largest update; d is the mean over the more diverse cluster.

    The output layer has one row for each class. The two rows of largest update are those whose parts of the messages
    have the largest norms, summed over clients, and x_j is what client j's message has in them. A cluster of n_c
    clients has the value (n_c/n)(1 − mean_j min_{l≠j} cos(x_j, x_l)); for a cluster of one, min is 0. The cluster of
    larger value is kept. The first centres are the two clients farthest apart; if a cluster ends empty, all are kept.
    """

    rung: ClassVar[Rung] = Rung.COORDINATES

    @property
    def requires(self) -> tuple[str, ...]:
        return ("output",)

    def weights(self, round: Round) -> Tensor:
        rows, n = round.output.double(), len(round.output)
        strength = torch.linalg.vector_norm(rows, dim=2).sum(0)
        top = strength.argsort(descending=True, stable=True)[:2]
        x = rows[:, top].flatten(1).cpu()  # a few thousand numbers, looked at one by one: on the host
        second = two_means(x)
        kept = torch.ones(n, dtype=torch.bool)
        if second.any() and not second.all():
            first = ~second
            kept = second if self._value(x[second], n) > self._value(x[first], n) else first
        return uniform(kept).to(rows.device)

    @staticmethod
    def _value(x: Tensor, n: int) -> Tensor:
        unit = torch.nn.functional.normalize(x, eps=1e-300)
        cosines = unit @ unit.T
        lowest = cosines.fill_diagonal_(torch.inf).min(1).values if len(x) > 1 else torch.zeros_like(x[:, 0])
        return len(x) / n * (1 - lowest.mean())


def two_means(x: Tensor, iterations: int = 1000) -> Tensor:
    """Lloyd's iteration from the two points farthest apart; True marks the second cluster."""
    distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    if distances.max() == 0:
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    i, j = divmod(int(distances.argmax()), len(x))
    centres = x[[i, j]]
    label = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    for _ in range(iterations):
        to = torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist")
        new = to[:, 1] < to[:, 0]
        if new.equal(label) or new.all() or not new.any():
            return new
        label = new
        centres = torch.stack([x[~new].mean(0), x[new].mean(0)])
    return label
