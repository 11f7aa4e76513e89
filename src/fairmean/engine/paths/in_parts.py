"""Rules on per-client gradients whose n×d numbers do not fit in the room they are given: parts of them at a time.

Rules on inner products: the clients go through in k groups, M_ab = G_a G_bᵀ for every pair of groups, and then
d = Σ c_i g_i is one pass, with c from M. Every pair recomputes a group: about (k+1)/2 passes over the samples.
Rules that treat every coordinate alike (trimmed mean, median): blocks of columns, one pass for each.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fairmean.engine.batch import Batch
from fairmean.engine.cohort import Cohort, known_products
from fairmean.engine.descent import Direction
from fairmean.engine.layers.hooks import Capture
from fairmean.engine.net import Net
from fairmean.engine.paths.one_pass import OnePass
from fairmean.engine.paths.per_client import client_gradients
from fairmean.rules.context import Context, Means
from fairmean.rules.method import Method
from fairmean.rules.products import Products, gram
from fairmean.rules.round import Rung


def fits(method: Method) -> bool:
    """Whether a method can be had in parts."""
    if method.rung == Rung.GRAM:
        return method.aggregator.linear
    return method.aggregator.separable and not method.aggregator.remembers and not method.pre


class InParts(Cohort):
    """Clients of whose gradients at most ``room`` bytes are in memory at a time, and at least two clients'."""

    owned = True

    def __init__(
        self, net: Net, batch: Batch, method: Method, context: Context, chunk: int, keep: int, capture: Capture | None,
        room: int,
    ) -> None:  # fmt: skip
        self._net, self._batch, self._method, self.context = net, batch, method, context
        self._chunk, self._keep, self._capture = chunk, keep, capture
        self._n, self._d, size = len(batch.clients), len(net.flat), net.flat.element_size()
        self._group = max(1, room // (2 * self._d * size))
        self._width = max(1, min(self._d, room // (2 * self._n * size)))
        self._gram: Tensor | None = None
        self._first: Tensor | None = None

    def statistics(self) -> tuple[Tensor, Means]:
        """Losses come with the first look at the gradients, which is part of the work anyway."""
        if self._method.rung == Rung.GRAM:
            self._gram, losses, means = self._inner_products()
            return losses, means
        self._first, losses, means = self._block(0)
        return losses, means

    def products(self, scales: Tensor, unit: bool, senders: Tensor | None) -> Products:
        assert self._gram is not None
        return known_products(self._gram, scales, unit, senders)

    def weighted_sum(self, coefficients: Tensor) -> Direction:
        one_pass = OnePass(self._net, self._batch, self._method, self.context, self._chunk, self._keep)
        return one_pass.weighted_sum(coefficients)

    def blocks(self, senders: Tensor | None) -> Iterator[Tensor]:
        for at in range(0, self._d, self._width):
            block, self._first = self._first, None
            if block is None:
                block = self._block(at)[0]
            yield block if senders is None else block[senders]

    def _block(self, at: int) -> tuple[Tensor, Tensor, Means]:
        """Columns ``at`` … of every client's gradient, and the clients' statistics."""
        block = self._net.flat.new_empty(self._n, min(self._width, self._d - at))
        losses, means = [], []
        for first, last in self._groups():
            rows, f, m = self._gradients(first, last)
            block[first:last] = rows[:, at : at + self._width]
            losses.append(f)
            means.append(m)
        return block, torch.cat(losses), _cat(means)

    def _inner_products(self) -> tuple[Tensor, Tensor, Means]:
        """(G Gᵀ, losses, means), two groups of rows in memory at a time."""
        M, groups = torch.empty(self._n, self._n, dtype=torch.float64), list(self._groups())
        losses, means = [], []
        for i, (a, b) in enumerate(groups):
            rows, f, m = self._gradients(a, b)
            losses.append(f)
            means.append(m)
            M[a:b, a:b] = gram(rows)
            for first, last in groups[i + 1 :]:
                M[a:b, first:last] = rows @ self._gradients(first, last)[0].T
                M[first:last, a:b] = M[a:b, first:last].T
        return M.to(self._net.flat.device), torch.cat(losses), _cat(means)

    def _gradients(self, first: int, last: int) -> tuple[Tensor, Tensor, Means]:
        """Of some clients: gradients, losses, means."""
        out = self._net.flat.new_empty(last - first, self._d)
        batch, context = self._batch.only(first, last), self.context.only(slice(first, last))
        with self._net.passes():
            return out, *client_gradients(self._net, batch, self._chunk, self._method, context, self._capture, out)

    def _groups(self) -> Iterator[tuple[int, int]]:
        return ((a, min(a + self._group, self._n)) for a in range(0, self._n, self._group))


def _cat(tables: list[Means]) -> Means:
    return {key: torch.cat([table[key] for table in tables]) for key in tables[0]}
