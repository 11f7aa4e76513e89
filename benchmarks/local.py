"""What a round of local training costs, as a ratio to the centralised passes over the same samples: W5 … W8.

Ours and the centralised passes alternate in one process. Each repetition gives a ratio, and the median and the middle
half of the ratios are printed. The centralised passes are one for each local step, over the samples of all clients of
the round, in their fastest chunking. W8 is also run with 1,000 clients in the place of 100,000, each in a process of
its own: memory is what the process needs at most beyond its data, and time is that of a round.

    python benchmarks/local.py                      all workloads, mean and one thread
    python benchmarks/local.py W5 W6 --method fairmean --threads 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

from local_workloads import LOCAL, TOKENS, Workload, samples  # noqa: E402

from fairmean import method  # noqa: E402
from fairmean.data.federation import Federation  # noqa: E402
from fairmean.data.tasks import TASKS  # noqa: E402
from fairmean.engine import Simulator, Training  # noqa: E402
from fairmean.models import Dropout, build  # noqa: E402
from fairmean.rules.objectives import NextToken  # noqa: E402

LR = 1e-4


def federation(workload: Workload, clients: int | None = None) -> Federation:
    """The clients of a workload; the test samples are a few of the training samples."""
    clients = clients or workload.clients
    x, y, rows = samples(workload, clients)
    offsets, nothing = np.arange(clients + 1) * workload.rows, np.array([], dtype=np.int64)
    tokens = workload.model in ("lstm", "transformer")
    labels = y if rows is None else y[torch.from_numpy(rows)]
    return Federation(
        x, labels, labels, offsets, np.ones(clients, bool), x[:clients], y[:clients], y[:clients],
        np.minimum(np.arange(clients + 1), len(x)), TOKENS if tokens else 10, nothing, nothing,
        task=TASKS["next-token" if tokens else "classification"], vocabulary=TOKENS if tokens else None,
        places=None if rows is None else torch.from_numpy(rows.astype(np.int32)),
    )  # fmt: skip


def model_of(workload: Workload) -> torch.nn.Module:
    if workload.model in ("lstm", "transformer"):
        return build(workload.model, workload.shape, TOKENS, 0, task="next-token", vocabulary=TOKENS)
    return build(workload.model, workload.shape, 10, 0)


def simulator_of(workload: Workload, fed: Federation, rule: str) -> Simulator:
    training = Training(
        lr=LR, rounds=10_000, batch=workload.batch, local_epochs=workload.epochs,
        participation=workload.per_round / fed.clients,
    )  # fmt: skip
    built = method(rule)
    if fed.task.name == "next-token":
        built = replace(built, objective=NextToken())
    return Simulator(fed, model_of(workload), built, training)


def centralised(workload: Workload, fed: Federation, chunk: int) -> Callable[[], None]:
    """As many passes as a client takes steps, each over the samples of all clients of a round."""
    model = model_of(workload)
    for parent in list(model.modules()):
        for label, child in list(parent.named_children()):
            if isinstance(child, Dropout):  # the plain pass uses torch's own dropout
                setattr(parent, label, torch.nn.Dropout(child.p))
    count = workload.per_round * workload.batch
    x, y = fed.x[:count], fed.y[:count]

    def run() -> None:
        for _ in range(workload.steps):
            model.zero_grad()
            for a in range(0, count, chunk):
                out: Tensor = model(x[a : a + chunk])
                target = y[a : a + chunk]
                loss = F.cross_entropy(out.flatten(0, -2), target.flatten(), reduction="sum") / y.numel()
                loss.backward()  # type: ignore[no-untyped-call]

    return run


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(key: str, rule: str, budget: float) -> None:
    workload = LOCAL[key]
    fed = federation(workload)
    simulator = simulator_of(workload, fed, rule)
    count = workload.per_round * workload.batch
    chunks = sorted({c for c in (32, 64, 160, 320, 1000) if c < count} | {count})
    plain = {chunk: centralised(workload, fed, chunk) for chunk in chunks}
    for t in range(2):
        simulator.step(t)
    once = {chunk: seconds(run) for chunk, run in plain.items()}
    likely = sorted(chunks, key=lambda c: once[c])[:2]
    ours: list[float] = []
    times: dict[int, list[float]] = {chunk: [] for chunk in likely}
    start, t = time.perf_counter(), 2
    while t < 7 or time.perf_counter() - start < budget:
        ours.append(seconds(lambda t=t: simulator.step(t)))  # type: ignore[misc]
        for chunk in likely:
            times[chunk].append(seconds(plain[chunk]))
        t += 1
    best = min(likely, key=lambda c: statistics.median(times[c]))
    ratios = [a / b for a, b in zip(ours, times[best], strict=True)]
    low, mid, high = statistics.quantiles(ratios, n=4)
    print(
        f"{key:15} {rule:10} {statistics.median(ours) * 1e3:9.2f} ms   centralised (chunks of {best}) "
        f"{statistics.median(times[best]) * 1e3:9.2f} ms   ratio {mid:.3f}  [{low:.3f}, {high:.3f}]  n={len(ratios)}",
        flush=True,
    )


def peak_mib() -> float:
    """The most memory that this process had since the peak was last reset, in MiB (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def many(clients: int, rule: str, threads: int) -> None:
    """W8 with so many clients; one line of JSON."""
    torch.set_num_threads(threads)
    workload = LOCAL["W8"]
    fed = federation(workload, clients)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on (Linux)
    before = peak_mib()
    simulator = Simulator(
        fed, model_of(workload), method(rule),
        Training(lr=LR, batch=workload.batch, local_epochs=workload.epochs, participation=workload.per_round / clients),
        evaluated=workload.evaluated,
    )  # fmt: skip
    times, evaluations = [], []
    for t in range(60):
        times.append(seconds(lambda t=t: simulator.step(t)))  # type: ignore[misc]
        if t % 10 == 0:
            evaluations.append(seconds(simulator.evaluate))
    peak = peak_mib()
    found = {"clients": clients, "mib": peak - before, "ms": statistics.median(times[5:]) * 1e3,
             "evaluation_ms": statistics.median(evaluations) * 1e3, "process_mib": peak}  # fmt: skip
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(LOCAL), metavar="W5 … W8")
    parser.add_argument("--method", default="mean")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20, help="time for each workload")
    parser.add_argument("--many", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.many:
        many(arguments.many, arguments.method, arguments.threads)
        return
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} threads; ratio: median [middle half] over alternating pairs")
    for key in arguments.workloads:
        measure(key, arguments.method, arguments.seconds)
        if LOCAL[key].shared:
            for clients in (1_000, 100_000):
                command = [sys.executable, __file__, "--many", str(clients), "--method", arguments.method]
                done = subprocess.run(
                    [*command, "--threads", str(arguments.threads)], stdout=subprocess.PIPE, check=True
                )
                print(f"{key} alone in a process: {done.stdout.decode().strip()}", flush=True)


if __name__ == "__main__":
    main()
