"""Ours against five other simulators and against plain training, on a CPU, doing the same rounds.

    make bench                                    the environments, everything below, the table and the plot
    python benchmarks/bench.py table              W1 … W4, 1 and 2 threads, every peer
    python benchmarks/bench.py sweep              cost against clients, parameters and batch size
    python benchmarks/bench.py report             table.md and the plot from the stored CSV files

A peer is timed only after its update, on the very workload, was found equal to a plain PyTorch computation. Ours, the
peers and the centralised pass alternate; each repetition gives a ratio to the centralised pass of that repetition, and
the median and the middle half of these ratios are reported. (Flower starts anew for every simulation, so its rounds
come in one block.) The centralised pass is one forward and backward over all samples, in its fastest chunking.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

import protocol  # noqa: E402
from check import difference  # noqa: E402

from cost import centralised, federation  # noqa: E402
from fairmean import method  # noqa: E402
from fairmean.data.federation import Federation  # noqa: E402
from fairmean.engine import Simulator, Training  # noqa: E402
from fairmean.models import Dropout, build  # noqa: E402

RESULTS = HERE.parent / "results"
TABLE = {
    "W1": ("10 clients × 64, MLP", 10, 640, "mlp"),
    "W2": ("10 clients, 60,000 samples, MLP", 10, 60_000, "mlp"),
    "W3": ("10 clients × 64, CNN", 10, 640, "cnn"),
    "W4": ("1,000 clients × 60, MLP", 1_000, 60_000, "mlp"),
}
OURS = ("mean", "fairmean")
NAMES = {"byzfl": "ByzFL", "fedlab": "FedLab", "flower": "Flower", "ours fairmean": "ours (FairMean)"}
ENOUGH = 1e-3  # relative error of an update, at most
SWEEPS = {
    "clients": [10, 100, 1_000, 10_000, 60_000, 100_000],
    "width": [50, 200, 800],
    "batch": [16, 64, 256, 1024],
}

Rows = list[dict[str, Any]]


def seconds(run: Callable[[], object], count: int) -> float:
    """Mean time of ``count`` calls."""
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def model_of(name: str) -> torch.nn.Module:
    """Ours for the names it knows; the peers' plain one for other widths."""
    shape = (3, 32, 32) if name == "cnn" else (28, 28)
    if name in ("mlp", "cnn"):
        return build(name, shape, 10, 0)
    torch.manual_seed(0)
    return protocol.network(name)


def write_task(path: Path, fed: Federation, name: str, lr: float, dropout: int, rule: str = "mean", f: int = 0) -> None:
    parameters = [p.detach() for p in model_of(name).parameters()]
    protocol.save_task(path, fed.x, fed.y, fed.offsets, parameters, name, lr, rule=rule, f=f, dropout=dropout)


def checked(peer: str, fed: Federation, name: str, folder: Path, threads: int, rule: str = "mean", f: int = 0) -> float:
    """The peer's error on this workload, dropout off."""
    path, after = folder / "check.npz", folder / "after.npz"
    write_task(path, fed, name, 10.0, 0, rule, f)
    with protocol.Peer(peer, path, threads) as child:
        child.update(after)
    error = difference(protocol.load_task(path), after)
    if not error <= ENOUGH:
        raise SystemExit(f"{peer} computes another update here (relative error {error:.1e}): not timed")
    return error


def ours_checked(fed: Federation, name: str, folder: Path, rule: str = "mean", f: int = 0) -> float:
    """The same check of our own update."""
    path, after = folder / "check.npz", folder / "ours.npz"
    write_task(path, fed, name, 10.0, 0, rule, f)
    task = protocol.load_task(path)
    options = {"f": f} if rule == "cwtm" else {}
    model = model_of(name)
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    simulator = Simulator(fed, model, method(rule, **options), Training(lr=10.0))
    simulator.step(0)
    np.savez(after, **protocol.numbered(p.detach() for p in simulator.net.model.parameters()))
    return difference(task, after)


def compared(
    fed: Federation,
    name: str,
    threads: int,
    peers: list[str],
    budget: float,
    known: dict[str, float] | None = None,
    rule: str = "mean",
    f: int = 0,
    flower_rounds: int = 0,
) -> Rows:
    """Alternating times of everybody on one workload."""
    torch.set_num_threads(threads)
    samples, rows = len(fed.x), []
    chunks = sorted({samples, *(c for c in (64, 4096, 8192) if c < samples and (name == "cnn" or c > 64))})
    plain_name = name if name in ("mlp", "cnn") else "mlp"
    with tempfile.TemporaryDirectory() as at, ExitStack() as children:
        folder = Path(at)
        errors = {} if known is None else known
        if "ours" not in errors:
            errors["ours"] = ours_checked(fed, name, folder, rule, f)
            if not errors["ours"] <= ENOUGH:
                raise SystemExit(f"ours computes another update (relative error {errors['ours']:.1e})")
        path = folder / "task.npz"
        write_task(path, fed, name, 1e-3, 1, rule, f)
        systems: dict[str, Callable[[int], float]] = {}
        for label in OURS if rule == "mean" else (rule,):
            options = {"f": f} if rule == "cwtm" else {}
            simulator = Simulator(fed, model_of(name), method(label, **options), Training(lr=1e-3))
            systems[f"ours {label}"] = lambda k, s=simulator: seconds(lambda: s.step(1), k)  # type: ignore[misc]
        versions = {"centralised": str(torch.__version__)}
        for peer in peers:
            if peer not in errors:
                print(f"  checking {peer} …", flush=True)
                errors[peer] = checked(peer, fed, name, folder, threads, rule, f)
            child = children.enter_context(protocol.Peer(peer, path, threads))
            versions[peer] = child.version
            systems[peer] = lambda k, c=child: statistics.fmean(c.time(k))  # type: ignore[misc]
        network = model_of(name)
        for chunk in chunks:
            run = centralised(plain_name, fed.x, fed.y, chunk) if plain_name == name else whole(network, fed)
            systems[f"centralised {chunk}"] = lambda k, r=run: seconds(r, k)  # type: ignore[misc]
        times: dict[str, list[float]] = {label: [] for label in systems}
        count = {label: max(1, min(30, int(0.15 / max(system(1), 1e-6)))) for label, system in systems.items()}
        start = time.monotonic()
        while len(times[next(iter(times))]) < 5 or time.monotonic() - start < budget:
            for label, system in systems.items():
                times[label].append(system(count[label]))
        best = min((c for c in times if c.startswith("centralised")), key=lambda c: statistics.median(times[c]))
        times["centralised"] = times[best]
        if flower_rounds:
            try:
                if "flower" not in errors:
                    errors["flower"] = checked("flower", fed, name, folder, threads, rule, f)
                child = children.enter_context(protocol.Peer("flower", path, threads, timeout=900))
                times["flower"] = child.time(flower_rounds)
                versions["flower"] = child.version
            except RuntimeError as failure:
                print(f"  flower: {str(failure).splitlines()[0]}", flush=True)
    for label, mine in times.items():
        if label.startswith("centralised "):
            continue
        base = times["centralised"]
        each = [a / b for a, b in zip(mine, base, strict=False)] if label != "flower" else []
        ratios = each or [a / statistics.median(base) for a in mine]
        low, mid, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        error = errors.get("ours" if label in ("ours mean", f"ours {rule}") else label, float("nan"))
        row = {
            "system": label, "version": versions.get(label, ""), "threads": threads, "n": len(ratios),
            "ms": statistics.median(mine) * 1e3, "ratio": mid, "low": low, "high": high, "update_error": error,
        }  # fmt: skip
        rows.append(row)
        print(
            f"  {label:16} {row['ms']:10.2f} ms  ratio {mid:7.3f} [{low:.3f}, {high:.3f}]  n={row['n']}"
            f"  update {error:.0e}",
            flush=True,
        )
    return rows


def whole(network: torch.nn.Module, fed: Federation) -> Callable[[], None]:
    """Plain training of a model that is not one of the two."""

    def run() -> None:
        network.zero_grad()
        torch.nn.functional.cross_entropy(network(fed.x), fed.y).backward()  # type: ignore[no-untyped-call]

    return run


def table(budget: float, only: list[str], peers: list[str]) -> Rows:
    """W1 … W4 at one and two threads; at W4 also the trimmed mean, which ByzFL has."""
    rows: Rows = []
    for key, (title, clients, samples, name) in TABLE.items():
        if only and key not in only:
            continue
        fed = federation(clients, samples, (28, 28) if name == "mlp" else (3, 32, 32))
        errors: dict[str, float] = {}
        for threads in (2, 1):
            print(f"{key} {title}, {threads} threads", flush=True)
            big = clients >= 1_000
            flower = (2 if big else 4) if "flower" in peers and not (big and threads == 1) else 0
            others = [p for p in peers if p != "flower"]
            found = compared(fed, name, threads, others, budget, errors, flower_rounds=flower)
            rows += [{"workload": key, "rule": "mean", **row} for row in found]
            if big and threads == 1 and "byzfl" in peers:
                print(f"{key} trimmed mean, f = 100", flush=True)
                found = compared(fed, name, threads, ["byzfl"], budget, rule="cwtm", f=100)
                rows += [{"workload": key, "rule": "cwtm f=100", **row} for row in found]
    return rows


def one(kind: str, value: int, budget: float, peers: list[str]) -> None:
    """One point of a sweep, in a process of its own, so that its peak memory is its own; JSON on the last line."""
    clients, samples, name = {
        "clients": (value, max(60_000, value), "mlp"),
        "width": (10, 640, f"mlp:{value}"),
        "batch": (10, 10 * value, "mlp"),
    }[kind]
    fed = federation(clients, samples, (28, 28))
    rows = compared(fed, name, 1, peers, budget)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps([{"sweep": kind, "value": value, "samples": samples, **row, "peak_gib": peak} for row in rows]))


def sweep(budget: float, only: list[str], peers: list[str]) -> Rows:
    rows: Rows = []
    for kind, values in SWEEPS.items():
        for value in values:
            if only and f"{kind}={value}" not in only:
                continue
            heavy = kind == "clients" and value > 1_000
            fit = [p for p in peers if p != "flower" and (not heavy or (p == "pfl" and value <= 10_000))]
            print(f"{kind} = {value}", flush=True)
            command = [sys.executable, __file__, "one", "--point", kind, str(value), "--seconds", str(budget)]
            done = subprocess.run([*command, "--peers", ",".join(fit)], capture_output=True, text=True, check=False)
            if done.returncode:
                print(done.stdout[-500:], done.stderr[-1500:])
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            rows += found
            for row in found:
                print(f"  {row['system']:16} {row['ms']:10.2f} ms  ratio {row['ratio']:.3f}", flush=True)
            print(f"  peak memory of this process {found[0]['peak_gib']:.2f} GiB", flush=True)
    return rows


def report() -> None:
    """The stored rows as a table in Markdown and one plot."""
    rows, sweeps = stored("bench-cpu.csv"), stored("bench-cpu-sweep.csv")
    systems = ["ours mean", "ours fairmean", *protocol.PEERS]
    lines = ["| workload | threads | centralised | " + " | ".join(systems) + " |", "|---" * (len(systems) + 3) + "|"]
    cells = {(r["workload"], r["rule"], r["threads"], r["system"]): r for r in rows}
    for key, rule, threads in dict.fromkeys((r["workload"], r["rule"], r["threads"]) for r in rows):
        if rule != "mean":
            continue
        base = cells[key, rule, threads, "centralised"]
        line = [f"{key}: {TABLE[key][0]}", threads, f"{float(base['ms']):.3g} ms"]
        for system in systems:
            r = cells.get((key, rule, threads, system))
            line.append(
                "–" if r is None else f"{float(r['ratio']):.2f} [{float(r['low']):.2f}, {float(r['high']):.2f}]"
            )
        lines.append("| " + " | ".join(line) + " |")
    (RESULTS / "bench-cpu.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    for r in rows:
        if r["rule"] != "mean":
            print(
                f"{r['workload']} {r['rule']}: {r['system']} {float(r['ratio']):.2f} [{r['low'][:5]}, {r['high'][:5]}]"
            )
    plot(sweeps)


def plot(rows: Rows) -> None:
    """Ratio to the centralised pass against each swept quantity."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    titles = {
        "clients": "clients (60,000 samples in all;\n100,000 at 100,000 clients)",
        "width": "hidden units per layer (10 clients × 64 samples)",
        "batch": "samples per client (10 clients)",
    }
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), sharey=True)
    for axis, kind in zip(axes, SWEEPS, strict=True):
        for system in ["ours fairmean", *protocol.PEERS]:
            mine = sorted((int(r["value"]), r) for r in rows if (r["sweep"], r["system"]) == (kind, system))
            if not mine:
                continue
            x, y = [v for v, _ in mine], [float(r["ratio"]) for _, r in mine]
            spread = [[b - float(r["low"]) for b, (_, r) in zip(y, mine, strict=True)],
                      [float(r["high"]) - b for b, (_, r) in zip(y, mine, strict=True)]]  # fmt: skip
            bold = {"linewidth": 3, "color": "black"} if system.startswith("ours") else {"linewidth": 1.2}
            axis.errorbar(
                x, y, yerr=np.maximum(spread, 0), marker="o", markersize=4, label=NAMES.get(system, system), **bold
            )
        axis.axhline(1, color="grey", linewidth=0.8, linestyle=":")
        axis.set(xscale="log", yscale="log", xlabel=titles[kind])
        axis.set_xticks(SWEEPS[kind], [f"{v:,}" if v != 60_000 else "" for v in SWEEPS[kind]], fontsize=8)
        axis.set_yticks([0.5, 1, 2, 5, 10, 15], ["0.5", "1", "2", "5", "10", "15"])
        axis.minorticks_off()
    axes[0].set_ylabel("time of a round / one centralised pass")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(RESULTS.parent / "docs" / "performance" / "bench-cpu.png", dpi=130)


def stored(name: str) -> Rows:
    """Rows of an earlier call."""
    file = RESULTS / name
    return list(csv.DictReader(file.read_text().splitlines())) if file.exists() else []


def store(name: str, rows: Rows) -> None:
    with open(RESULTS / name, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("table", "sweep", "report", "one"))
    parser.add_argument("workloads", nargs="*", help="of the table: W1 … W4; of the sweep: clients=10 …")
    parser.add_argument("--seconds", type=float, default=15, help="time for each workload, at least five repetitions")
    there = [p for p in protocol.PEERS if (HERE / "peers" / ".venvs" / p / "stamp").exists()]
    parser.add_argument("--peers", default=",".join(there), help="of those with an environment: %(default)s")
    parser.add_argument("--point", nargs=2, default=("clients", "10"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    peers = [p for p in arguments.peers.split(",") if p]
    print(f"torch {torch.__version__}, {os.cpu_count()} cores", flush=True)
    if arguments.part == "table":
        new = table(arguments.seconds, arguments.workloads, peers)
        kept = [
            row for row in stored("bench-cpu.csv") if arguments.workloads and row["workload"] not in arguments.workloads
        ]
        store("bench-cpu.csv", sorted([*kept, *new], key=lambda row: row["workload"]))
    elif arguments.part == "sweep":
        new = sweep(arguments.seconds, arguments.workloads, peers)
        kept = [r for r in stored("bench-cpu-sweep.csv") if f"{r['sweep']}={r['value']}" in arguments.workloads]
        old = [r for r in stored("bench-cpu-sweep.csv") if arguments.workloads and r not in kept]
        store("bench-cpu-sweep.csv", sorted([*old, *new], key=lambda r: (r["sweep"], int(r["value"]))))
    elif arguments.part == "one":
        one(arguments.point[0], int(arguments.point[1]), arguments.seconds, peers)
    if arguments.part == "report":
        report()


if __name__ == "__main__":
    main()
