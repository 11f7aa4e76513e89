"""fluke: its FedAVG with its own Client and Server, a full-batch local SGD step or local epochs, unweighted average."""

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


class Watch:
    """Observes the federation and notes when rounds begin and end."""

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self.clients: list[int] = []

    def selected_clients(self, clients: Any, **_: object) -> None:
        self.clients = [client.index for client in clients]

    def start_round(self, **_: object) -> None:
        if not self.stamps:
            self.stamps.append(clock())

    def end_round(self, **_: object) -> None:
        self.stamps.append(clock())


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

        class Gathered(FastDataLoader):  # type: ignore[misc,unused-ignore]
            """The samples of a client that are rows of a pool, gathered in each epoch; fluke wants a loader of each."""

            def __init__(self, client: int) -> None:
                self.client, self.size = client, 0

            def __iter__(self) -> Any:
                return iter(task.batches(self.client))

            def __len__(self) -> int:
                return len(task.batches(self.client))

        def samples(client: int) -> FastDataLoader:
            if isinstance(task.clients, ByIndex):
                return Gathered(client)
            x, y = task.clients[client]
            return FastDataLoader(x, y, num_labels=10, batch_size=task.batch or len(y), skip_singleton=False)

        clients = [
            Client(
                index=i,
                train_set=samples(i),
                test_set=None,
                optimizer_cfg=optimizer,
                loss_fn=Loss(),
                local_epochs=task.epochs,
                persistency=False,  # plain SGD has no state, and a model kept would only be copied into
            )
            for i in range(len(task.clients))
        ]
        server = Server(task.build(), None, clients, weighted=False)
        self.share = task.share
        self.federation = FedAVG(len(clients), None, {}, clients=clients, server=server)

    def step(self) -> None:
        self.rounds(1)

    def rounds(self, count: int) -> list[float]:
        """One run; its closing broadcast, which is no part of a round, falls outside the stamps."""
        watch = Watch()
        self.federation.attach(watch)
        self.federation.run(n_rounds=count, eligible_perc=self.share)
        self.federation.detach(watch)
        self.took_part = watch.clients
        seconds: list[float] = intervals(watch.stamps)
        return seconds

    def parameters(self) -> list[Tensor]:
        return list(self.federation.server.model.parameters())


def start(task: Task, threads: int, path: str) -> Driver:
    return Fluke(task)


if __name__ == "__main__":
    serve(start)
