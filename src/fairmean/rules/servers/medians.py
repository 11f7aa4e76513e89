"""Middles: per coordinate, and in space."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fairmean.checks import at_least
from fairmean.errors import UserError
from fairmean.rules.aggregator import CoordinateRule, GramRule, knows_f, register
from fairmean.rules.round import Round
from fairmean.rules.search_space import Search

_BLOCK = 2**20  # entries sorted at a time: a block and its copy stay in the cache


_FEW = 12  # up to so many messages, comparing whole rows beats sorting columns


def _middle(rows: list[Tensor], low: int, high: int) -> list[Tensor]:
    """Per coordinate, the sorted values ``low`` … ``high − 1`` in some order: extremes bubble out, row by row."""

    def exchange(i: int, j: int) -> None:
        rows[i], rows[j] = torch.minimum(rows[i], rows[j]), torch.maximum(rows[i], rows[j])

    for last in range(len(rows) - 1, high - 1, -1):
        for j in range(last):
            exchange(j, j + 1)
    for first in range(low):
        for j in range(high - 1, first, -1):
            exchange(j - 1, j)
    return rows[low:high]


def middle_mean(messages: Tensor, low: int, high: int) -> Tensor:
    """Per coordinate, the mean of the sorted values ``low`` … ``high − 1``.

    On the CPU, and for more than a few messages, coordinates go through in blocks, transposed so that each one's values
    lie together, one block per thread: NumPy's vectorised sort is then faster than any selection (by 1.3× at n = 1,000,
    f = 100).
    """
    n, d = messages.shape
    if messages.dtype == torch.bfloat16:  # NumPy has none
        return middle_mean(messages.float(), low, high).to(messages.dtype)
    if n <= _FEW:
        return torch.stack(_middle(list(messages.detach()), low, high)).mean(0)
    if messages.device.type != "cpu":
        return messages.sort(dim=0).values[low:high].mean(0)
    out = torch.empty(d, dtype=messages.dtype)
    source, target = messages.detach().numpy(), out.numpy()
    width = max(1, _BLOCK // n)

    def work(a: int) -> None:
        block = np.ascontiguousarray(source[:, a : a + width].T)
        block.sort(axis=1)
        target[a : a + width] = block[:, low:high].mean(1)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(work, range(0, d, width)))
    return out


@register(
    "cwtm",
    reference="Yin et al. 2018",
    when="When clients are alike and a few may send anything. It collapses when a class lives at one or two clients.",
)
@dataclass(frozen=True)
class TrimmedMean(CoordinateRule):
    """In every coordinate the f smallest and the f largest values are dropped; d is the mean of the n − 2f left."""

    f: int = 2
    assumes: ClassVar[str] = "knows f"
    separable: ClassVar[bool] = True

    def check(self, n: int) -> None:
        knows_f(self.f, n, (n - 1) // 2)

    def direction(self, round: Round) -> Tensor:
        n = len(round.messages)
        return round.messages.mean(0) if self.f == 0 else middle_mean(round.messages, self.f, n - self.f)


@register(
    "median",
    reference="Yin et al. 2018",
    when="Like the trimmed mean, but you need not tell it how many clients are poisoned.",
)
@dataclass(frozen=True)
class Median(CoordinateRule):
    """d is the median in every coordinate; when n is even, the mean of the two middle values."""

    separable: ClassVar[bool] = True

    def direction(self, round: Round) -> Tensor:
        n = len(round.messages)
        return middle_mean(round.messages, (n - 1) // 2, n // 2 + 1)


@register(
    "rfa",
    reference="Pillutla et al. 2022",
    when="As a robust average that need not be told how many clients are poisoned. Four iterations usually do.",
)
@dataclass(frozen=True)
class RFA(GramRule):
    """The geometric median z, by smoothed Weiszfeld steps from the mean: λ_i ∝ α_i / max(ν, ‖v_i − z‖).

    Every client counts the same, α_i = 1, or by its samples, α_i = m_i (``by_count``).
    """

    nu: float = 1e-5
    iterations: int = 4
    by_count: bool = False
    search: ClassVar[Search] = {"nu": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)}

    def __post_init__(self) -> None:
        at_least("iterations", self.iterations, 1)
        if not 0 < self.nu < float("inf"):
            raise UserError(f"nu = {self.nu}: must be a finite number > 0 (the smoothing of distances near 0)")

    @property
    def needs_sizes(self) -> bool:
        return self.by_count

    def weights(self, round: Round) -> Tensor:
        alpha = round.sizes if self.by_count else torch.ones_like(round.sizes)
        weights = alpha / alpha.sum()
        for _ in range(self.iterations):
            beta = alpha / round.distances_to(weights).clamp(min=self.nu)
            weights = beta / beta.sum()
        return weights
