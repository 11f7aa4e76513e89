"""What tests of real federations share: an app to run, what the simulator makes of the same, who is still there."""

from __future__ import annotations

import csv
import os
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch

import fairmean
from fairmean.flower.processes import Process
from fairmean.flower.template import write

OWN = Path(__file__).parents[1] / "own"
WAIT = 240.0  # seconds, on a machine that does other things as well


def small_app(folder: Path, own: str | None = None) -> Path:
    """The app of 'fairmean flower new' with a small model; ``own``: a module of tests/own that both sides import."""
    write(folder)
    task = folder / "task.py"
    text = task.read_text(encoding="utf-8").replace('models.build("mlp", ', 'models.build("linear", ')
    if own is not None:
        shutil.copy(OWN / f"{own}.py", folder)
        text = text.replace("\nfrom flwr.app", f"\nimport {own}\nfrom flwr.app", 1)
    task.write_text(text, encoding="utf-8")
    return folder


def simulated(folder: Path, method: dict[str, object], rounds: int, clients: int = 3) -> fairmean.Result:
    """The same federation in the simulator, at full gradients."""
    return fairmean.run(
        method=method,
        partition={"clients": clients},
        attack={"name": "none"},
        model={"name": "linear"},
        train={"rounds": rounds, "lr": 0.1, "device": "cpu"},
        run={"dir": str(folder), "eval_every": 1},
    )


FULL = {"local-steps": 1, "batch": 0, "lr": 0.1}
"""Settings of the app with which it takes the simulator's steps."""


def parameters(folder: Path) -> torch.Tensor:
    """The last model of a run, as one vector."""
    w: torch.Tensor = torch.load(folder / "checkpoint.pt", weights_only=True)["w"]
    return w.double()


def table(folder: Path) -> dict[tuple[int, str], dict[str, str]]:
    """The long table of a run by round and client; no round may be in it twice."""
    rows = {}
    with open(folder / "clients.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = int(row["round"]), row["client"]
            assert key not in rows
            rows[key] = row
    return rows


def until(happens: Callable[[], bool], seconds: float = WAIT) -> None:
    """Wait for something; a test fails when it does not happen."""
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)


def refused(process: Process) -> str:
    """What a node said that was not admitted and ended."""
    until(lambda: not process.alive)
    assert process.returncode not in (0, None)
    return process.text()


@contextmanager
def nobody_left(monkeypatch):
    """Inside, everything that is started inherits a mark; at the end no process has it."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("FAIRMEAN_TEST", mark)
    yield
    assert with_mark(mark) == []


def with_mark(mark: str) -> list[str]:
    """The commands of other processes that have inherited the mark."""
    commands = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal() and int(place.name) != os.getpid():
            try:
                if f"FAIRMEAN_TEST={mark}".encode() in (place / "environ").read_bytes():
                    commands.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return commands
