"""FedLab: its standalone pipeline of FedAvg handler and serial trainer; a full-batch local SGD step or local epochs."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from models import Loss  # type: ignore[import-not-found,unused-ignore]
from protocol import (  # type: ignore[import-not-found,unused-ignore]
    ByIndex,
    Driver,
    Task,
    clock,
    intervals,
    serve,
    torchvision_without_its_library,
)
from torch import Tensor


class Data:
    """FedLab's data set interface: a client's loader by its number. Whatever gives batches may be a loader.

    Lists of batches are made once; those of clients that are gathered from a pool, when they are asked for.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.asked = task, list[int]()
        self.loaders: list[Any] = [] if isinstance(task.clients, ByIndex) else self.lists()

    def lists(self) -> list[Any]:
        return [self.task.batches(i) for i in range(len(self.task.clients))]

    def get_dataloader(self, id: int, batch_size: int) -> Any:
        self.asked.append(id)
        return self.loaders[id] if self.loaders else self.task.batches(id)


class FedLab:
    version = version("fedlab")

    def __init__(self, task: Task) -> None:
        torchvision_without_its_library()
        from fedlab.contrib.algorithm.fedavg import (  # type: ignore[import-not-found,unused-ignore]
            FedAvgSerialClientTrainer,
            FedAvgServerHandler,
        )
        from fedlab.core.standalone import StandalonePipeline  # type: ignore[import-not-found,unused-ignore]

        task.only_mean()
        trainer = FedAvgSerialClientTrainer(task.build(), len(task.clients))
        self.data = Data(task)
        trainer.setup_dataset(self.data)
        trainer.setup_optim(epochs=task.epochs, batch_size=0, lr=task.lr)
        trainer.criterion = Loss()
        self.handler = FedAvgServerHandler(task.build(), global_round=0, sample_ratio=task.share)
        self.pipeline = StandalonePipeline(self.handler, trainer)
        self.pipeline.evaluate = self.stamp  # the hook after each round, meant to be replaced
        self.stamps: list[float] = []

    def stamp(self) -> None:
        self.stamps.append(clock())

    def step(self) -> None:
        self.rounds(1)

    def rounds(self, count: int) -> list[float]:
        self.handler.global_round += count
        self.data.asked.clear()
        self.stamps = [clock()]
        self.pipeline.main()
        self.took_part = list(self.data.asked)
        seconds: list[float] = intervals(self.stamps)
        return seconds

    def parameters(self) -> list[Tensor]:
        return list(self.handler.model.parameters())


def start(task: Task, threads: int, path: str) -> Driver:
    return FedLab(task)


if __name__ == "__main__":
    serve(start)
