"""FedLab: its standalone pipeline of FedAvg handler and serial trainer, one full-batch local SGD step."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from protocol import (  # type: ignore[import-not-found,unused-ignore]
    Driver,
    Task,
    intervals,
    serve,
    torchvision_without_its_library,
    whole,
)
from torch import Tensor


class Data:
    """FedLab's data set interface: a client's loader by its number."""

    def __init__(self, clients: list[tuple[Tensor, Tensor]]) -> None:
        self.loaders = [whole(client) for client in clients]

    def get_dataloader(self, id: int, batch_size: int) -> Any:
        return self.loaders[id]


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
        trainer.setup_dataset(Data(task.clients))
        trainer.setup_optim(epochs=1, batch_size=0, lr=task.lr)
        self.handler = FedAvgServerHandler(task.build(), global_round=0, sample_ratio=1.0)
        self.pipeline = StandalonePipeline(self.handler, trainer)
        self.pipeline.evaluate = self.stamp  # the hook after each round, meant to be replaced
        self.stamps: list[float] = []

    def stamp(self) -> None:
        self.stamps.append(time.perf_counter())

    def step(self) -> None:
        self.rounds(1)

    def rounds(self, count: int) -> list[float]:
        self.handler.global_round += count
        self.stamps = [time.perf_counter()]
        self.pipeline.main()
        seconds: list[float] = intervals(self.stamps)
        return seconds

    def parameters(self) -> list[Tensor]:
        return list(self.handler.model.parameters())


def start(task: Task, threads: int, path: str) -> Driver:
    return FedLab(task)


if __name__ == "__main__":
    serve(start)
