"""Whole clients to ranks: the sampler that data-parallel training needs when clients are to be told apart."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.utils.data import Sampler

from fairmean.errors import UserError
from fairmean.randomness import generator
from fairmean.torch.names import column


class ClientSampler(Sampler[int]):
    """In place of ``DistributedSampler``: each rank draws the samples of its own clients, and of nobody else's.

    ``clients`` holds the client of every sample of the data set: a list, an array, a tensor or a pandas column. Clients
    are dealt to ranks, the largest first, each to the rank with the fewest samples that still has room, so that no rank
    has more than one client more than another.

    Every rank draws as many samples in an epoch as the rank with the most, so that all take the same number of
    steps: ranks with fewer samples begin anew. Call ``set_epoch`` before each epoch for another order.

    Where ranks have different numbers of clients, the plain average over ranks is not the average over clients. Give
    ``FairMeanLoss`` the clients of each batch, which weights them right, and say ``uneven=True`` here; else there is a
    warning.

    >>> sampler = ClientSampler(["a", "a", "b", "c", "c", "c", "d"], ranks=2, rank=0, shuffle=False)
    >>> sampler.clients, list(sampler)
    (['c', 'd'], [3, 4, 5, 6])
    """

    def __init__(
        self,
        clients: Any,
        *,
        ranks: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        uneven: bool = False,
    ) -> None:
        running = dist.is_available() and dist.is_initialized()
        self.ranks = ranks if ranks is not None else dist.get_world_size() if running else 1
        self.rank = rank if rank is not None else dist.get_rank() if running else 0
        if not 0 <= self.rank < self.ranks:
            raise UserError(
                f"ClientSampler: rank = {self.rank} of {self.ranks} ranks: must be from 0 to {self.ranks - 1}"
            )
        names, owner = column(clients, "ClientSampler")
        if len(names) < self.ranks:
            raise UserError(
                f"ClientSampler: {len(names)} clients for {self.ranks} ranks: start at most as many ranks as clients"
            )
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0
        sizes = np.bincount(owner, minlength=len(names))
        place = _deal(sizes, self.ranks)
        self.counts = np.bincount(place, minlength=self.ranks).tolist()
        self.clients: list[Any] = [name for name, at in zip(names, place, strict=True) if at == self.rank]
        self._samples = np.flatnonzero(place[owner] == self.rank)
        self._length = int(np.bincount(place, weights=sizes, minlength=self.ranks).max())
        if len(set(self.counts)) > 1 and not uneven:
            warnings.warn(
                f"ClientSampler: {len(names)} clients on {self.ranks} ranks, {min(self.counts)} or {max(self.counts)} "
                "on each: the average over ranks is not the average over clients. Call FairMeanLoss with clients=, "
                "which weights them right, and pass uneven=True here.",
                stacklevel=2,
            )

    def set_epoch(self, epoch: int) -> None:
        """Another order for another epoch, the same after a restart."""
        self.epoch = int(epoch)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        draw = generator(self.seed, "client-sampler", self.epoch, self.rank)
        left = self._length
        while left > 0:
            order = draw.permutation(self._samples) if self.shuffle else self._samples
            yield from map(int, order[:left])
            left -= len(order)


def _deal(sizes: np.ndarray[Any, Any], ranks: int) -> np.ndarray[Any, Any]:
    """The rank of each client: the largest first, to the rank with the fewest samples among those with room."""
    place, load, count = np.zeros(len(sizes), dtype=np.int64), np.zeros(ranks), np.zeros(ranks, dtype=np.int64)
    each, extra = divmod(len(sizes), ranks)
    for client in np.argsort(-sizes, kind="stable"):
        most = each + (int((count > each).sum()) < extra)
        rank = min((r for r in range(ranks) if count[r] < most), key=lambda r: (load[r], r))
        place[client] = rank
        load[rank] += sizes[client]
        count[rank] += 1
    return place
