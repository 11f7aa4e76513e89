"""What the clients compute on in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, overload

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
    ``epochs``: a round is so many whole epochs of every client; 0: steps are not counted in epochs.
    """

    def __init__(
        self,
        federation: Federation,
        batch: int,
        seed: int,
        keyed: bool = True,
        borders: Index | None = None,
        rank: int = 0,
        epochs: int = 0,
    ) -> None:
        self.federation, self.seed, self.keyed = federation, seed, keyed
        self.batches = Batches.shared(federation.offsets, batch, seed, epochs)
        self._borders = np.array([0, federation.clients]) if borders is None else borders
        self._rank = rank
        self._own = slice(*federation.offsets[self._borders[rank : rank + 2]].tolist())
        self._whole: Batch | None = None
        self._all: dict[str, Any] | None = None

    def __call__(self, step: int, clients: Index) -> Batch:
        """The batch of these clients in global step ``step``."""
        key = self.key(step)
        everything = self.batches.full and len(clients) == self.federation.clients
        if everything and self._whole is not None:
            return replace(self._whole, key=key) if self.keyed else self._whole
        frame = self.frame(clients)
        if everything:
            own, fed = self._own, self.federation
            rows = torch.arange(own.start, own.stop, device=fed.x.device)
            x = fed.x[: own.stop - own.start] if fed.places is None else fed.inputs(rows)
            dynamic = None if fed.dynamic is None else fed.dynamic[own]
            self._whole = Batch(x=x, y=fed.y[own], rows=rows, dynamic=dynamic, key=key, **frame)
            return self._whole
        return Batch(**self.samples(self.batches.rows(step, frame["clients"])), key=key, **self.at(step, frame))

    def key(self, step: int) -> int:
        """Of the dropout masks in a step."""
        return derive(self.seed, "dropout", step) & 0xFFFFFFFF if self.keyed else 0

    def samples(self, chosen: Index) -> dict[str, Any]:
        """Inputs, labels and marks of these rows of this rank's clients."""
        fed = self.federation
        rows = torch.from_numpy(chosen).to(fed.x.device)
        shifted = self._own.start and fed.places is None  # this rank has the inputs of its own clients alone
        return {
            "x": fed.inputs(rows - self._own.start if shifted else rows),
            "y": fed.y[rows],
            "rows": rows,
            "dynamic": None if fed.dynamic is None else fed.dynamic[rows],
        }

    def at(self, step: int, frame: dict[str, Any]) -> dict[str, Any]:
        """The frame with the numbers of rows that clients use in this step."""
        if not self.batches.epochs:
            return frame
        lengths = self.batches.counts(step, frame["clients"])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return frame | {"offsets": offsets, "lengths": torch.from_numpy(lengths).to(self.federation.x.device)}

    def frame(self, everyone: Index) -> dict[str, Any]:
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
            "sizes": torch.from_numpy(self.batches.sizes[everyone]).to(device, torch.float64),
            "ids": torch.from_numpy(everyone).to(device),
            "bounds": bounds,
            "mine": mine,
        }
        if whole:
            self._all = frame
        return frame


class LocalBatches(Sequence[Batch]):
    """The local steps of a round, ``first`` … ``first + count − 1``; their samples are fetched when they are asked for.

    A client that has done all its steps has no rows in the later ones.
    """

    def __init__(self, feed: Feeder, first: int, count: int, everyone: Index) -> None:
        self._feed, self._first, self._everyone = feed, first, everyone
        self.frame = feed.frame(everyone)
        clients = self.frame["clients"]
        own = feed.batches.steps(clients) if feed.batches.epochs else np.full(len(clients), count)
        self.counts: Index = own
        self.sizes: Index = feed.batches.sizes[clients]
        self._count = int(own.max(initial=1))
        self._known: tuple[int, Batch] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, step: int) -> Batch: ...
    @overload
    def __getitem__(self, step: slice) -> Sequence[Batch]: ...
    def __getitem__(self, step: int | slice) -> Batch | Sequence[Batch]:
        """One step of all clients; the last one that was asked for is kept."""
        if isinstance(step, slice):
            return [self[j] for j in range(*step.indices(len(self)))]
        if not 0 <= step < len(self):
            raise IndexError(step)
        if self._known is None or self._known[0] != step:
            self._known = step, self._feed(self._first + step, self._everyone)
        return self._known[1]

    @cached_property
    def rows(self) -> list[list[Index]]:
        """For every step, the rows that each client of this rank uses in it."""
        clients, result = self.frame["clients"], []
        for j in range(len(self)):
            step = self._first + j
            ends = np.cumsum(self._feed.batches.counts(step, clients))
            result.append(np.split(self._feed.batches.rows(step, clients), ends[:-1]))
        return result

    def key(self, step: int) -> int:
        """Of the dropout masks in a step."""
        return self._feed.key(self._first + step)

    def samples(self, rows: Index) -> dict[str, Any]:
        """Inputs (x), labels (y), places (rows) and marks (dynamic) of some rows."""
        return self._feed.samples(rows)

    def of_client(self, k: int, step: int) -> Batch:
        """One step of the k-th client alone."""
        rows, clients, at = self.rows[step][k], self.frame["clients"], self.frame["mine"].start + k
        return Batch(
            clients=clients[k : k + 1],
            offsets=np.array([0, len(rows)]),
            lengths=torch.full((1,), len(rows), device=self._feed.federation.x.device),
            sizes=self.frame["sizes"][at : at + 1],
            ids=self.frame["ids"][at : at + 1],
            bounds=self.frame["bounds"],
            key=self.key(step),
            **self.samples(rows),
        )
