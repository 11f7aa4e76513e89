"""What the clients compute on in one step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean.federation import Federation
from fairmean.randomness import Batches, derive

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Span:
    """Consecutive clients that go through together, in parts of bounded size; ``equal``: their common length, or 0."""

    clients: slice
    start: int
    count: int
    parts: list[slice]
    lengths: Tensor
    equal: int


@dataclass(frozen=True)
class Batch:
    """Samples of the clients taking part, client after client: client k owns ``offsets[k]:offsets[k+1]``.

    ``rows`` are the samples' places in the federation: an identity for dropout masks that does not depend on batching.
    """

    clients: Index
    offsets: Index
    lengths: Tensor
    sizes: Tensor
    ids: Tensor
    x: Tensor
    y: Tensor
    rows: Tensor
    dynamic: Tensor | None
    key: int | Tensor
    _spans: dict[int, list[Span]] = field(default_factory=dict)

    def spans(self, chunk: int) -> list[Span]:
        """Runs of whole clients of about ``chunk`` rows; a larger client is alone, in parts."""
        if chunk not in self._spans:
            n, first = len(self.clients), 0
            spans = []
            while first < n:
                last = int(self.offsets.searchsorted(self.offsets[first] + chunk, side="right")) - 1
                last = min(max(last, first + 1), n)
                spans.append(self.span(first, last, chunk))
                first = last
            self._spans[chunk] = spans
        return self._spans[chunk]

    @property
    def whole(self) -> Span:
        """All clients together, in one part."""
        return self.span(0, len(self.clients), len(self.x))

    def span(self, first: int, last: int, chunk: int) -> Span:
        rows = self.part(first, last)
        parts = [slice(a, min(a + chunk, rows.stop)) for a in range(rows.start, rows.stop, chunk)]
        sizes = np.diff(self.offsets[first : last + 1])
        equal = int(sizes[0]) if (sizes == sizes[0]).all() else 0
        return Span(slice(first, last), rows.start, rows.stop - rows.start, parts, self.lengths[first:last], equal)

    def part(self, first: int, last: int) -> slice:
        """The rows of clients ``first`` … ``last − 1`` of this batch."""
        return slice(int(self.offsets[first]), int(self.offsets[last]))


class Feeder:
    """Batches of a federation, step after step; ``keyed``: whether dropout needs a key every step."""

    def __init__(self, federation: Federation, batch: int, seed: int, keyed: bool = True) -> None:
        self.federation, self.seed, self.keyed = federation, seed, keyed
        self.batches = Batches(federation.offsets, batch, seed)
        self._rows = torch.arange(len(federation.x), device=federation.x.device)
        self._whole: Batch | None = None

    def __call__(self, step: int, clients: Index) -> Batch:
        """The batch of these clients in global step ``step``."""
        key = derive(self.seed, "dropout", step) & 0xFFFFFFFF if self.keyed else 0
        everything = self.batches.full and len(clients) == self.federation.clients
        if everything and self._whole is not None:
            return replace(self._whole, key=key)
        device = self.federation.x.device
        lengths = self.batches.lengths[clients]
        if everything:
            rows, x, y, dynamic = self._rows, self.federation.x, self.federation.y, self.federation.dynamic
        else:
            rows = torch.from_numpy(self.batches.rows(step, clients)).to(device)
            x, y = self.federation.x[rows], self.federation.y[rows]
            dynamic = None if self.federation.dynamic is None else self.federation.dynamic[rows]
        batch = Batch(
            clients=clients,
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            lengths=torch.from_numpy(lengths).to(device),
            sizes=torch.from_numpy(self.federation.sizes[clients]).to(device, torch.float64),
            ids=torch.from_numpy(clients).to(device),
            x=x,
            y=y,
            rows=rows,
            dynamic=dynamic,
            key=key,
        )
        if everything:
            self._whole = batch
        return batch
