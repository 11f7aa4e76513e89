"""One bad input, and what many of them need: tiny data, a module of the user's, a file."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Prepare = Callable[[Path], list[str]]
Content = bytes | str

REFUSED = frozenset({1, 2})
SETTINGS: dict[str, Any] = {
    "data.name": "tiny.npz",
    "partition.name": "iid",
    "partition.clients": 4,
    "attack.clients": 1,
    "model.name": "linear",
    "train.rounds": 4,
    "train.device": "cpu",
}
TINY = [f"{key}={value}" for key, value in SETTINGS.items()]


@dataclass(frozen=True)
class Case:
    """``prepare`` writes files into an empty working folder, which is the current one, and gives the arguments.

    ``says``: words the message must have, first of all the name of what is at fault. ``never``: words that would
    mislead. ``table``: what the results on stdout must show although something failed; None: nothing is printed.
    ``after``: faults of what is on the disk afterwards. ``first``: code that a process of its own runs before the
    command, which then has its own ``stdout``; such cases are slow. ``trial``: a new user ran into it.
    """

    kind: str
    name: str
    prepare: Prepare = field(repr=False)
    codes: frozenset[int] = REFUSED
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    table: tuple[str, ...] | None = None
    after: Callable[[Path], list[str]] | None = field(default=None, repr=False)
    environ: Mapping[str, str] = field(default_factory=dict)
    first: str | None = None
    stdout: str | None = None
    trial: bool = False

    @property
    def id(self) -> str:
        """For tests and reports."""
        return f"{self.kind}: {self.name}"

    @property
    def slow(self) -> bool:
        """Whether it needs a process of its own."""
        return self.first is not None or self.stdout is not None


def arrays(**changed: Any) -> dict[str, Any]:
    """Three classes that a linear model can tell apart, with some arrays changed; None leaves one out."""
    draw = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = draw.normal(size=(90, 6)).astype(np.float32)
    x[np.arange(90), y] += 2
    every = {"x_train": x[:60], "y_train": y[:60], "x_test": x[60:], "y_test": y[60:]} | changed
    return {key: value for key, value in every.items() if value is not None}


def npz(content: Mapping[str, Any]) -> bytes:
    """What np.savez writes."""
    file = io.BytesIO()
    np.savez(file, **content)
    return file.getvalue()


def npy(array: Any) -> bytes:
    """What np.save writes."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@functools.cache
def tiny() -> bytes:
    """The content of tiny.npz."""
    return npz(arrays())


def write(folder: Path, files: Mapping[str, Content]) -> None:
    """Files by their path below the folder."""
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)


def given(argv: list[str], files: Mapping[str, Content] | None = None) -> Prepare:
    """These files beside the tiny data, and these arguments."""

    def prepare(folder: Path) -> list[str]:
        write(folder, {"tiny.npz": tiny()} | dict(files or {}))
        return argv

    return prepare
