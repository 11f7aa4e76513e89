"""Many processes: who owns which clients, what the ranks tell each other, and how a job ends when one of them dies.

``torchrun … -m fairmean run …`` starts the same program on every rank. Ranks advance in lockstep: each computes on its
own clients, what the server must see is exchanged, and every rank takes the same step, so the model is the same
everywhere. A rank that ends with an error leaves its exit code in the store that torchrun keeps; the others, whose next
exchange fails, find it there and end with the same code. A rank that left no code was lost.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean.errors import Lost, UserError

T = TypeVar("T")
Index = NDArray[np.int64]
LOST = 4
_TIMEOUT = 600.0
_GRACE = 3.0  # seconds that ranks have to say that they live; torchrun kills them after 30


def borders(sizes: Index, ranks: int) -> Index:
    """Rank r owns clients ``borders[r]`` … ``borders[r+1] − 1``: as equal numbers of samples as whole clients allow.

    >>> borders(np.array([10, 10, 20, 10, 30]), 3).tolist()
    [0, 2, 4, 5]
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])
    ideal = ends[-1] * np.arange(ranks + 1) / ranks
    after = np.clip(np.searchsorted(ends, ideal), 1, len(sizes))
    nearest = after - (ideal - ends[after - 1] < ends[after] - ideal)
    nearest[0], nearest[-1] = 0, len(sizes)
    return np.asarray(nearest, dtype=np.int64)


class Ending(NamedTuple):
    """``code``: with which another rank ended, if one did; ``lost``: who does not answer; ``speaks``: who tells."""

    code: int | None = None
    lost: str = ""
    speaks: bool = True


class World:
    """The processes that share the work; without torchrun one, which is told nothing and sends nothing."""

    rank, size = 0, 1
    terminated = False

    def begin(self) -> None:
        """The work begins: from now on signals are heard."""

    def sum(self, values: Tensor) -> None:
        """Σ over ranks, in place."""

    def lead(self, values: Tensor) -> None:
        """The first rank's values, in place."""

    def join(self, bounds: Index, *columns: Tensor | None) -> list[Any]:
        """Values of all clients of a round, from those of this rank's; rank r has ``bounds[r]:bounds[r+1]``."""
        return list(columns)

    def complete(self, rows: Tensor, bounds: Index) -> None:
        """Fill in the rows of the other ranks' clients."""

    def first(self, value: T) -> T:
        """The first rank's value."""
        return value

    def wait(self) -> None:
        """Until every rank is here, however long that takes."""

    def speaks(self) -> bool:
        """Whether it is this rank that tells why the job ends."""
        return True

    def ending(self) -> Ending:
        """Why the job ends, after an exchange failed or torchrun sent a signal."""
        return Ending()

    def leave(self, code: int) -> None:
        """Say goodbye with an exit code."""


ALONE = World()


class Ranks(World):
    """One of several processes; tensors go by gloo on CPUs, by NCCL on GPUs."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float = _TIMEOUT) -> None:
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore

        self.rank, self.size, self._dist, self._failed = rank, size, dist, False
        self._store = PrefixStore("fairmean", store)
        if torch.cuda.is_available():
            local = int(os.environ.get("LOCAL_RANK", rank))
            torch.cuda.set_device(local % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        self._exchange(self._meet, backend, store, timedelta(seconds=timeout))

    def _meet(self, backend: str, store: Any, limit: timedelta) -> None:
        dist = self._dist
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=limit)
        self._patient = dist.new_group(backend="gloo", timeout=timedelta(days=365))

    def begin(self) -> None:
        signal.signal(signal.SIGTERM, self._terminate)
        timeout()

    def sum(self, values: Tensor) -> None:
        self._exchange(self._dist.all_reduce, values)

    def lead(self, values: Tensor) -> None:
        self._exchange(self._dist.broadcast, values, 0)

    def join(self, bounds: Index, *columns: Tensor | None) -> list[Any]:
        there = [column for column in columns if column is not None]
        table = there[0].new_empty(int(bounds[-1]), len(there))
        table[bounds[self.rank] : bounds[self.rank + 1]] = torch.stack(there, 1)
        self.complete(table, bounds)
        whole = iter(table.T.contiguous())
        return [None if column is None else next(whole) for column in columns]

    def complete(self, rows: Tensor, bounds: Index) -> None:
        """One after the other: with several under way, ranks that fail would wait for each other."""
        for r, (a, b) in enumerate(pairwise(bounds.tolist())):
            if b > a:
                self._exchange(self._dist.broadcast, rows[a:b], r)

    def first(self, value: T) -> T:
        box = [value]
        self._exchange(self._dist.broadcast_object_list, box, 0, device=torch.device("cpu"))
        return box[0]

    def wait(self) -> None:
        self._exchange(lambda: self._dist.all_reduce(torch.zeros(1), group=self._patient))

    def _exchange(self, call: Callable[..., Any], *arguments: Any, **settings: Any) -> None:
        """What torch says when a rank cannot be reached, as ``Lost``; the trace, which keeps connections open, goes."""
        try:
            call(*arguments, **settings)
            return
        except RuntimeError as error:
            reason = _reason(error)
        self._failed = True
        raise Lost(reason)

    def speaks(self) -> bool:
        """The first that asks."""
        _deaf()
        try:
            return bool(self._store.add("spoken", 1) == 1)
        except RuntimeError:  # the store went with the first machine
            return self.rank == 0

    def ending(self) -> Ending:
        _deaf()
        others = [r for r in range(self.size) if r != self.rank]
        limit = time.monotonic() + _GRACE
        try:
            self._store.set(f"alive/{self.rank}", "")
            self._close()  # whoever waits for this rank learns now that something is wrong
            while True:
                codes = [int(self._store.get(key)) for r in others if self._store.check([key := f"ended/{r}"])]
                silent = [r for r in others if not self._store.check([f"alive/{r}"])]
                if codes or not silent or time.monotonic() > limit:
                    break
                time.sleep(0.02)
        except RuntimeError:
            return Ending(lost=f"a rank of {self.size} was lost")
        lowest = min(set(range(self.size)) - set(silent))
        return Ending(codes[0] if codes else None, _named(silent, self.size), self.rank == lowest)

    def leave(self, code: int) -> None:
        """A lost rank's survivors (code 4) leave no code: each finds out by itself."""
        _deaf()
        with suppress(RuntimeError):
            if code not in (0, LOST):
                self._store.set(f"ended/{self.rank}", str(code))
        self._close()

    def _close(self) -> None:
        if self._dist.is_initialized():
            with suppress(RuntimeError):
                self._dist.destroy_process_group()
            del self._patient

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM, which torchrun sends when a rank died: stop as after Ctrl-C, and let others know of this rank."""
        self.terminated = True
        with suppress(RuntimeError):
            self._store.set(f"alive/{self.rank}", "")
        if not self._failed:
            signal.raise_signal(signal.SIGINT)


def _deaf() -> None:
    """This process is about to end by itself: signals come too late."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _reason(error: Exception) -> str:
    """What gloo or NCCL says, without the place in their code."""
    return re.sub(r"^\[\S+:\d+\]\s*", "", str(error)).partition("\n")[0].partition(". ")[0][:200]


def _named(ranks: list[int], size: int) -> str:
    if not ranks:
        return ""
    some = "rank {} of {} was lost" if len(ranks) == 1 else "ranks {} of {} were lost"
    return some.format(", ".join(map(str, ranks)), size)


def start() -> World:
    """Meet the other ranks, when torchrun started this process; else ``ALONE``."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return ALONE
    from torch.distributed.rendezvous import rendezvous

    limit = _TIMEOUT
    with suppress(UserError):
        limit = timeout()
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=limit)))
    except (RuntimeError, ValueError) as error:
        raise Lost(_reason(error)) from error
    return Ranks(store, rank, size, limit)


def timeout() -> float:
    """How long a rank waits for the others in an exchange, in seconds."""
    text = os.environ.get("FAIRMEAN_TIMEOUT", str(_TIMEOUT))
    with suppress(ValueError):
        if 0 < float(text) < 1e7:
            return float(text)
    raise UserError(f"FAIRMEAN_TIMEOUT = '{text}': must be a number of seconds > 0")


def check_device(world: World, device: str) -> None:
    """Every rank needs a GPU of its own."""
    if world.size == 1 or torch.device(device).type != "cuda":
        return
    if torch.device(device).index is not None:
        raise UserError(f"train.device = '{device}': with several ranks each takes its own GPU; use train.device=cuda")
    here, have = int(os.environ.get("LOCAL_WORLD_SIZE", world.size)), torch.cuda.device_count()
    if here > have:
        raise UserError(f"{here} ranks on a machine with {have} GPUs; start torchrun with --nproc-per-node {have}")
