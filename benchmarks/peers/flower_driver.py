"""Flower: FedAvg in its simulation runtime, one Ray worker per thread, a full-batch local SGD step or local epochs."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from importlib.metadata import version

from protocol import Driver, Task, intervals, serve  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")


class Flower:
    version = version("flwr")

    def __init__(self, task: Task, threads: int, path: str) -> None:
        from flwr.app import ArrayRecord  # type: ignore[import-not-found,unused-ignore]

        task.only_mean()
        logging.getLogger("flwr").setLevel(logging.ERROR)
        self.path, self.clients, self.threads = os.path.abspath(path), len(task.clients), threads
        self.cohort = task.cohort or len(task.clients)
        self.arrays = [ArrayRecord(task.build().state_dict())]

    def step(self) -> None:
        """One round, in which the clients write down their numbers."""
        with tempfile.NamedTemporaryFile("r") as notes:
            self.simulate(1, notes.name)
            self.took_part = [int(line) for line in notes]

    def rounds(self, count: int) -> list[float]:
        """One simulation; an extra first round, with the start of Ray and of its workers in it, is not reported."""
        begin = time.perf_counter()
        stamps = self.simulate(count + 1)
        self.extra = {"start_seconds": stamps[1] - begin}
        seconds: list[float] = intervals(stamps[1:])
        return seconds

    def simulate(self, rounds: int, notes: str = "") -> list[float]:
        """Times before the first round and after each."""
        from flower_app import client, server  # type: ignore[import-not-found,unused-ignore]
        from flwr.simulation import run_simulation  # type: ignore[import-not-found,unused-ignore]

        stamps: list[float] = []
        run_simulation(
            server(self.path, self.clients, self.cohort, self.arrays, rounds, stamps, notes),
            client,
            self.clients,
            backend_config={
                "init_args": {"num_cpus": self.threads, "include_dashboard": False},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
        return stamps

    def parameters(self) -> list[Tensor]:
        return list(self.arrays[0].to_torch_state_dict().values())


def start(task: Task, threads: int, path: str) -> Driver:
    return Flower(task, threads, path)


if __name__ == "__main__":
    serve(start)
