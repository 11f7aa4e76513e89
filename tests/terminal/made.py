"""Run folders written by hand, at work or ended, so that tests of their readers need not train anything."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import numpy as np

CONFIG = """\
seed = 3
[data]
name = "fashion-mnist-mini"
[attack]
name = "pairwise"
[method]
name = "fairmean"
[train]
rounds = {rounds}
device = "{device}"
[run]
name = "made"
"""
HEADER = "round,client,regular,loss,weight,accuracy,own_accuracy\n"


def accuracies(t: int, clients: int = 4) -> list[float]:
    """What the clients of a made run reach by round t; the last client is poisoned, the one before has no test data."""
    return [float(10 * t + c) for c in range(clients - 2)] + [float("nan"), 5.0]


def rows(t: int, clients: int = 4, every: int = 2) -> str:
    """A round of the table; every second one is evaluated."""
    told = accuracies(t, clients)
    shown = [f"{a!s},{a!s}" if t % every == 0 else "," for a in told]
    return "".join(
        f"{t},{c},{int(c < clients - 1)},{2.0 - t / 10 + c},{0.25 + c / 100},{shown[c]}\n" for c in range(clients)
    )


class MadeRun:
    """A run folder in any state."""

    def __init__(self, folder: Path, rounds: int = 10, device: str = "cpu") -> None:
        self.folder, self.rounds = folder, rounds
        folder.mkdir(parents=True)
        (folder / "lock").write_text(str(os.getpid()))
        self._lock: int | None = os.open(folder / "lock", os.O_RDWR)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (folder / "config.toml").write_text(CONFIG.format(rounds=rounds, device=device))
        (folder / "run.json").write_text('{"format": 2}')
        (folder / "environment.json").write_text('{"fairmean": "0.2.0"}')
        self.table = folder / "clients.csv.part"
        self.table.write_text(HEADER)
        self.written = 0

    def go_on(self, rounds: int) -> MadeRun:
        """Some rounds more."""
        with open(self.table, "a") as file:
            for _ in range(rounds):
                file.write(rows(self.written))
                self.written += 1
        return self

    def stop(self) -> MadeRun:
        """The process is gone."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        return self

    def finish(self, status: str = "finished") -> MadeRun:
        """The run has ended."""
        self.go_on(self.rounds + 1 - self.written)
        os.replace(self.table, self.folder / "clients.csv")
        told = accuracies(self.rounds)
        x = np.array(told[:-2])
        figures = {
            "average": x.mean(),
            "variance": x.var(),
            "worst": x.min(),
            "worst_tenth": x.min(),
            "jain": 1.0,
            "gini": 0.0,
        }
        summary = {
            "status": status,
            **figures,
            "accuracy": [None if a != a else a for a in told],
            "own_accuracy": [None if a != a else a for a in told],
            "regular": [True, True, True, False],
        }
        if status == "diverged":
            summary = {"status": status, "round": 3}
        (self.folder / "summary.json").write_text(json.dumps(summary))
        return self.stop()
