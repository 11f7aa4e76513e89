"""What ``theory=true`` costs: watched rounds against plain ones, alternating, as ratios.

    python benchmarks/monitor.py                   10 clients, 2 of them poisoned: 60,000 samples, and 64 each

Jacobians (about twenty times a run) and curvature (every hundred rounds or more) are timed on their own.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

import numpy as np
import torch

from cost import WORKLOADS, federation, seconds
from fairmean import method
from fairmean.engine import Simulator, Training
from fairmean.models import build
from fairmean.theory.measure.monitor import Monitor


def measure(key: str, repetitions: int) -> None:
    title, clients, samples, model = WORKLOADS[key]
    shape = (28, 28) if model == "mlp" else (3, 32, 32)
    fed = federation(clients, samples, shape)
    fed = replace(fed, clean_y=(fed.y + 1) % 10, regular=np.arange(clients) < clients - max(1, clients // 5))
    plain, watched = (
        Simulator(fed, build(model, shape, 10, 0), method("fairmean"), Training(lr=1e-4)) for _ in range(2)
    )
    watched.watch(Monitor, 10**6)
    for simulator in (plain, watched):
        simulator.step(1)
        simulator.step(2)
    pairs = [(seconds(lambda: watched.step(1)), seconds(lambda: plain.step(1))) for _ in range(repetitions)]
    assert isinstance(watched.monitor, Monitor)
    jacobian = seconds(watched.monitor.jacobian)
    batch = watched.feed(1, watched.participants(1))
    gradients = watched.monitor.gradients(batch, watched.context(1, batch))[0]
    regular = torch.from_numpy(fed.regular)
    curvature = seconds(lambda: watched.monitor._curvature(batch, gradients, regular))  # type: ignore[union-attr]
    ratios = [a / b for a, b in pairs]
    low, mid, high = statistics.quantiles(ratios, n=4)
    each = statistics.median(b for _, b in pairs)
    print(
        f"{key}  {title:34} plain {each * 1e3:8.2f} ms   watched {mid:.2f} [{low:.2f}, {high:.2f}] times that   "
        f"a look at Jacobians {jacobian / each:.1f} rounds, at curvature {curvature / each:.1f}   n={repetitions}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["W2", "W1"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(
        f"torch {torch.__version__}, {arguments.threads} threads; median [middle half] of ratios of alternating rounds"
    )
    for key in arguments.workloads:
        measure(key, arguments.repetitions * (1 if WORKLOADS[key][2] > 10_000 else 10))


if __name__ == "__main__":
    main()
