"""Whether a change of the source costs time: rounds of two source trees, alternating, as ratios new/base.

In each cell each tree has a worker process of its own, idle while the other measures. A measurement is one round, or so
many short ones that it lasts; which tree goes first changes every repetition. A ratio is the geometric mean over pairs,
with the 95 % t interval of the logarithms. Two processes of one tree can differ by themselves, which the interval of
one pair of processes does not see: the repetitions are spread over several. Call again for a cell near the limit.

    git worktree add /tmp/base v0.1.0
    python benchmarks/against.py --base /tmp/base/src
    python benchmarks/against.py --base /tmp/base/src --workloads W1,W3 --methods fairmean,cwtm:f=2 --reps W1=50,W3=30
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKLOADS = {"W1": (10, 640, "mlp"), "W2": (10, 60_000, "mlp"), "W3": (10, 640, "cnn"), "W4": (1_000, 60_000, "mlp")}
PAPER_SIZES = [6751, 7098, 6098, 3365, 5978, 8202, 2430, 6374, 7648, 6056]  # of W2; all as in cost.py
METHODS = "fairmean,term,krum:f=2,cwtm:f=2"  # one on each rung
REPS = {"W1": 200, "W2": 10, "W3": 30, "W4": 10}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
# Freed memory stays with the process: else glibc gives it back every round or never, as its addresses happen to fall,
# and two processes of the same code differ by a fifth (W3: 86,000 page faults a round, or none).
KEEP = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_MAX_": "0"}
SHORTEST, ALLOWED = 0.04, 1.02  # seconds of a measurement; the ratio that is asked for


def tools(tree: str) -> Callable[[str, str], tuple[Callable[[], object], int]]:
    """What builds a cell: (one round of it, its rung). Every import of fairmean is here.

    It runs with both trees: where one has a name in another place, ``first`` takes it from there.
    """
    import numpy as np
    import torch

    import fairmean
    from fairmean import method
    from fairmean.engine import Simulator, Training
    from fairmean.models import build

    def first(name: str, *modules: str) -> Any:
        for module in modules:
            with contextlib.suppress(ImportError):
                return getattr(importlib.import_module(module), name)
        raise ImportError(name)

    Federation = first("Federation", "fairmean.data.federation", "fairmean.federation")  # where 0.2 has it, and 0.1
    spec = first("spec", "fairmean.experiments.study", "fairmean.runs.study", "fairmean.study")

    if not Path(fairmean.__file__).resolve().is_relative_to(tree):
        raise SystemExit(f"fairmean was imported from {fairmean.__file__}, not from {tree}")

    def cell(workload: str, text: str) -> tuple[Callable[[], object], int]:
        clients, samples, model = WORKLOADS[workload]
        shape = (28, 28) if model == "mlp" else (3, 32, 32)
        random = torch.Generator().manual_seed(0)
        x, y = torch.randn(samples, *shape, generator=random), torch.randint(0, 10, (samples,), generator=random)
        offsets = np.cumsum([0, *(PAPER_SIZES if workload == "W2" else [samples // clients] * clients)])
        none, everyone, tests = np.array([], dtype=np.int64), np.ones(clients, bool), np.zeros(clients + 1, int)
        fed = Federation(x, y, y, offsets, everyone, x[:1], y[:1], y[:1], tests, 10, none, none)
        chosen = spec(text, "method")["method"]
        rule = method(chosen.pop("name"), **chosen)
        simulator = Simulator(fed, build(model, shape, 10, 0), rule, Training(lr=1e-4))
        return lambda: simulator.step(1), int(rule.rung)

    return cell


def work(tree: str, workload: str, text: str, threads: int, clock: str) -> None:
    """A worker: says how long a round takes when warm; then each line asks for so many rounds, and a line answers."""
    import torch

    def timed(rounds: int) -> float:
        start = CLOCKS[clock]()
        for _ in range(rounds):
            step()
        return (CLOCKS[clock]() - start) / rounds

    replies, sys.stdout = sys.stdout, sys.stderr  # whatever the package prints is no answer
    torch.set_num_threads(threads)
    step, rung = tools(tree)(workload, text)
    warm, until = [timed(1), timed(1)], time.perf_counter() + 0.5
    while time.perf_counter() < until:
        warm.append(timed(1))
    print(json.dumps([min(warm), rung]), file=replies, flush=True)
    for line in sys.stdin:
        if (rounds := json.loads(line)) > 1:
            step()  # the other worker had the caches
        print(json.dumps(timed(rounds)), file=replies, flush=True)


def start(tree: Path, *rest: str | int) -> subprocess.Popen[str]:
    """A worker, in a session of its own: Ctrl-C reaches the parent alone, which ends it."""
    command = [sys.executable, __file__, "--worker", json.dumps([str(tree), *rest])]
    where, pipe = {**os.environ, **KEEP, "PYTHONPATH": str(tree)}, subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=where, start_new_session=True)


def answer(worker: subprocess.Popen[str], rounds: int | None = None) -> Any:
    assert worker.stdin is not None
    assert worker.stdout is not None
    if rounds is not None:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(rounds), file=worker.stdin, flush=True)
    if not (line := worker.stdout.readline()):
        raise SystemExit(f"the worker {worker.args!r} ended, status {worker.wait()}; its error is above")
    return json.loads(line)


def measure(
    trees: list[Path], workload: str, text: str, reps: int, threads: int, clock: str
) -> tuple[int, list[tuple[float, float]]]:
    """(rung, pairs of seconds a round: base and new)."""
    workers: list[subprocess.Popen[str]] = []
    pairs = []
    try:
        for tree in trees:
            workers.append(start(tree, workload, text, threads, clock))
        (base, rung), (new, _) = (answer(worker) for worker in workers)
        rounds = math.ceil(SHORTEST / min(base, new))
        for r in range(reps):
            print(f"\r\033[K{workload} {text}: {r + 1} of {reps}", end="", file=sys.stderr, flush=True)
            taken = {i: answer(workers[i], rounds) for i in ((0, 1), (1, 0))[r % 2]}
            pairs.append((taken[0], taken[1]))
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
        for worker in workers:
            worker.kill()
            worker.wait()
    return rung, pairs


def interval(mean: float, variance: float, freedom: float) -> tuple[str, float]:
    """The ratio with its interval, and the lower end, from the mean of log ratios and the variance of that mean."""
    from scipy.special import stdtrit  # type: ignore[import-untyped,import-not-found,unused-ignore]

    half = float(stdtrit(freedom, 0.975)) * math.sqrt(variance)
    low, high = math.exp(mean - half), math.exp(mean + half)
    return f"{math.exp(mean):.4f} [{low:.4f}, {high:.4f}]", low


def repetitions(text: str) -> dict[str, int]:
    """``30``, or ``W1=50,W4=5``."""
    each = [one.split("=") for one in text.split(",")] if "=" in text else [[key, text] for key in REPS]
    result = REPS | {key: int(count) for key, count in each}
    if min(result.values()) < 2 or result.keys() != REPS.keys():
        raise ValueError
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help="folder that holds the package fairmean, as another commit's src")
    parser.add_argument("--new", type=Path, default=Path(__file__).parent.parent / "src", help="this checkout's src")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--methods", default=METHODS, help=f"as in fairmean compare; {METHODS} unless given")
    parser.add_argument("--reps", type=repetitions, default=REPS, help="pairs in a cell, at least 2: 30, or W1=50,W4=5")
    parser.add_argument("--starts", type=int, default=3, help="pairs of workers, one after the other, in each cell")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu, where others use the machine too")
    parser.add_argument("--csv", type=Path, help="file for the raw pairs")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        return work(*given.worker)
    workloads, methods = given.workloads.split(","), given.methods.split(",")
    if unknown := set(workloads) - set(WORKLOADS):
        parser.error(f"--workloads: no {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    for name, tree in (("base", given.base), ("new", given.new)):
        if tree is None or not (tree / "fairmean" / "__init__.py").is_file():
            parser.error(f"--{name} {tree or 'is missing'}: give a folder that holds the package fairmean")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends the workers, as Ctrl-C does
    trees, cells, above = [given.base.resolve(), given.new.resolve()], [], []
    with given.csv.open("w", newline="") if given.csv else open(os.devnull, "w") as file:
        raw = csv.writer(file)
        raw.writerow(["workload", "method", "repetition", "base_seconds", "new_seconds"])
        print(f"{given.threads} threads, {given.clock} clock; ms a round: medians; ratio new/base [95 % interval]")
        print(f"{'':4}{'method':22} rung    base ms     new ms  {'ratio':24}    n")
        for workload, text in itertools.product(workloads, methods):
            pairs: list[tuple[float, float]] = []
            for i in reversed(range(min(given.starts, given.reps[workload]))):
                share = (given.reps[workload] - len(pairs)) // (i + 1)
                rung, more = measure(trees, workload, text, share, given.threads, given.clock)
                pairs += more
            raw.writerows([workload, text, r, *pair] for r, pair in enumerate(pairs))
            logs = [math.log(new / base) for base, new in pairs]
            cells.append((statistics.mean(logs), statistics.variance(logs) / len(logs), len(logs) - 1))
            ratio, low = interval(*cells[-1])
            above += [f"{workload} {text}"] if low > ALLOWED else []
            times = " ".join(f"{statistics.median(one) * 1e3:10.2f}" for one in zip(*pairs, strict=True))
            print(f"{workload:4}{text:22} {rung:4} {times}  {ratio} {len(logs):4}", flush=True)
    variances = sum(v for _, v, _ in cells)  # the cells are given: only what varies within them is chance
    freedom = variances**2 / sum(v**2 / f for _, v, f in cells)  # Welch and Satterthwaite
    ratio, _ = interval(statistics.mean(m for m, _, _ in cells), variances / len(cells) ** 2, freedom)
    print(f"geometric mean of ratios {ratio} (≤ {ALLOWED} asked)")
    print(f"cells whose interval lies wholly above {ALLOWED}: {', '.join(above) or 'none'}")


if __name__ == "__main__":
    main()
