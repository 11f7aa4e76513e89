"""What a peer's driver and the process that starts it agree on: the task file, the commands and the answers.

A driver runs in the peer's own virtual environment as `python <peer>_driver.py TASK.npz --threads N`. It reads one
command a line and answers each with one line of JSON:

    (start)      {"ready": true, "version": "0.0.11", "start_seconds": 4.2}
    update PATH  one round from the initial parameters, saved as p0, p1, ...      {"ok": true, "clients": [3, 7, ...]}
                 (the clients that took part, where the task lets only some of them)
    time K       K further rounds                                                {"seconds": [0.1, ...]}
                 (Flower adds "start_seconds", of the simulation these rounds ran in)
    memory       peak resident memory of the driver, in bytes                    {"peak": 900000000}
    quit
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import os
import queue
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from models import LSTM, Transformer  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

PEERS = ("byzfl", "pfl", "fluke", "fedlab", "flower")
HERE = Path(__file__).resolve().parent


# ---- the task


def network(name: str, dropout: bool = True) -> nn.Module:
    """The benchmark's models in plain torch; `mlp:800` has hidden layers of that width."""
    kind, _, width = name.partition(":")
    if name in ("lstm", "transformer"):
        return LSTM() if name == "lstm" else Transformer()
    if kind == "mlp":
        units = int(width or 200)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU(), nn.Linear(units, 10)
        )
    if name != "cnn":
        raise ValueError(f"no model named {name!r}")
    # the ReLUs after the pooling, where they cost a quarter and change nothing: as in our own model
    features = [nn.Conv2d(3, 64, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(64, 64, 5), nn.MaxPool2d(2), nn.ReLU()]
    first, second = (nn.Dropout(0.2), nn.Dropout(0.5)) if dropout else (nn.Dropout(0.0), nn.Dropout(0.0))
    dense = [nn.Linear(1600, 384), nn.ReLU(), first, nn.Linear(384, 192), nn.ReLU(), second, nn.Linear(192, 10)]
    return nn.Sequential(*features, nn.Flatten(), *dense)


Client = tuple[Tensor, Tensor]


class ByIndex(Sequence[Client]):
    """Clients whose samples are rows of one pool, gathered when they are asked for."""

    def __init__(self, x: Tensor, y: Tensor, rows: Tensor, ends: list[int]) -> None:
        self.x, self.y, self.rows, self.ends = x, y, rows, ends

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, client: Any) -> Any:
        rows = self.rows[self.ends[client] : self.ends[client + 1]]
        return self.x[rows], self.y[rows]


@dataclass(frozen=True)
class Task:
    """The clients' samples, the initial model, and what clients and server do in a round.

    Without `batch`, a client computes the gradient on all its samples. With it, it takes SGD steps from the server's
    model through its samples in their order, `batch` at a time, in `epochs` passes; the server then takes the mean of
    the clients' models. `cohort` clients take part in a round, drawn by the peer; 0 means all.
    """

    clients: Sequence[Client]
    parameters: list[Tensor]
    model: str
    lr: float
    rule: str
    f: int
    dropout: bool
    epochs: int = 1
    batch: int = 0
    cohort: int = 0

    def build(self) -> nn.Module:
        """A fresh model at the initial parameters."""
        made = network(self.model, self.dropout)
        with torch.no_grad():
            for parameter, value in zip(made.parameters(), self.parameters, strict=True):
                parameter.copy_(value)
        return made

    @property
    def share(self) -> float:
        """The part of the clients in a round, for peers that ask for one and round n · share down."""
        return (self.cohort + 0.5) / len(self.clients) if 0 < self.cohort < len(self.clients) else 1.0

    def batches(self, client: int) -> list[Client]:
        """What one epoch of a client goes through."""
        x, y = self.clients[client]
        size = self.batch or len(y)
        return [(x[a : a + size], y[a : a + size]) for a in range(0, len(y), size)]

    def only_mean(self) -> None:
        """Refuse a task whose rule the peer does not have."""
        if self.rule != "mean":
            raise ValueError(f"this driver has no rule {self.rule!r}")


def save_task(
    path: Path, x: Any, y: Any, offsets: Any, parameters: Iterable[Any], model: str, lr: float, **options: Any
) -> None:
    """Write a task file; options are rule ('mean'), f (0), dropout (1), epochs (1), batch (0), cohort (0) and rows.

    With `rows`, client i has the samples x[rows[offsets[i]:offsets[i + 1]]].
    """
    settings = {"rule": "mean", "f": 0, "dropout": 1, **options}
    np.savez(path, x=x, y=y, offsets=offsets, model=model, lr=lr, **settings, **numbered(parameters))


def load_task(path: str | Path) -> Task:
    """Read a task file; the clients' samples are views of one tensor, or gathered from it where there are `rows`."""
    with np.load(path) as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
        if x.dim() == 4 and "batch" in file:
            x = x.contiguous(memory_format=torch.channels_last)  # in which convolutions are faster
        ends = file["offsets"].tolist()
        clients: Sequence[Client] = (
            [(x[a:b], y[a:b]) for a, b in itertools.pairwise(ends)] if "rows" not in file else []
        )
        if "rows" in file:
            clients = ByIndex(x, y, torch.from_numpy(file["rows"]), ends)
        dropout = bool(file["dropout"]) if "dropout" in file else True
        training = {key: int(file[key]) for key in ("epochs", "batch", "cohort") if key in file}
        return Task(
            clients,
            unnumbered(file),
            str(file["model"]),
            float(file["lr"]),
            str(file["rule"]),
            int(file["f"]),
            dropout,
            **training,
        )


def numbered(parameters: Iterable[Any]) -> dict[str, Any]:
    return {f"p{i}": np.asarray(parameter) for i, parameter in enumerate(parameters)}


def unnumbered(file: Any) -> list[Tensor]:
    return [torch.from_numpy(file[f"p{i}"]) for i in range(sum(key[0] == "p" and key[1:].isdigit() for key in file))]


# ---- the driver's side


class Driver(Protocol):
    """One federation at the task's initial parameters."""

    version: str

    def step(self) -> None:
        """One round."""

    def rounds(self, count: int) -> list[float]:
        """Further rounds; the seconds each one took."""

    def parameters(self) -> list[Tensor]:
        """The server's parameters now."""


class Items(Dataset[Client]):
    """A client's batches, each as one item."""

    def __init__(self, batches: list[Client]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Client:
        return self.batches[index]


def loader(batches: list[Client], sampler: Iterable[int] | None = None) -> DataLoader[Client]:
    """For frameworks that insist on a DataLoader, the cheapest one: no collation and no copy."""
    return DataLoader(Items(batches), batch_size=None, sampler=sampler)


def clock() -> float:
    """Seconds: of the wall or, where CLOCK=cpu asks for it, of this process's own computing (for a shared machine)."""
    return time.process_time() if os.environ.get("CLOCK") == "cpu" else time.perf_counter()


def timed(one: Callable[[], object], count: int) -> list[float]:
    """The seconds of each of `count` calls."""
    stamps = [clock()]
    for _ in range(count):
        one()
        stamps.append(clock())
    return intervals(stamps)


def intervals(stamps: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(stamps)]


def torchvision_without_its_library() -> None:
    """Let torchvision's Python half be imported: its compiled half wants a CUDA torch, and no peer calls it here.

    Where the import fails, it is on two operators only, which are declared here without an implementation.
    """
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError, AttributeError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    else:
        return
    if not kept:
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            signature = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(signature)  # type: ignore[no-untyped-call]
        kept.append(library)


kept: list[object] = []  # a library undoes its definitions when it is collected


def age() -> float:
    """Seconds since this process began (Linux), its imports included."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def serve(start: Callable[[Task, int, str], Driver]) -> None:
    """Be a driver: answer commands until `quit` or the end of input. `start` gets task, threads and the task's path.

    (Our own driver gets the name of a method in place of the path.)

    The framework is imported by `start`, after file descriptor 1 has been turned into stderr.
    """
    arguments = argparse.ArgumentParser()
    arguments.add_argument("task")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--method", default="", help="of our own driver")
    given = arguments.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")

    try:
        torch.set_num_threads(given.threads)
        task = load_task(given.task)
        third = given.method or given.task
        driver: Driver | None = start(task, given.threads, third)
        fresh = True
        assert driver is not None
        answer(ready=True, version=driver.version, start_seconds=age())
        for line in sys.stdin:
            command, _, rest = line.strip().partition(" ")
            if command == "quit":
                break
            if command == "update":
                if not fresh:
                    driver = None  # its memory first
                    gc.collect()
                    driver = start(task, given.threads, third)
                driver.step()
                fresh = False
                np.savez(rest, **numbered(p.detach() for p in driver.parameters()))
                answer(ok=True, clients=getattr(driver, "took_part", None))
            elif command == "time":
                fresh = False
                answer(seconds=driver.rounds(int(rest)), **getattr(driver, "extra", {}))
            elif command == "memory":
                answer(peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
            else:
                raise ValueError(f"no command {command!r}")
    except Exception as error:
        answer(error=" ".join(f"{type(error).__name__}: {error}".split()))
        raise SystemExit(1) from error


# ---- the parent's side


class Peer:
    """A driver in a child process; use it as a context manager."""

    def __init__(self, name: str, task: str | Path, threads: int = 1, timeout: float = 600) -> None:
        """`ours:METHOD` is our own simulator, driven in the same way by the python that runs this."""
        name, _, method = name.partition(":")
        python, driver = HERE / ".venvs" / name / "bin" / "python", HERE / f"{name}_driver.py"
        python = Path(sys.executable) if name == "ours" else python
        if not python.exists():
            raise RuntimeError(f"{name}: no virtual environment; run benchmarks/peers/make_venvs.sh {name}")
        self.name, self.timeout = name, timeout
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self.child = subprocess.Popen(
            [python, driver, task, "--threads", str(threads), "--method", method],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
        )
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            ready = self._answer()
        except BaseException:
            self.close()
            raise
        self.version, self.start_seconds = str(ready["version"]), float(ready["start_seconds"])

    def update(self, path: str | Path) -> list[Any] | None:
        """One round from the initial parameters; the new ones are written to path (npz), and the clients returned.

        None means all of them; our own driver gives each with the rows of its steps, since it shuffles.
        """
        clients: list[Any] | None = self._ask(f"update {path}")["clients"]
        return clients

    def memory(self) -> int:
        """The driver's peak resident memory so far, in bytes."""
        return int(self._ask("memory")["peak"])

    def time(self, count: int) -> list[float]:
        """Seconds of each of `count` further rounds."""
        fields = self._ask(f"time {count}")
        self.start_seconds = float(fields.get("start_seconds", self.start_seconds))
        return [float(s) for s in fields["seconds"]]

    def close(self) -> None:
        """End the child: politely, and after ten seconds not."""
        if self.child.stdin is not None and not self.child.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.child.stdin.close()
        for next_step in (self.child.terminate, self.child.kill, self.child.wait):
            try:
                self.child.wait(timeout=10)
                break
            except subprocess.TimeoutExpired:
                next_step()
        self.stderr.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _ask(self, command: str) -> dict[str, Any]:
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(command + "\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            raise self._failure("the driver has ended") from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            line = self.lines.get(timeout=self.timeout)
        except queue.Empty:
            raise self._failure(f"no answer in {self.timeout:g} s") from None
        if line is None:
            raise self._failure("the driver has ended")
        fields: dict[str, Any] = json.loads(line)
        if "error" in fields:
            raise self._failure(fields["error"])
        return fields

    def _failure(self, what: str) -> RuntimeError:
        self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(0, self.stderr.tell() - 2000))
        tail = self.stderr.read().decode(errors="replace").strip()
        return RuntimeError(f"{self.name}: {what}" + (f"\n{tail}" if tail else ""))
