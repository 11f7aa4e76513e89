"""Local training: ours against five other simulators and against plain training, on a CPU, doing the same rounds.

    make bench                                    the environments and everything below, after W1 … W4
    python benchmarks/bench_local.py table              W5 … W8 at one thread and at two, every peer that can
    python benchmarks/bench_local.py growth             W8: time and memory against the number of all clients
    python benchmarks/bench_local.py report             the tables in Markdown and the plot from the stored CSV files

A round: some of the clients are drawn, each takes its SGD steps from the server's model, and the server's new model is
the mean of theirs. A system is timed only after its update, on the very workload, was found equal to a plain PyTorch
computation for the clients that it drew. All but Flower alternate, in short blocks; each repetition gives a ratio to
the plain pass of that repetition: forward and backward, without clients and without steps, over as many samples as all
clients of a round go through, in its fastest chunking. Flower starts anew for every simulation, so its rounds come in
one block, with plain passes before and after it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

import protocol  # noqa: E402
from check import difference  # noqa: E402
from local_workloads import LOCAL, Workload, samples  # noqa: E402
from models import Loss  # noqa: E402

from bench import ENOUGH, NAMES, RESULTS, Rows, store, stored  # noqa: E402
from fairmean.engine.heap import keep_freed_memory  # noqa: E402

OURS = ("ours:mean", "ours:fairmean")
GROWTH = (1_000, 10_000, 100_000)
UNABLE = {("byzfl", "W8"): "keeps a model for every client"}
BLOCK = 0.2  # seconds
SPREAD = ("ratio", "low", "high")


def write(path: Path, work: Workload, lr: float, dropout: int) -> int:
    """The workload as a task file; how many bytes its data has."""
    torch.manual_seed(0)
    parameters = [p.detach() for p in protocol.network(work.model).parameters()]
    x, y, rows = samples(work)
    offsets = np.arange(work.clients + 1) * work.rows
    how = {"dropout": dropout, "epochs": work.epochs, "batch": work.batch, "cohort": work.per_round}
    protocol.save_task(
        path, x, y, offsets, parameters, work.model, lr, **how, **({} if rows is None else {"rows": rows})
    )
    return int(offsets.nbytes + x.nbytes + y.nbytes + (0 if rows is None else rows.nbytes))


def checked(system: str, path: Path, folder: Path) -> float:
    """The error of the system's update, where every client counts the same."""
    after = folder / "after.npz"
    with protocol.Peer(system, path, 1) as child:
        clients = child.update(after)
    error = difference(protocol.load_task(path), after, clients)
    if not error <= ENOUGH:
        raise RuntimeError(f"{system} computes another update here (relative error {error:.1e}): not timed")
    return error


class Pass:
    """One forward and backward pass for each local step, over the batches of all clients of a round, without a step.

    As there are no steps, several passes may be one of more samples; a smaller chunk adds its gradient to the others'.
    """

    def __init__(self, path: Path, work: Workload) -> None:
        keep_freed_memory()  # as ours does: the plain pass is faster with it
        task = protocol.load_task(path)
        clients = [task.clients[i] for i in range(work.per_round)]
        x, self.y = (torch.cat(parts) for parts in zip(*clients, strict=True))
        self.x = {"": x} if x.is_contiguous() else {"": x, " default order": x.contiguous()}  # images: channels last
        self.model, self.epochs, self.loss = task.build(), work.epochs, Loss()
        self.together = work.per_round * work.batch

    def seconds(self, chunk: int, order: str = "") -> float:
        """One epoch is timed; the others would be the same."""
        x, start = self.x[order], protocol.clock()
        for a in range(0, len(self.y), chunk):
            if a % self.together == 0:
                self.model.zero_grad()
            self.loss(self.model(x[a : a + chunk]), self.y[a : a + chunk]).backward()
        return self.epochs * (protocol.clock() - start)

    def fastest(self) -> list[int]:
        """The two chunk sizes that look fastest."""
        n = len(self.y)
        sizes = [c for c in (32, 64, 160, self.together) if c < n] + [n]
        times = {size: min(self.seconds(size) for _ in range(2)) for size in sizes}
        return sorted(sizes, key=times.__getitem__)[:2]


def compared(key: str, threads: int, peers: list[str], budget: float, least: int, errors: dict[str, float]) -> Rows:
    """Alternating times of everybody on one workload."""
    work = LOCAL[key]
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as at, ExitStack() as children:
        folder = Path(at)
        check, path = folder / "check.npz", folder / "task.npz"
        write(path, work, 1e-3, 1)
        once = replace(work, epochs=1) if work.model == "cnn" else work  # five epochs of it take a minute a system
        # in many larger steps, one ReLU that rounding switches changes the update by more than what is enough
        step = 1.0 if work.model in ("lstm", "transformer") else 0.01 if work.steps > 10 else 0.1
        write(check, once, step, 0)
        ours = OURS if work.model == "mlp" else OURS[:1]
        systems: dict[str, Callable[[int], float]] = {}
        versions = {"centralised": str(torch.__version__)}
        open_peers: dict[str, protocol.Peer] = {}
        for system in (*ours, *(p for p in peers if (p, key) not in UNABLE)):
            try:
                if system not in errors:
                    errors[system] = float("nan") if system == "ours:fairmean" else checked(system, check, folder)
                child = children.enter_context(protocol.Peer(system, path, threads))
            except RuntimeError as failure:
                print(f"  {system}: {str(failure)[:400]}", flush=True)
                continue
            versions[system], open_peers[system] = child.version, child
            if system != "flower":
                systems[system] = lambda k, c=child: statistics.fmean(c.time(k))  # type: ignore[misc]
        plain = Pass(path, work)
        chunks = plain.fastest()
        for chunk in chunks:
            systems[f"centralised {chunk}"] = lambda k, c=chunk: statistics.fmean(plain.seconds(c) for _ in range(k))  # type: ignore[misc]
        for order in filter(None, plain.x):
            systems[f"plain{order}"] = lambda _, o=order: plain.seconds(chunks[0], o)  # type: ignore[misc]
            versions[f"plain{order}"] = versions["centralised"]
        count = {label: max(1, min(30, int(BLOCK / max(run(1), 1e-6)))) for label, run in systems.items()}
        times: dict[str, list[float]] = {label: [] for label in systems}
        load, start = [os.getloadavg()[0]], time.monotonic()
        while len(times[next(iter(times))]) < least or time.monotonic() - start < budget:
            for label, run in systems.items():
                times[label].append(run(count[label]))
            load.append(os.getloadavg()[0])
        best = min((c for c in times if c.startswith("centralised")), key=lambda c: statistics.median(times[c]))
        times["centralised"] = times[best]
        ratios = {
            label: [a / b for a, b in zip(own, times["centralised"], strict=True)]
            for label, own in times.items()
            if not label.startswith("centralised ")
        }
        if "flower" in open_peers:
            again = [systems[best](count[best]) for _ in range(3)]
            try:
                times["flower"] = open_peers["flower"].time(2 if work.model == "cnn" else 4)
                again += [systems[best](count[best]) for _ in range(3)]
                ratios["flower"] = [own / statistics.median(again) for own in times["flower"]]
            except RuntimeError as failure:
                print(f"  flower: {str(failure)[:400]}", flush=True)
    rows = []
    for label, own in ratios.items():
        low, middle, high = statistics.quantiles(own, n=4)
        row = {
            "workload": key, "system": label, "version": versions[label], "threads": threads, "n": len(own),
            "ms": statistics.median(times[label]) * 1e3, "ratio": middle, "low": low, "high": high,
            "update_error": errors.get(label, float("nan")), "chunk": best.split()[1], "load": statistics.median(load),
            "clock": os.environ.get("CLOCK", "wall"),
        }  # fmt: skip
        rows.append(row)
        print(
            f"  {label:16} {row['ms']:10.2f} ms  ratio {middle:7.3f} [{low:.3f}, {high:.3f}]  n={row['n']}"
            f"  update {row['update_error']:.0e}  load {row['load']:.1f}",
            flush=True,
        )
    return rows


def table(budget: float, least: int, only: list[str], peers: list[str], threads: list[int]) -> Rows:
    rows: Rows = []
    for key, work in LOCAL.items():
        if only and key not in only:
            continue
        errors: dict[str, float] = {}
        for number in threads:
            print(f"{key} {work.title}, threads: {number}", flush=True)
            rows += compared(key, number, peers, budget, least, errors)
    return rows


def growth(budget: float, peers: list[str]) -> Rows:
    """W8 with fewer and with more clients: one process each, which alternate; time of a round and peak memory."""
    rows: Rows = []
    work = LOCAL["W8"]
    with tempfile.TemporaryDirectory() as at:
        paths = {n: Path(at, f"{n}.npz") for n in GROWTH}
        data = {n: write(path, replace(work, clients=n), 1e-3, 1) for n, path in paths.items()}
        for system in ("ours:mean", *(p for p in peers if (p, "W8") not in UNABLE)):
            children: dict[int, protocol.Peer] = {}
            times: dict[int, list[float]] = {n: [] for n in GROWTH}
            with ExitStack() as stack:
                for n in GROWTH:
                    try:
                        children[n] = stack.enter_context(protocol.Peer(system, paths[n], 1, timeout=120))
                        children[n].time(1)
                    except RuntimeError as failure:
                        print(f"  {system} {n}: {str(failure)[-300:]}", flush=True)
                        children.pop(n, None)
                start = time.monotonic()
                while children and (min(len(times[n]) for n in children) < 5 or time.monotonic() - start < budget):
                    for n, child in children.items():
                        times[n] += [statistics.fmean(child.time(3))]
                for n, child in children.items():
                    low, middle, high = statistics.quantiles(times[n], n=4)
                    row = {
                        "system": system, "version": child.version, "clients": n, "n": len(times[n]),
                        "ms": middle * 1e3, "low": low * 1e3, "high": high * 1e3,
                        "peak_gib": child.memory() / 2**30, "data_gib": data[n] / 2**30,
                        "start_seconds": child.start_seconds, "load": os.getloadavg()[0],
                    }  # fmt: skip
                    rows.append(row)
                    print(" ", {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("table", "growth", "report"))
    parser.add_argument("workloads", nargs="*", help="of the table: W5 … W8")
    parser.add_argument("--seconds", type=float, default=20, help="time for each workload")
    parser.add_argument("--least", type=int, default=5, help="repetitions, at least")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: on a shared machine, one thread")
    there = [p for p in protocol.PEERS if (HERE / "peers" / ".venvs" / p / "stamp").exists()]
    parser.add_argument("--peers", default=",".join(there), help="of those with an environment: %(default)s")
    arguments = parser.parse_args()
    peers = [p for p in arguments.peers.split(",") if p]
    os.environ["CLOCK"] = arguments.clock
    print(f"torch {torch.__version__}, {os.cpu_count()} cores", flush=True)
    if arguments.part == "table":
        threads = [int(t) for t in arguments.threads.split(",")]
        new = table(arguments.seconds, arguments.least, arguments.workloads, peers, threads)
        again = {(row["workload"], str(row["threads"])) for row in new}
        kept = [row for row in stored("bench-local-cpu.csv") if (row["workload"], row["threads"]) not in again]
        store("bench-local-cpu.csv", sorted([*kept, *new], key=lambda row: (row["workload"], int(row["threads"]))))
    elif arguments.part == "growth":
        store("bench-local-growth.csv", growth(arguments.seconds, peers))
    else:
        report()


def called(system: str) -> str:
    """A system's name for people."""
    return NAMES.get(system, system).replace("ours:", "ours, ")


def report() -> None:
    """The stored rows as tables in Markdown, and the plot."""
    rows, many = stored("bench-local-cpu.csv"), stored("bench-local-growth.csv")
    systems = [*OURS, *protocol.PEERS]
    names = [called(system) for system in systems]
    lines = ["| workload | threads | plain PyTorch | " + " | ".join(names) + " |", "|---" * (len(systems) + 3) + "|"]
    cells = {(row["workload"], row["threads"], row["system"]): row for row in rows}
    for key, threads in dict.fromkeys((row["workload"], row["threads"]) for row in rows):
        base = cells[key, threads, "centralised"]
        line = [f"{key.split()[0]}: {LOCAL[key].title}", threads, f"{float(base['ms']):.3g} ms"]
        for system in systems:
            row = cells.get((key, threads, system))
            shown = "–" if row is None else "{:.2f} [{:.2f}, {:.2f}]".format(*(float(row[k]) for k in SPREAD))
            line.append(shown)
        lines.append("| " + " | ".join(line) + " |")
    lines += ["", "| system | clients | ms a round | peak memory, GiB | of it above the data |", "|---" * 5 + "|"]
    for row in many:
        ms, low, high, peak, data = (float(row[k]) for k in ("ms", "low", "high", "peak_gib", "data_gib"))
        count = f"{int(row['clients']):,}"
        lines.append(
            f"| {called(row['system'])} | {count} | {ms:.1f} [{low:.1f}, {high:.1f}] | {peak:.2f} | {peak - data:.2f} |"
        )
    (RESULTS / "bench-local-cpu.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    plot(rows, many)


def plot(rows: Rows, many: Rows) -> None:
    """Left: the ratios at one thread. Right: the time of a round of W8 against the number of all clients."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4), width_ratios=(3, 2))
    systems = [system for system in ("ours:mean", *protocol.PEERS) if any(row["system"] == system for row in rows)]
    keys = [key for key in LOCAL if any((row["workload"], row["threads"]) == (key, "1") for row in rows)]
    for place, system in enumerate(systems):
        own = {row["workload"]: row for row in rows if (row["system"], row["threads"]) == (system, "1")}
        x = [keys.index(key) + 0.12 * (place - (len(systems) - 1) / 2) for key in own]
        middle, low, high = ([float(row[k]) for row in own.values()] for k in SPREAD)
        spread = np.maximum([np.subtract(middle, low), np.subtract(high, middle)], 0)
        style = {"color": "black", "markersize": 8} if system.startswith("ours") else {"markersize": 5}
        left.errorbar(x, middle, yerr=spread, fmt="o", label=called(system), **style)
    left.axhline(1, color="grey", linewidth=0.8, linestyle=":")
    left.set(yscale="log", ylabel="time of a round / plain passes over its samples", title="one thread")
    left.set_xticks(range(len(keys)), [key.replace(" ", "\n") for key in keys])
    left.set_yticks([0.7, 1, 2, 3, 5, 10], ["0.7", "1", "2", "3", "5", "10"])
    left.minorticks_off()
    left.legend(frameon=False, fontsize=8)
    for system in dict.fromkeys(row["system"] for row in many):
        own_rows = [row for row in many if row["system"] == system]
        bold = {"linewidth": 3, "color": "black"} if system.startswith("ours") else {"linewidth": 1.2}
        clients, ms = [int(row["clients"]) for row in own_rows], [float(row["ms"]) for row in own_rows]
        right.plot(clients, ms, marker="o", markersize=4, label=called(system), **bold)
    right.set(xscale="log", yscale="log", xlabel="all clients (100 of them in a round)", ylabel="ms a round, W8")
    right.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(RESULTS.parent / "docs" / "performance" / "bench-local-cpu.png", dpi=130)


if __name__ == "__main__":
    main()
