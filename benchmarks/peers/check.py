"""Does each peer's round equal a plain PyTorch computation? Then three timed rounds of it.

python benchmarks/peers/check.py               every peer that has a virtual environment
python benchmarks/peers/check.py byzfl pfl
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from local_workloads import TOKENS  # type: ignore[import-not-found,unused-ignore]
from models import LENGTH, Loss  # type: ignore[import-not-found,unused-ignore]
from protocol import (  # type: ignore[import-not-found,unused-ignore]
    HERE,
    PEERS,
    Peer,
    Task,
    load_task,
    network,
    save_task,
    unnumbered,
)
from torch import Tensor

TOLERANCE = 1e-4
LOCAL = {"epochs": 3, "batch": 5, "cohort": 2}


def random_task(
    path: Path, sizes: list[int], model: str, lr: float, rule: str = "mean", f: int = 0, **how: Any
) -> Task:
    """Normal inputs or uniform tokens, and uniform labels; no dropout, whose masks no two programs share."""
    torch.manual_seed(0)
    parameters = [p.detach() for p in network(model).parameters()]
    x, y = samples(sum(sizes), model)
    save_task(path, x, y, np.cumsum([0, *sizes]), parameters, model, lr, rule=rule, f=f, dropout=0, **how)
    return load_task(path)


def samples(count: int, model: str) -> tuple[Tensor, Tensor]:
    """Random inputs of the model's shape, and labels."""
    if model in ("lstm", "transformer"):
        tokens = torch.randint(0, TOKENS, (count, LENGTH + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return torch.randn(count, *((3, 32, 32) if model == "cnn" else (28, 28))), torch.randint(0, 10, (count,))


def trained(task: Task, clients: list[Any] | None) -> list[Tensor]:
    """The mean, in double precision, of the models that these clients reach by local training, each with torch's SGD.

    A client is its number, and then goes through its batches in order; or its number and the rows of every step.
    """
    sums = [torch.zeros_like(p, dtype=torch.float64) for p in task.parameters]
    chosen = range(len(task.clients)) if clients is None else clients
    for client in chosen:
        if isinstance(client, int):
            steps = task.epochs * task.batches(client)
        else:
            x, y = task.clients[client[0]]
            steps = [(x[rows], y[rows]) for rows in client[1]]
        model = task.build()
        optimizer = torch.optim.SGD(model.parameters(), task.lr)
        for x, y in steps:
            optimizer.zero_grad()
            Loss()(model(x), y).backward()
            optimizer.step()
        for total, parameter in zip(sums, model.parameters(), strict=True):
            total += parameter.detach()
    return [total / len(chosen) for total in sums]


def expected(task: Task, clients: list[Any] | None = None) -> list[Tensor]:
    """The parameters after one round: gradients in single precision, as every peer's, the rest in double.

    (Double gradients would differ by more than rounding: among millions of ReLU inputs a few change sign.)
    """
    if task.batch:
        return trained(task, clients)
    model = task.build()
    parameters = list(model.parameters())
    if task.f == 0:  # a running sum, as there may be very many clients
        sums = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
        for x, y in task.clients:
            of_client = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
            for total, gradient in zip(sums, of_client, strict=True):
                total += gradient
        n = len(task.clients)
        return [p.detach().double() - task.lr / n * total for p, total in zip(parameters, sums, strict=True)]
    gradients = [torch.autograd.grad(F.cross_entropy(model(x), y), parameters) for x, y in task.clients]
    after = []
    for parameter, own in zip(parameters, zip(*gradients, strict=True), strict=True):
        ordered = torch.stack(own).double().sort(dim=0).values
        after.append(parameter.detach().double() - task.lr * ordered[task.f : len(own) - task.f].mean(dim=0))
    return after


def difference(task: Task, path: Path, clients: list[Any] | None = None) -> float:
    """The largest error of the parameters at path over the size of the true change, both as Euclidean norms.

    It is the largest of all parameter tensors; for models of sequences it is that of all parameters together, since
    some tensors hardly move there, by less than what single precision rounds off.
    """
    with np.load(path) as file:
        got = unnumbered(file)
    true = expected(task, clients)
    shapes = [tuple(p.shape) for p in got]
    if shapes != [tuple(p.shape) for p in true]:
        raise RuntimeError(f"shapes {shapes}")
    pairs = [
        (float((theirs.double() - ours).norm()), float((ours - start.double()).norm()))
        for start, ours, theirs in zip(task.parameters, true, got, strict=True)
    ]
    if task.model in ("lstm", "transformer"):
        return math.hypot(*(error for error, _ in pairs)) / math.hypot(*(size for _, size in pairs))
    return max(error / size for error, size in pairs)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("peers", nargs="*", default=[p for p in PEERS if (HERE / ".venvs" / p).exists()])
    arguments.add_argument("--threads", type=int, default=1)
    given = arguments.parse_args()
    torch.set_num_threads(given.threads)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        task_path, update_path = Path(folder, "task.npz"), Path(folder, "update.npz")
        for name in given.peers:
            cases: list[tuple[str, str, dict[str, int]]] = [("mlp", "mean", {}), ("cnn", "mean", {})]
            cases += [("mlp", "cwtm", {"f": 1})] if name == "byzfl" else []
            cases += [(model, "mean", LOCAL) for model in ("mlp", "cnn", "lstm", "transformer")]
            parts, version = [], ""
            for model, rule, how in cases:
                lr = 0.1 if "batch" in how and model in ("mlp", "cnn") else 1.0
                task = random_task(task_path, [7, 1, 30, 12, 4], model, lr, rule, **how)
                try:
                    with Peer(name, task_path, given.threads) as peer:
                        version = peer.version
                        clients = peer.update(update_path)
                        error = difference(task, update_path, clients)
                        seconds = float(np.median(peer.time(3)))
                        what = f"local {len(clients)} of 5" if "batch" in how and clients else rule
                        parts.append(f"{model} {what} {error:.1e}, {1e3 * seconds:.1f} ms")
                        wrong += not error < TOLERANCE
                except RuntimeError as failure:
                    parts.append(f"{model} {rule} FAILED: {failure}")
                    wrong += 1
            print(f"{name:7}{version:8}" + "; ".join(parts), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
