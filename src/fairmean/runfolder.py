"""The folder of one run: its files, its lock, its checkpoint.

    config.toml       the resolved config              partition.npz   which samples each client owns
    environment.json  versions, device, commit, time   clients.csv     round, client, regular, loss, weight, accuracy …
    summary.json      the metrics                      checkpoint.pt   the model and what is needed to go on
    theory.csv        with theory=true: what the theorems speak of, round by round; theory.json: what they assume

Everything is written to a temporary name and renamed. A table grows as ``clients.csv.part``; a checkpoint remembers how
much of it belongs to the rounds it covers, so a resumed run continues an exact prefix.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from fairmean.engine.monitor import MEASURED
from fairmean.errors import Busy, UserError
from fairmean.metrics import METRICS

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows, where runs are not locked
    fcntl = None  # type: ignore[assignment]

CLIENTS = "clients.csv"
THEORY = "theory.csv"
HEADERS = {
    CLIENTS: "round,client,regular,loss,weight,accuracy,own_accuracy\n",
    THEORY: ",".join(["round", *MEASURED]) + "\n",
}


def to_json(value: Any) -> str:
    """JSON that every reader takes: NaN and infinities become null."""

    def plain(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: plain(inner) for key, inner in item.items()}
        if isinstance(item, list | tuple):
            return [plain(inner) for inner in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False)


class RunFolder:
    """Use as a context: inside, this process alone writes here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def __enter__(self) -> RunFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise UserError(
                f"results folder '{self.path}': cannot be written ({error.strerror}); choose another with run.dir=…"
            ) from None
        if fcntl is not None:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.pread(self._lock, 32, 0).decode() or "unknown"
                os.close(self._lock)
                raise Busy(f"another process (pid {holder}) is working on this run: {self.path}") from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def write(self, name: str, content: bytes | str) -> None:
        """Write a whole file, atomically."""
        temporary = self.path / f".{name}.tmp"
        with open(temporary, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if name == "summary.json":  # it says that all the rest is there
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, self.path / name)

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as JSON, atomically."""
        self.write(name, to_json(value) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """The summary of a run that has ended, or None."""
        try:
            summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError:
            raise UserError(f"'{self.path / 'summary.json'}' is damaged; remove the folder to run it again") from None
        for name in (*METRICS, "loss_dispersion"):  # JSON has no NaN: null stands for it
            if name in summary and summary[name] is None:
                summary[name] = math.nan
        return summary

    def append(self, rows: str, table: str = CLIENTS) -> int:
        """Add rows to a growing table; returns its length in bytes."""
        with open(self._part(table), "ab") as file:
            file.write(rows.encode())
            return file.tell()

    def cut(self, length: int, table: str = CLIENTS) -> None:
        """Forget rows past ``length`` bytes; 0 starts the table anew. A table that was closed grows again."""
        part = self._part(table)
        if length == 0:
            part.write_bytes(HEADERS[table].encode())
            return
        if not part.exists():  # stopped after the table was closed, before the summary was written
            os.replace(self.path / table, part)
        os.truncate(part, length)

    def close_tables(self) -> None:
        """The tables are whole: give them their names."""
        for table in HEADERS:
            if self._part(table).exists():
                os.replace(self._part(table), self.path / table)

    def _part(self, table: str) -> Path:
        return self.path / f"{table}.part"

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Write a checkpoint, atomically."""
        temporary = self.path / ".checkpoint.pt.tmp"
        torch.save(checkpoint, temporary)
        os.replace(temporary, self.path / "checkpoint.pt")

    def load(self, device: torch.device | str) -> dict[str, Any] | None:
        """The last checkpoint, or None."""
        file = self.path / "checkpoint.pt"
        if not file.exists():
            return None
        checkpoint: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
        return checkpoint
