"""fluke: its FedAVG with its own Client and Server, one full-batch local SGD step, unweighted average."""

from __future__ import annotations

import time
from importlib.metadata import version

from protocol import (  # type: ignore[import-not-found,unused-ignore]
    Driver,
    Task,
    intervals,
    serve,
    torchvision_without_its_library,
)
from torch import Tensor, nn


class Watch:
    """Observes the federation and notes when rounds begin and end."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def start_round(self, **_: object) -> None:
        if not self.stamps:
            self.stamps.append(time.perf_counter())

    def end_round(self, **_: object) -> None:
        self.stamps.append(time.perf_counter())


class Fluke:
    version = version("fluke-fl")

    def __init__(self, task: Task) -> None:
        torchvision_without_its_library()
        from fluke import DDict, FlukeENV  # type: ignore[import-not-found,unused-ignore]
        from fluke.algorithms.fedavg import FedAVG  # type: ignore[import-not-found,unused-ignore]
        from fluke.client import Client  # type: ignore[import-not-found,unused-ignore]
        from fluke.config import OptimizerConfigurator  # type: ignore[import-not-found,unused-ignore]
        from fluke.data import FastDataLoader  # type: ignore[import-not-found,unused-ignore]
        from fluke.server import Server  # type: ignore[import-not-found,unused-ignore]

        task.only_mean()
        FlukeENV().set_device("cpu")
        FlukeENV().set_inmemory(True)
        FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
        FlukeENV().get_live_renderer().auto_refresh = False  # no thread that redraws progress bars
        optimizer = OptimizerConfigurator(DDict(name="SGD", lr=task.lr))
        clients = [
            Client(
                index=i,
                train_set=FastDataLoader(x, y, num_labels=10, batch_size=len(y), skip_singleton=False),
                test_set=None,
                optimizer_cfg=optimizer,
                loss_fn=nn.CrossEntropyLoss(),
                local_epochs=1,
                persistency=False,  # plain SGD has no state, and a model kept would only be copied into
            )
            for i, (x, y) in enumerate(task.clients)
        ]
        server = Server(task.build(), None, clients, weighted=False)
        self.federation = FedAVG(len(clients), None, {}, clients=clients, server=server)

    def step(self) -> None:
        self.rounds(1)

    def rounds(self, count: int) -> list[float]:
        """One run; its closing broadcast, which is no part of a round, falls outside the stamps."""
        watch = Watch()
        self.federation.attach(watch)
        self.federation.run(n_rounds=count, eligible_perc=1)
        self.federation.detach(watch)
        seconds: list[float] = intervals(watch.stamps)
        return seconds

    def parameters(self) -> list[Tensor]:
        return list(self.federation.server.model.parameters())


def start(task: Task, threads: int, path: str) -> Driver:
    return Fluke(task)


if __name__ == "__main__":
    serve(start)
