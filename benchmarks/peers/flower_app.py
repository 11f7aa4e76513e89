"""Flower's client and server side; a module of its own, so that Ray's workers import it and keep what they loaded."""

from __future__ import annotations

import functools
import time

import torch
import torch.nn.functional as F
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
from protocol import Task, load_task  # type: ignore[import-not-found,unused-ignore]
from torch import nn

client = ClientApp()


@functools.cache
def loaded(path: str) -> tuple[Task, nn.Module, torch.optim.Optimizer]:
    """The task, a model and its optimizer, once per worker process."""
    torch.set_num_threads(1)
    task = load_task(path)
    model = task.build()
    return task, model, torch.optim.SGD(model.parameters(), task.lr)


@client.train()  # type: ignore[untyped-decorator,unused-ignore]
def train(message: Message, context: Context) -> Message:
    """One full-batch SGD step from the model received."""
    task, model, optimizer = loaded(str(message.content["config"]["task"]))
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = task.clients[int(context.node_config["partition-id"])]
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(reply), reply_to=message)


def server(path: str, clients: int, arrays: list[ArrayRecord], rounds: int, stamps: list[float]) -> ServerApp:
    """FedAvg over all clients, evaluation off; its hook after each round notes the time, and the model in arrays[0]."""
    app = ServerApp()

    def after_round(_: int, now: ArrayRecord) -> None:
        stamps.append(time.perf_counter())
        arrays[0] = now

    @app.main()  # type: ignore[untyped-decorator,unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients, min_evaluate_nodes=0
        )
        strategy.start(grid, arrays[0], rounds, train_config=ConfigRecord({"task": path}), evaluate_fn=after_round)

    return app
