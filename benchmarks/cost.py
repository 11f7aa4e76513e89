"""What a round costs, as a ratio to one plain centralised PyTorch pass over the same samples.

Ours and the centralised pass alternate in one process; the ratio of each pair is taken, and the median and the middle
half of these ratios are printed. The centralised pass is timed whole and in chunks; the ratio is to the faster way.

    python benchmarks/cost.py                      all workloads, FairMean
    python benchmarks/cost.py W1 W4 --method mean --threads 1
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairmean import method
from fairmean.data.federation import Federation
from fairmean.engine import Simulator, Training
from fairmean.experiments.study import spec
from fairmean.models import Dropout, build

WORKLOADS = {
    "W1": ("10 clients × 64 samples, MLP", 10, 640, "mlp"),
    "W2": ("10 clients, 60,000 samples, MLP", 10, 60_000, "mlp"),
    "W3": ("10 clients × 64 samples, CNN", 10, 640, "cnn"),
    "W4": ("1,000 clients × 60 samples, MLP", 1_000, 60_000, "mlp"),
    "W5": ("100,000 clients × 1 sample, MLP", 100_000, 100_000, "mlp"),
}
PAPER_SIZES = [6751, 7098, 6098, 3365, 5978, 8202, 2430, 6374, 7648, 6056]


def federation(clients: int, samples: int, shape: tuple[int, ...]) -> Federation:
    """Random inputs and labels: the cost does not depend on what is in them."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(samples, *shape, generator=random)
    y = torch.randint(0, 10, (samples,), generator=random)
    sizes = PAPER_SIZES if (clients, samples) == (10, 60_000) else [samples // clients] * clients
    offsets, nothing = np.cumsum([0, *sizes]), np.array([], dtype=np.int64)
    return Federation(
        x, y, y, offsets, np.ones(clients, bool), x[:1], y[:1], y[:1], np.zeros(clients + 1, int), 10, nothing, nothing
    )


def centralised(name: str, x: Tensor, y: Tensor, chunk: int) -> Callable[[], None]:
    """Forward and backward of the mean loss, chunk after chunk."""
    model = build(name, tuple(x.shape[1:]), 10, 0)
    for parent in list(model.modules()):
        for label, child in list(parent.named_children()):
            if isinstance(child, Dropout):  # the plain pass uses torch's own dropout
                setattr(parent, label, torch.nn.Dropout(child.p))

    def run() -> None:
        model.zero_grad()
        for a in range(0, len(x), chunk):
            loss = F.cross_entropy(model(x[a : a + chunk]), y[a : a + chunk], reduction="sum") / len(x)
            loss.backward()  # type: ignore[no-untyped-call]

    return run


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(key: str, text: str, budget: float) -> None:
    title, clients, samples, model = WORKLOADS[key]
    shape = (28, 28) if model == "mlp" else (3, 32, 32)
    fed = federation(clients, samples, shape)
    chosen = spec(text, "method")["method"]
    rule = method(chosen.pop("name"), **chosen)
    simulator = Simulator(fed, build(model, shape, 10, 0), rule, Training(lr=1e-4))
    chunks = sorted({samples, *(c for c in (64, 4096, 8192) if c < samples and (model == "cnn" or c > 64))})
    plain = {chunk: centralised(model, fed.x, fed.y, chunk) for chunk in chunks}
    times: dict[int, list[float]] = {chunk: [] for chunk in chunks}
    ours: list[float] = []
    for run in plain.values():
        run()
    simulator.step(0)
    start, t = time.perf_counter(), 0
    while t < 5 or (time.perf_counter() - start < budget and t < 400):
        t += 1
        ours.append(seconds(lambda: simulator.step(1)))
        for chunk in chunks:
            times[chunk].append(seconds(plain[chunk]))
    best = min(chunks, key=lambda c: statistics.median(times[c]))
    for chunk, label in ((samples, "whole"), (best, f"best, chunks of {best}")):
        ratios = [a / b for a, b in zip(ours, times[chunk], strict=True)]
        low, mid, high = statistics.quantiles(ratios, n=4)
        print(
            f"{key}  {title:34} {text:22} {statistics.median(ours) * 1e3:9.2f} ms   centralised ({label}) "
            f"{statistics.median(times[chunk]) * 1e3:9.2f} ms   ratio {mid:.3f}  [{low:.3f}, {high:.3f}]  n={t}",
            flush=True,
        )
        if best == samples:
            break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="W1 … W5")
    parser.add_argument("--method", default="fairmean", help="as in fairmean compare, e.g. fairmean:kappa=4")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20, help="time for each workload")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} threads; ratio: median [middle half] over alternating pairs")
    for key in arguments.workloads:
        measure(key, arguments.method, arguments.seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of the whole process, data and centralised passes included: {peak:.1f} GiB")


if __name__ == "__main__":
    main()
