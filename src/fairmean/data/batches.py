"""Which rows each client uses in a step."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from fairmean.randomness import derive, hash32

_MASK = 0xFFFFFFFF
Index = NDArray[np.int64]


class Batches:
    """Which rows each client uses in a step: consecutive slices of a shuffle that is fresh every epoch.

    Rows are sorted by client, client i owning ``offsets[i]:offsets[i+1]``. A client with no more than ``batch`` rows
    (or any client when ``batch`` is 0) uses all its rows in every step. What the others use depends on ``epochs``:

    - 0: exactly ``batch`` rows in every step, the remainder of an epoch being left out of it;
    - E: a round is E whole epochs, and the last batch of an epoch may be short. ``per_round`` is the number of steps
      that the largest client takes; one that has done its epochs has no rows in the remaining steps.

    The shuffles of the clients asked for last are kept, so memory does not grow with the rows of all clients.
    """

    def __init__(self, offsets: Index, batch: int, seed: int, epochs: int = 0) -> None:
        self.sizes = sizes = np.diff(offsets)
        self.offsets, self.epochs = offsets, epochs
        self.lengths = np.minimum(sizes, batch) if batch else sizes
        self.full = bool((self.lengths == sizes).all())
        self._steps = -(-sizes // self.lengths) if epochs else sizes // self.lengths
        self.per_round = epochs * int(self._steps.max()) if epochs else 0
        self._key = derive(seed, "batches")
        self._shuffled: _Shuffled | None = None
        self._last: tuple[int, Index, Index] | None = None

    @classmethod
    def shared(cls, offsets: Index, batch: int, seed: int, epochs: int = 0) -> Batches:
        """The same object for the same rows: runs that advance together shuffle once."""
        key = (offsets.tobytes(), batch, seed, epochs)
        found = _SHARED.get(key)
        if found is None:
            found = _SHARED[key] = cls(offsets, batch, seed, epochs)
        return found

    def steps(self, clients: Index) -> Index:
        """How many local steps each of these clients takes in a round of ``epochs`` epochs."""
        return self.epochs * self._steps[clients]

    def rows(self, step: int, clients: Index) -> Index:
        """The rows of these clients in global step ``step``, client after client."""
        if self._last is None or self._last[0] != step or not np.array_equal(self._last[1], clients):
            self._last = (step, clients, self._rows(step, clients))
        return self._last[2]

    def counts(self, step: int, clients: Index) -> Index:
        """How many rows each of these clients uses in global step ``step``."""
        return self._place(step, clients)[2]

    def _place(self, step: int, clients: Index) -> tuple[Index, Index, Index]:
        """Each client's epoch in this step, where in its shuffle the batch begins, and how long it is."""
        steps, longest = self._steps[clients], self.lengths[clients]
        if not self.epochs:
            return step // steps, step % steps * longest, longest
        t, j = divmod(step, self.per_round)
        start = j % steps * longest
        left = np.minimum(self.sizes[clients] - start, longest)
        return t * self.epochs + j // steps, start, np.where(j < self.epochs * steps, left, 0)

    def _rows(self, step: int, clients: Index) -> Index:
        epoch, start, lengths = self._place(step, clients)
        shuffled = self._order(clients, epoch, lengths > 0)
        return shuffled.order[_ranges(shuffled.start + start, lengths)]

    def _order(self, clients: Index, epoch: Index, used: NDArray[np.bool_]) -> _Shuffled:
        """The rows of these clients, client after client, each shuffled as its epoch wants it where it is ``used``."""
        known = self._shuffled
        if known is None or not np.array_equal(known.clients, clients):
            sizes = self.sizes[clients]
            order = _ranges(self.offsets[clients], sizes)
            start = np.cumsum(sizes) - sizes
            known = self._shuffled = _Shuffled(clients.copy(), np.full(len(clients), -1), order, start)
        stale = np.flatnonzero(used & (epoch != known.epoch) & (self.lengths[clients] < self.sizes[clients]))
        if len(stale):
            known.epoch[stale] = epoch[stale]
            whose, sizes = clients[stale], self.sizes[clients[stale]]
            rows, client = _ranges(self.offsets[whose], sizes), np.repeat(whose, sizes)
            salt = np.repeat(hash32(epoch[stale] + (self._key >> 32)), sizes)
            random = hash32(hash32(rows + (self._key & _MASK)) + salt)
            known.order[_ranges(known.start[stale], sizes)] = rows[np.argsort(client << 32 | random, kind="stable")]
        return known


class _Shuffled(NamedTuple):
    """The shuffled rows of some clients: of which epoch each client's are, and where they begin in ``order``."""

    clients: Index
    epoch: Index
    order: Index
    start: Index


def _ranges(starts: Index, lengths: Index) -> Index:
    """start, start + 1 … for each of several ranges, one after the other."""
    before = np.cumsum(lengths) - lengths
    places: Index = np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
    return places


_SHARED: WeakValueDictionary[tuple[bytes, int, int, int], Batches] = WeakValueDictionary()
