"""Rules on per-client gradients whose n×d numbers do not fit in the room they are given: parts of them at a time.

Rules on inner products: the clients go through in k groups, M_ab = G_a G_bᵀ for every pair of groups, and then
d = Σ c_i g_i is one fused pass, with c from M. Every pair recomputes a group: about (k+1)/2 passes over the samples.
Rules that treat every coordinate alike (trimmed mean, median): blocks of columns, one pass for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairmean.engine.batch import Batch
from fairmean.engine.layers.hooks import Capture
from fairmean.engine.net import Net
from fairmean.engine.paths.one_pass import fused_round
from fairmean.engine.paths.per_client import client_gradients
from fairmean.rules.aggregator import SumRule
from fairmean.rules.method import Method, Outcome
from fairmean.rules.products import gram
from fairmean.rules.round import Round, Rung, State
from fairmean.rules.scales import Unscaled


def fits(method: Method) -> bool:
    """Whether a method can be had in parts."""
    if method.rung == Rung.GRAM:
        return method.aggregator.linear
    return method.aggregator.separable and not method.aggregator.remembers and not method.pre


@dataclass(frozen=True, eq=False)
class Fixed(SumRule):
    """λ as given."""

    given: Tensor

    def weights(self, round: Round) -> Tensor:
        return self.given


def bounded_round(
    net: Net, batch: Batch, method: Method, lr: float, state: State, chunk: int, keep: int, capture: Capture | None,
    room: int,
) -> tuple[Tensor, Outcome]:  # fmt: skip
    """(losses, outcome) with at most ``room`` bytes of per-client gradients at a time, and at least two clients'."""
    n, d = len(batch.clients), len(net.flat)
    row = d * net.flat.element_size()

    def gradients(first: int, last: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out = net.flat.new_empty(last - first, d)
        return out, client_gradients(net, batch.only(first, last), chunk, method.objective, capture, out)

    known: dict[str, Any] = {"clients": batch.ids, "lr": lr, "state": state}
    if method.rung == Rung.GRAM:
        M, losses, entropies = _products(gradients, n, max(1, room // (2 * row)))
        c, state = method.weigh(M.to(batch.sizes.device), losses, batch.sizes, entropies, **known)
        plain = Method(method.name, Unscaled(), Fixed(c), objective=method.objective)
        return losses, Outcome(None, fused_round(net, batch, plain, lr, {}, chunk, keep)[1].weights, state)

    group = max(1, room // (2 * row))
    width = max(1, min(d, room // (2 * n * net.flat.element_size())))
    direction = torch.empty_like(net.flat)
    for at in range(0, d, width):
        block = net.flat.new_empty(n, min(width, d - at))
        parts = []
        for first, last in _ranges(n, group):
            rows, statistics = gradients(first, last)
            block[first:last] = rows[:, at : at + width]
            parts.append(statistics)
        losses, entropies = (torch.cat(values) for values in zip(*parts, strict=True))
        outcome = method.combine(block, losses, batch.sizes, entropies, owned=True, **known)
        assert outcome.direction is not None
        direction[at : at + width] = outcome.direction
    return losses, Outcome(direction, None, outcome.state)


def _products(gradients: Callable[..., Any], n: int, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """(G Gᵀ, losses, entropies), two groups of rows in memory at a time."""
    M, parts, ranges = torch.empty(n, n, dtype=torch.float64), [], list(_ranges(n, group))
    for i, (a, b) in enumerate(ranges):
        rows, statistics = gradients(a, b)
        parts.append(statistics)
        M[a:b, a:b] = gram(rows)
        for first, last in ranges[i + 1 :]:
            M[a:b, first:last] = rows @ gradients(first, last)[0].T
            M[first:last, a:b] = M[a:b, first:last].T
    losses, entropies = (torch.cat(values) for values in zip(*parts, strict=True))
    return M, losses, entropies


def _ranges(n: int, size: int) -> Iterator[tuple[int, int]]:
    return ((a, min(a + size, n)) for a in range(0, n, size))
