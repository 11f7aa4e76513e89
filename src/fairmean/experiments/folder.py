"""The folder of one run: its files, its lock, its checkpoint.

    run.json          the folder's format, input shape  partition.npz   which samples each client owns, class counts
    config.toml       the resolved config
    environment.json  versions, device, commit, time   clients.csv     round, client, regular, loss, weight, accuracy …
    summary.json      the metrics                      checkpoint.pt   the model and what is needed to go on
    theory.csv        with theory=true: what the theorems speak of, round by round; theory.json: what they assume

Everything is written to a temporary name and renamed, so a full disk or a killed process leaves the last good state and
no half-written file. A file that is damaged all the same is named, with what to do. A table grows as
``clients.csv.part``; a checkpoint remembers how much of it belongs to the rounds it covers, so a resumed run continues
an exact prefix.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import tomllib
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from fairmean.data.tasks import ACCURACY, TASKS, Metric
from fairmean.errors import Busy, UserCodeError, UserError
from fairmean.experiments.config import parse, to_toml
from fairmean.experiments.metrics import METRICS, summarise
from fairmean.experiments.sections import Config
from fairmean.theory.measure.monitor import MEASURED, THEORY

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows, where runs are not locked
    fcntl = None  # type: ignore[assignment]

_TRIES = 20  # to lock a folder that others remove at the same time
CLIENTS = "clients.csv"
TABLES = (CLIENTS, THEORY)


def header(table: str, metric: str = ACCURACY.name, shown: Iterable[str] = ()) -> str:
    """The first line of a table; ``metric`` is the figure by which clients are judged.

    ``shown`` are further columns, of what clients can tell about themselves.
    """
    if table == THEORY:
        return ",".join(["round", *MEASURED]) + "\n"
    return ",".join(["round", "client", "regular", "loss", "weight", metric, f"own_{metric}", *shown]) + "\n"


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
    """Use as a context: inside, this process alone writes here.

    A folder that was made here and left because of an error is removed, if there is nothing in it to go on with: no
    checkpoint was written, or the user's code failed before it came through a round.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._new = self._came_through = False
        self._made: list[Path] = []

    def __enter__(self) -> RunFolder:
        self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        if not any(self._locked() for _ in range(_TRIES)):
            raise UserError(f"results folder '{self.path}': cannot be made there; choose another with run.dir=…")
        self._new = not any((self.path / name).exists() for name in ("checkpoint.pt", "summary.json", "config.toml"))
        assert self._lock is not None
        with suppress(OSError):  # a full disk: who holds the lock is only for messages
            os.ftruncate(self._lock, 0)
            os.lseek(self._lock, 0, os.SEEK_SET)
            os.write(self._lock, str(os.getpid()).encode())
        return self

    def _locked(self) -> bool:
        """Make the folder and lock it; False where another process removed it in between."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UserError(
                f"results folder '{self.path}': cannot be written ({error.strerror}); choose another with run.dir=…"
            ) from None
        if fcntl is None:  # pragma: no cover
            return True
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._lock, 32, 0).decode() or "unknown"
            os.close(self._lock)
            raise Busy(f"another process (pid {holder}) is working on this run: {self.path}") from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._lock), os.stat(self.path / "lock")):
                return True
        os.close(self._lock)
        return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = kind is not None and issubclass(kind, Exception) and self._new
        if failed and (
            not (self.path / "checkpoint.pt").exists() or (kind is UserCodeError and not self._came_through)
        ):
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):  # folders above that were made for it, and are empty
                for above in self._made[1:]:
                    above.rmdir()
        if self._lock is not None:
            os.close(self._lock)

    def write(self, name: str, content: bytes | str) -> None:
        """Write a whole file, atomically."""
        self._replace(name, content.encode() if isinstance(content, str) else content)

    def write_json(self, name: str, value: Any) -> None:
        """Write a value as JSON, atomically."""
        self.write(name, to_json(value) + "\n")

    def _replace(self, name: str, content: bytes | memoryview) -> None:
        temporary = self.path / f".{name}.{uuid.uuid4().hex[:8]}.tmp"
        with self._writing(name):
            try:
                with open(temporary, "wb") as file:
                    file.write(content)
                    if name == "summary.json":  # it says that all the rest is there
                        file.flush()
                        os.fsync(file.fileno())
                os.replace(temporary, self.path / name)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
                raise

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        """What the file system says when it cannot write, in a line."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"'{self.path / name}' cannot be written ({error.strerror}); what was saved before is whole: make room "
                "and run the same command again, or choose another place with run.dir=…"
            ) from None

    def sweep(self) -> None:
        """Remove temporary files of processes that were killed; only for who holds the lock."""
        for temporary in self.path.glob(".*.tmp"):
            with suppress(OSError):
                temporary.unlink()

    def damaged(self, name: str, why: str) -> UserError:
        """The error for a file of this folder that cannot be gone on with."""
        return UserError(f"'{self.path / name}' {why}; remove the folder {self.path} to run it again from the start")

    def summary(self) -> dict[str, Any] | None:
        """The summary of a run that has ended, or None. Metrics it does not hold are computed from its accuracies."""
        try:
            summary = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self.damaged("summary.json", f"cannot be read ({error.strerror})") from None
        except (ValueError, RecursionError):
            raise self.damaged("summary.json", "is damaged (it is not JSON)") from None
        if not isinstance(summary, dict) or summary.get("status") not in ("finished", "diverged"):
            raise self.damaged("summary.json", "is damaged (it does not say how the run ended)")
        if summary["status"] == "diverged":
            if not isinstance(summary.get("round"), int):
                raise self.damaged("summary.json", "is damaged (it does not say in which round the run diverged)")
            return summary
        metric = metric_of(summary)
        for name in (metric.name, f"own_{metric.name}", "regular"):
            if not isinstance(summary.get(name), list):
                raise self.damaged("summary.json", f"is damaged ('{name}' is missing)")
        try:
            figures = np.array(summary[metric.name], dtype=np.float64)  # JSON has no NaN: null stands for it
            metrics = summarise(figures, np.array(summary["regular"], dtype=bool), metric.higher)
        except (TypeError, ValueError, IndexError):
            raise self.damaged("summary.json", "is damaged (accuracies do not fit the clients)") from None
        for name in METRICS:
            summary[name] = metrics[name] if summary.get(name) is None else summary[name]
            if isinstance(summary[name], bool) or not isinstance(summary[name], int | float):
                raise self.damaged("summary.json", f"is damaged ('{name}' is not a number)")
        if summary.get("loss_dispersion") is None:
            summary["loss_dispersion"] = math.nan
        return {"poisoned": None, "without_test_data": int(np.isnan(figures).sum())} | summary

    def mend_config(self, config: Config) -> None:
        """Put the run's config back, if the file beside its results says something else or cannot be read."""
        try:
            stored = parse(tomllib.loads((self.path / "config.toml").read_text(encoding="utf-8")))
            if stored.hash() == config.hash():
                return
        except (OSError, ValueError):
            pass
        warnings.warn(
            f"'{self.path / 'config.toml'}' was not the config of this run any more; it has been written anew",
            stacklevel=2,
        )
        self.write("config.toml", to_toml(config))

    def append(self, rows: str, table: str = CLIENTS) -> int:
        """Add rows to a growing table; returns its length in bytes."""
        with self._writing(f"{table}.part"), open(self._part(table), "ab") as file:
            file.write(rows.encode())
            file.flush()
            return file.tell()

    def cut(self, length: int, table: str = CLIENTS, metric: str = ACCURACY.name, shown: Iterable[str] = ()) -> None:
        """Forget rows past ``length`` bytes; 0 starts the table anew. A table that was closed grows again."""
        part = self._part(table)
        if length == 0:
            with self._writing(part.name):
                part.write_bytes(header(table, metric, shown).encode())
            return
        if not part.exists():  # stopped after the table was closed, before the summary was written
            if not (self.path / table).exists():
                raise self.damaged(part.name, "is missing")
            os.replace(self.path / table, part)
        if part.stat().st_size < length:
            raise self.damaged(part.name, f"has {part.stat().st_size} bytes, where the checkpoint says {length}")
        os.truncate(part, length)

    def close_tables(self) -> None:
        """The tables are whole: give them their names."""
        for table in TABLES:
            if self._part(table).exists():
                os.replace(self._part(table), self.path / table)

    def _part(self, table: str) -> Path:
        return self.path / f"{table}.part"

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Write a checkpoint, atomically."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        self._replace("checkpoint.pt", buffer.getbuffer())
        self._came_through = self._came_through or checkpoint["round"] > 0

    def load(self, device: torch.device | str, parameters: int | None = None) -> dict[str, Any] | None:
        """The last checkpoint, or None; ``parameters``: how many the model has."""
        file = self.path / "checkpoint.pt"
        if not file.exists():
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of odd pickles
                checkpoint = torch.load(file, map_location=device, weights_only=True)
        except Exception:  # whatever zip, pickle and torch say of bytes that are not a checkpoint
            raise self.damaged("checkpoint.pt", "is damaged (it cannot be read as a checkpoint)") from None
        missing = _missing(checkpoint)
        if missing:
            raise self.damaged("checkpoint.pt", f"is damaged ({missing})")
        found = len(checkpoint["w"])
        if parameters not in (None, found):
            raise self.damaged("checkpoint.pt", f"holds {found:,} parameters, where the model has {parameters:,}")
        return checkpoint  # type: ignore[no-any-return]


def metric_of(summary: Mapping[str, Any]) -> Metric:
    """The figure by which the clients of a run are judged."""
    name = summary.get("metric", ACCURACY.name)
    return next((what.metric for what in TASKS.values() if what.metric.name == name), ACCURACY)


def _missing(checkpoint: Any) -> str:
    """What a checkpoint lacks, in words; '' if it is whole."""
    if not isinstance(checkpoint, dict):
        return "it is not a checkpoint"
    w, state, tables, swing = (checkpoint.get(key) for key in ("w", "state", "tables", "swing"))
    if not (isinstance(w, torch.Tensor) and w.dim() == 1 and w.is_floating_point() and w.isfinite().all()):
        return "its parameters are not a vector of finite numbers"
    if not (isinstance(state, dict) and all(isinstance(value, torch.Tensor) for value in state.values())):
        return "its state is not a dictionary of tensors"
    if type(checkpoint.get("round")) is not int or checkpoint["round"] < 0:
        return "it does not say which round comes next"
    if not isinstance(tables, dict) or CLIENTS not in tables:
        return "it does not say how long the tables are"
    if not all(type(length) is int and length > 0 for length in tables.values()):
        return "it does not say how long the tables are"
    if not set(tables) <= set(TABLES):
        return "it speaks of other tables"
    if not (isinstance(swing, dict) and {"recent", "warning"} <= swing.keys()):
        return "parts of it are missing"
    return "parts of it are missing" if "before" in checkpoint and "running" not in checkpoint else ""
