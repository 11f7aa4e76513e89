"""What FairMean costs under DDP: steps with it and plain steps alternate, on two gloo ranks of this machine.

    python benchmarks/ddp_overhead.py                  100 alternations, a model of five million parameters
    python benchmarks/ddp_overhead.py --csv results/ddp-overhead.csv

A step is forward, backward with its exchange of gradients, and the optimiser; "× 4" is a step of four micro-batches,
three of them under no_sync, for which the hook is made. Every row has a model of its own. Printed are the geometric
mean of the ratios to the plain step of the same alternation, and its 95 % interval, by the wall clock and by the CPU
clock of rank 0. "plain again" is the plain step once more: what the measurement itself can tell apart.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from scipy.stats import t
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fairmean.torch.ddp_hook import ddp_hook
from fairmean.torch.loss import FairMeanLoss

BATCH, WIDTH = 64, 2048


def model() -> DistributedDataParallel:
    """784-2048-1600-10: 4.9 million parameters."""
    torch.manual_seed(0)
    layers = [nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1600), nn.ReLU(), nn.Linear(1600, 10)]
    return DistributedDataParallel(nn.Sequential(*layers))


def stepper(
    net: DistributedDataParallel, criterion: Callable[[Tensor, Tensor], Tensor], parts: int = 1
) -> Callable[[], None]:
    """One step of training on the same random batch, so many times."""
    draw = torch.Generator().manual_seed(dist.get_rank())
    x, y = torch.randn(BATCH, 784, generator=draw), torch.randint(0, 10, (BATCH,), generator=draw)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.001)

    def step() -> None:
        for part in range(parts):
            with contextlib.nullcontext() if part == parts - 1 else net.no_sync():
                torch.autograd.backward(criterion(net(x), y))
        optimiser.step()
        optimiser.zero_grad()

    return step


def hooked(parts: int) -> Callable[[], None]:
    """The same with the hook."""
    net, mean = model(), nn.CrossEntropyLoss()
    fair = ddp_hook(net)
    return stepper(net, lambda logits, y: fair.add(mean(logits, y) / parts), parts)


def work(rank: int, place: str, alternations: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=rank, world_size=2)
    mean = nn.CrossEntropyLoss()
    steps = {
        "plain": stepper(model(), mean),
        "plain again": stepper(model(), mean),
        "FairMeanLoss": stepper(model(), FairMeanLoss(nn.CrossEntropyLoss(reduction="none"))),
        "ddp_hook": hooked(1),
        "plain × 4": stepper(model(), lambda logits, y: mean(logits, y) / 4, 4),
        "ddp_hook × 4": hooked(4),
    }
    order = np.random.default_rng(0)  # the same on both ranks
    names = list(steps)
    wall, cpu = np.zeros((alternations, len(names))), np.zeros((alternations, len(names)))
    for row in range(-3, alternations):
        for at in order.permutation(len(names)):
            dist.barrier()
            before = time.perf_counter(), time.process_time()
            steps[names[at]]()
            if row >= 0:
                wall[row, at] = time.perf_counter() - before[0]
                cpu[row, at] = time.process_time() - before[1]
    if rank == 0:
        np.savez(Path(place) / "times.npz", wall=wall, cpu=cpu, names=names)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alternations", type=int, default=100)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(work, (place, arguments.alternations), nprocs=2)  # type: ignore[attr-defined, no-untyped-call]
        times = np.load(Path(place) / "times.npz")
    rows = [["clock", "step", "alternations", "milliseconds (median)", "ratio", "low", "high"]]
    for clock in ("wall", "cpu"):
        for at, name in enumerate(times["names"]):
            base = 4 if str(name).endswith("× 4") else 0
            logs = np.log(times[clock][:, at] / times[clock][:, base])
            half = t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
            ratio = [math.exp(logs.mean() + sign * half) for sign in (0, -1, 1)]
            median = 1000 * float(np.median(times[clock][:, at]))
            rows.append([clock, str(name), str(len(logs)), f"{median:.2f}", *(f"{value:.4f}" for value in ratio)])
    for row in rows:
        print("  ".join(cell.ljust(14) for cell in row))
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
