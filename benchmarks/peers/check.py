"""Does each peer's round equal a plain PyTorch computation? Then three timed rounds of it.

python benchmarks/peers/check.py               every peer that has a virtual environment
python benchmarks/peers/check.py byzfl pfl
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
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


def random_task(path: Path, sizes: list[int], model: str, lr: float, rule: str = "mean", f: int = 0) -> Task:
    """Normal inputs and uniform labels; no dropout, whose masks no two programs share."""
    torch.manual_seed(0)
    shape = (28, 28) if model == "mlp" else (3, 32, 32)
    parameters = [p.detach() for p in network(model).parameters()]
    x, y = torch.randn(sum(sizes), *shape), torch.randint(0, 10, (sum(sizes),))
    save_task(path, x, y, np.cumsum([0, *sizes]), parameters, model, lr, rule=rule, f=f, dropout=0)
    return load_task(path)


def expected(task: Task) -> list[Tensor]:
    """The parameters after one round: gradients in single precision, as every peer's, the rest in double.

    (Double gradients would differ by more than rounding: among millions of ReLU inputs a few change sign.)
    """
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


def difference(task: Task, path: Path) -> float:
    """The largest error of the parameters at path over the size of the true change, both as Euclidean norms."""
    with np.load(path) as file:
        got = unnumbered(file)
    true = expected(task)
    shapes = [tuple(p.shape) for p in got]
    if shapes != [tuple(p.shape) for p in true]:
        raise RuntimeError(f"shapes {shapes}")
    worst = 0.0
    for start, ours, theirs in zip(task.parameters, true, got, strict=True):
        worst = max(worst, float((theirs.double() - ours).norm() / (ours - start.double()).norm()))
    return worst


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
            cases = [("mlp", "mean", 0), ("cnn", "mean", 0), *([("mlp", "cwtm", 1)] if name == "byzfl" else [])]
            parts, version = [], ""
            for model, rule, f in cases:
                task = random_task(task_path, [7, 1, 30, 12, 4], model, 1.0, rule, f)
                try:
                    with Peer(name, task_path, given.threads) as peer:
                        version = peer.version
                        peer.update(update_path)
                        error = difference(task, update_path)
                        seconds = float(np.median(peer.time(3)))
                        parts.append(f"{model} {rule} {error:.1e}, {1e3 * seconds:.1f} ms")
                        wrong += not error < TOLERANCE
                except RuntimeError as failure:
                    parts.append(f"{model} {rule} FAILED: {failure}")
                    wrong += 1
            print(f"{name:7}{version:8}" + "; ".join(parts), flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
