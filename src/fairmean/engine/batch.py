"""What the clients compute on in one step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean.data.batches import Batches
from fairmean.data.federation import Federation
from fairmean.randomness import derive

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
    With several ranks the samples are those of this rank's clients, which are ``mine`` among all clients of the round;
    ``sizes`` and ``ids`` are of all, and rank r has those from ``bounds[r]`` to ``bounds[r+1]``.
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
    bounds: Index
    mine: slice = field(default_factory=partial(slice, None))
    _spans: dict[int, list[Span]] = field(default_factory=dict)

    @cached_property
    def owner(self) -> Tensor:
        """For every row, the place of its client in this batch."""
        places = torch.arange(len(self.lengths), device=self.lengths.device)
        return torch.repeat_interleave(places, self.lengths, output_size=len(self.x))

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
        equal = int(sizes[0]) if len(sizes) and (sizes == sizes[0]).all() else 0
        return Span(slice(first, last), rows.start, rows.stop - rows.start, parts, self.lengths[first:last], equal)

    def only(self, first: int, last: int) -> Batch:
        """The part of clients ``first`` … ``last − 1``, in a single process."""
        rows = self.part(first, last)
        dynamic = None if self.dynamic is None else self.dynamic[rows]
        return replace(
            self,
            clients=self.clients[first:last],
            offsets=self.offsets[first : last + 1] - self.offsets[first],
            lengths=self.lengths[first:last],
            sizes=self.sizes[first:last],
            ids=self.ids[first:last],
            x=self.x[rows],
            y=self.y[rows],
            rows=self.rows[rows],
            dynamic=dynamic,
            _spans={},
        )

    def part(self, first: int, last: int) -> slice:
        """The rows of clients ``first`` … ``last − 1`` of this batch."""
        return slice(int(self.offsets[first]), int(self.offsets[last]))


class Feeder:
    """Batches of a federation, step after step; ``keyed``: whether dropout needs a key every step.

    ``borders``: rank r has clients ``borders[r]`` … ``borders[r+1] − 1``, and the federation the inputs of this one's.
    """

    def __init__(
        self,
        federation: Federation,
        batch: int,
        seed: int,
        keyed: bool = True,
        borders: Index | None = None,
        rank: int = 0,
    ) -> None:
        self.federation, self.seed, self.keyed = federation, seed, keyed
        self.batches = Batches.shared(federation.offsets, batch, seed)
        self._borders = np.array([0, federation.clients]) if borders is None else borders
        self._rank = rank
        first, last = federation.offsets[self._borders[rank : rank + 2]].tolist()
        self._own = slice(first, last)
        self._rows = torch.arange(first, last, device=federation.x.device)
        self._whole: Batch | None = None
        self._all: dict[str, Any] | None = None

    def __call__(self, step: int, clients: Index) -> Batch:
        """The batch of these clients in global step ``step``."""
        key = derive(self.seed, "dropout", step) & 0xFFFFFFFF if self.keyed else 0
        everything = self.batches.full and len(clients) == self.federation.clients
        if everything and self._whole is not None:
            return replace(self._whole, key=key) if self.keyed else self._whole
        frame = self._frame(clients)
        if everything:
            own = self._own
            rows, x, y = self._rows, self.federation.x[: own.stop - own.start], self.federation.y[own]
            dynamic = None if self.federation.dynamic is None else self.federation.dynamic[own]
        else:
            rows = torch.from_numpy(self.batches.rows(step, frame["clients"])).to(self.federation.x.device)
            x, y = self.federation.x[rows - self._own.start if self._own.start else rows], self.federation.y[rows]
            dynamic = None if self.federation.dynamic is None else self.federation.dynamic[rows]
        batch = Batch(x=x, y=y, rows=rows, dynamic=dynamic, key=key, **frame)
        if everything:
            self._whole = batch
        return batch

    def _frame(self, everyone: Index) -> dict[str, Any]:
        """What a batch has that its samples do not decide: made once while all clients take part."""
        whole = len(everyone) == self.federation.clients
        if whole and self._all is not None:
            return self._all
        device, bounds = self.federation.x.device, np.searchsorted(everyone, self._borders)
        mine = slice(*bounds[self._rank : self._rank + 2].tolist())
        clients = everyone[mine]
        lengths = self.batches.lengths[clients]
        frame = {
            "clients": clients,
            "offsets": np.concatenate([[0], np.cumsum(lengths)]),
            "lengths": torch.from_numpy(lengths).to(device),
            "sizes": torch.from_numpy(self.federation.sizes[everyone]).to(device, torch.float64),
            "ids": torch.from_numpy(everyone).to(device),
            "bounds": bounds,
            "mine": mine,
        }
        if whole:
            self._all = frame
        return frame
