"""Which rows each client uses in a step."""

from __future__ import annotations

from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from fairmean.randomness import derive, hash32

_MASK = 0xFFFFFFFF


class Batches:
    """Which rows each client uses in a step: consecutive slices of a shuffle that is fresh every epoch.

    Rows are sorted by client, client i owning ``offsets[i]:offsets[i+1]``. A client with no more than ``batch`` rows
    (or any client when ``batch`` is 0) uses all its rows in every step; the others use exactly ``batch`` rows, the
    remainder of an epoch being left out of it.
    """

    def __init__(self, offsets: NDArray[np.int64], batch: int, seed: int) -> None:
        sizes = np.diff(offsets)
        self.offsets = offsets
        self.lengths = np.minimum(sizes, batch) if batch else sizes
        self.full = bool((self.lengths == sizes).all())
        self._steps = sizes // self.lengths
        self._some = self.lengths < sizes
        self._key = derive(seed, "batches")
        self._client = np.repeat(np.arange(len(sizes)), sizes)
        self._order = np.arange(offsets[-1])
        self._epoch = np.full(len(sizes), -1)
        self._last: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    @classmethod
    def shared(cls, offsets: NDArray[np.int64], batch: int, seed: int) -> Batches:
        """The same object for the same rows: runs that advance together shuffle once."""
        key = (offsets.tobytes(), batch, seed)
        found = _SHARED.get(key)
        if found is None:
            found = _SHARED[key] = cls(offsets, batch, seed)
        return found

    def rows(self, step: int, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of these clients in global step ``step``, client after client."""
        if self._last is None or self._last[0] != step or not np.array_equal(self._last[1], clients):
            self._last = (step, clients, self._rows(step, clients))
        return self._last[2]

    def _rows(self, step: int, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        self._shuffle(step, clients)
        lengths = self.lengths[clients]
        starts = self.offsets[clients] + step % self._steps[clients] * lengths
        before = np.cumsum(lengths) - lengths
        chosen: NDArray[np.int64] = self._order[np.arange(lengths.sum()) + np.repeat(starts - before, lengths)]
        return chosen

    def _shuffle(self, step: int, clients: NDArray[np.int64]) -> None:
        epoch = step // self._steps[clients]
        stale = clients[(epoch != self._epoch[clients]) & self._some[clients]]
        if len(stale) == 0:
            return
        self._epoch[stale] = step // self._steps[stale]
        rows = np.concatenate([np.arange(self.offsets[c], self.offsets[c + 1]) for c in stale])
        client = self._client[rows]
        random = hash32(hash32(rows + (self._key & _MASK)) + hash32(self._epoch[client] + (self._key >> 32)))
        self._order[rows] = rows[np.argsort(client << 32 | random, kind="stable")]


_SHARED: WeakValueDictionary[tuple[bytes, int, int], Batches] = WeakValueDictionary()
