"""Ours, driven like a peer: the simulator in a process of its own, without evaluation and record."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from local_workloads import TOKENS  # type: ignore[import-not-found,unused-ignore]
from protocol import ByIndex, Driver, Task, serve, timed  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

import fairmean
from fairmean.data.federation import Federation
from fairmean.data.tasks import TASKS
from fairmean.engine import Simulator, Training
from fairmean.models import Dropout, build


def federation(task: Task) -> Federation:
    """The task's clients; one sample serves as test data, which is never looked at."""
    n, tokens = len(task.clients), task.model in ("lstm", "transformer")
    nothing, extra = np.array([], dtype=np.int64), dict[str, Any]()
    if isinstance(task.clients, ByIndex):
        shared = task.clients
        x, y, extra = shared.x, shared.y[shared.rows], {"places": shared.rows}
        offsets = np.array(shared.ends)
    else:
        x, y = (part if part._base is None else part._base for part in task.clients[0])  # views of one tensor
        offsets = np.cumsum([0, *(len(client[1]) for client in task.clients)])
    if tokens:
        extra |= {"vocabulary": TOKENS, "task": TASKS["next-token"]}
    classes, ends = TOKENS if tokens else 10, np.zeros(n + 1, int)
    return Federation(x, y, y, offsets, np.ones(n, bool), x[:1], y[:1], y[:1], ends, classes, nothing, nothing, **extra)


class Ours:
    version = fairmean.__version__

    def __init__(self, task: Task, name: str) -> None:
        fed = federation(task)
        kind = fed.task.name if fed.vocabulary else "classification"
        model = build(task.model, fed.shape, fed.outputs, 0, vocabulary=fed.vocabulary, task=kind)
        for module in model.modules():
            if isinstance(module, Dropout) and not task.dropout:
                module.p = 0.0
        for parameter, value in zip(model.parameters(), task.parameters, strict=True):
            parameter.data.copy_(value)
        share = task.cohort / fed.clients if task.cohort else 1.0
        training = Training(lr=task.lr, rounds=10**6, batch=task.batch, local_epochs=task.epochs, participation=share)
        scale = "none" if name == "mean" else name
        method = fairmean.compose(scale, "mean", objective="next-token") if fed.vocabulary else fairmean.method(name)
        self.simulator = Simulator(fed, model, method, training)
        self.t = itertools.count()

    def step(self) -> None:
        self.simulator.step(next(self.t))

    @property
    def took_part(self) -> list[Any]:
        """The clients of the first round, each with the rows of its steps among its own."""
        clients, batches = self.simulator.participants(0), self.simulator.feed.batches
        starts = self.simulator.federation.offsets[clients]
        steps = [
            np.split(batches.rows(j, clients), np.cumsum(batches.counts(j, clients))[:-1])
            for j in range(batches.per_round)
        ]
        return [
            [int(client), [(of_step[k] - start).tolist() for of_step in steps if len(of_step[k])]]
            for k, (client, start) in enumerate(zip(clients, starts, strict=True))
        ]

    def rounds(self, count: int) -> list[float]:
        seconds: list[float] = timed(self.step, count)
        return seconds

    def parameters(self) -> list[Tensor]:
        return list(self.simulator.net.model.parameters())


def start(task: Task, threads: int, method: str) -> Driver:
    return Ours(task, method)


if __name__ == "__main__":
    serve(start)
