"""Flower's client and server side; a module of its own, so that Ray's workers import it and keep what they loaded."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path

import torch
from flwr.app import (  # type: ignore[import-not-found,unused-ignore]
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # type: ignore[import-not-found,unused-ignore]
from flwr.serverapp import Grid, ServerApp  # type: ignore[import-not-found,unused-ignore]
from flwr.serverapp.strategy import FedAvg  # type: ignore[import-not-found,unused-ignore]
from models import Loss  # type: ignore[import-not-found,unused-ignore]
from protocol import Task, load_task  # type: ignore[import-not-found,unused-ignore]
from torch import nn

client, loss = ClientApp(), Loss()


@functools.cache
def loaded(path: str) -> tuple[Task, nn.Module, torch.optim.Optimizer]:
    """The task, a model and its optimizer, once per worker process."""
    torch.set_num_threads(1)
    task = load_task(path)
    model = task.build()
    return task, model, torch.optim.SGD(model.parameters(), task.lr)


@client.train()  # type: ignore[untyped-decorator,unused-ignore]
def train(message: Message, context: Context) -> Message:
    """One full-batch SGD step, or local epochs, from the model received."""
    task, model, optimizer = loaded(str(message.content["config"]["task"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr,unused-ignore]
    client = int(context.node_config["partition-id"])
    batches = task.batches(client)
    for _ in range(task.epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    if notes := str(message.content["config"]["notes"]):
        with open(notes, "a") as file:
            file.write(f"{client}\n")
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(reply), reply_to=message)  # type: ignore[arg-type,unused-ignore]


def computed() -> float:
    """Seconds that this process and all its descendants (Ray and its workers) have computed so far (Linux)."""
    parents, seconds = dict[int, int](), dict[int, float]()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
                seconds[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ours(process: int) -> bool:
        return process == os.getpid() or (process in parents and ours(parents[process]))

    return sum(value for process, value in seconds.items() if ours(process))


def server(
    path: str, clients: int, cohort: int, arrays: list[ArrayRecord], rounds: int, stamps: list[float], notes: str
) -> ServerApp:
    """FedAvg over a cohort, evaluation off; its hook after each round notes the time, and the model in arrays[0]."""
    app = ServerApp()

    def after_round(_: int, now: ArrayRecord) -> None:
        stamps.append(computed() if os.environ.get("CLOCK") == "cpu" else time.perf_counter())
        arrays[0] = now

    @app.main()  # type: ignore[untyped-decorator,unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=cohort / clients,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=clients,
            min_evaluate_nodes=0,
        )
        config = ConfigRecord({"task": path, "notes": notes})
        strategy.start(grid, arrays[0], rounds, train_config=config, evaluate_fn=after_round)

    return app
