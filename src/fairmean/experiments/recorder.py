"""What happens in a run, written down: the setup, rows, checkpoints, the summary."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fairmean.data.tasks import task
from fairmean.experiments.config import to_toml
from fairmean.experiments.events import Checkpointed, Listener, RoundEnded, RunEnded, RunStarted
from fairmean.experiments.folder import CLIENTS, RunFolder
from fairmean.experiments.listing import FACTS, FORMAT
from fairmean.experiments.reading import Run
from fairmean.experiments.sections import Config
from fairmean.theory.measure.monitor import THEORY

FLUSH_ROUNDS = 50
_TABLE_ROWS = 2_000_000  # with more rows than this, only evaluated rounds go into the table


class NotFinite(NamedTuple):
    """The first round whose numbers are not finite, and what is to blame: the 'step' size, or the user's own 'rule'."""

    round: int
    cause: str


class Recorder(Listener):
    """Writes a run into its folder, from events alone; the folder must be locked, that is entered as a context.

    Whoever makes the events calls ``checkpoint`` with a snapshot of the model now and then, and looks at
    ``not_finite``: rows are written when there are enough of them, and only then are their numbers looked at.
    """

    def __init__(self, folder: RunFolder, config: Config) -> None:
        self.folder, self.run = folder, Run(folder.path, config)
        self.not_finite: NotFinite | None = None
        self._method = config.method.build()
        self._shown: list[str] = []
        self._lengths = {CLIENTS: 0, **({THEORY: 0} if config.theory else {})}
        self._pending: list[RoundEnded] = []
        self._unwritten: list[tuple[int, Any, Any]] = []  # rounds without rows: whether losses and weights were finite
        self._measured: list[tuple[int, Tensor]] = []

    def last_checkpoint(self, device: Any = "cpu", parameters: int | None = None) -> dict[str, Any] | None:
        """What there is to go on with: its ``round``, and the snapshot as it was given. None for a new run."""
        checkpoint = self.folder.load(device, parameters)
        self.folder.sweep()
        if checkpoint is None:
            return None
        if checkpoint["round"] > self.run.config.train.rounds or set(checkpoint["tables"]) != set(self._lengths):
            raise self.folder.damaged("checkpoint.pt", "is damaged (it is of another run)")
        self._lengths = dict(checkpoint["tables"])
        return checkpoint

    def started(self, event: RunStarted) -> None:
        """Write the setup; for a run that goes on, forget the rows after its checkpoint."""
        self._regular, self._environment = event.regular, event.environment
        self._all_rounds = event.rounds * event.clients <= _TABLE_ROWS
        names = event.facts.get("client_names")
        self._names: Sequence[Any] = list(map(_quoted, names)) if names else range(event.clients)
        classes = event.facts.get("classes", 2)
        self._shown = list(self._method.shown(self._method.memory(1, classes), self._method.first_broadcast(classes)))
        if event.resumed:
            self.folder.mend_config(self.run.config)
            for table, length in self._lengths.items():
                self.folder.cut(length, table)
            return
        self.folder.write_json(FACTS, {"format": FORMAT, **event.facts})
        self.folder.write("config.toml", to_toml(self.run.config))
        if event.partition is not None:
            self.folder.write("partition.npz", packed(event.partition))
        self.folder.write_json("environment.json", dict(event.environment))
        if event.premises is not None:
            self.folder.write_json("theory.json", dict(event.premises))
        for table in self._lengths:
            self.folder.cut(0, table, task(self.run.config.data.task).metric.name, self._shown)
            self._lengths[table] = self.folder.append("", table)

    def round_ended(self, event: RoundEnded) -> None:
        """Keep the round's values until there are enough to write."""
        if event.accuracy is not None or self._all_rounds:
            self._pending.append(event)
        else:
            self._unwritten.append((event.round, _all_finite(event.raw_losses), _all_finite(event.raw_weights)))
        if event.raw_measured is not None:
            self._measured.append((event.round, event.raw_measured))
        if max(len(self._pending), len(self._unwritten), len(self._measured)) >= FLUSH_ROUNDS:
            self.flush()

    def checkpoint(self, t: int, snapshot: Mapping[str, Any]) -> Checkpointed | None:
        """Save what is needed to go on with round t: at least the parameters ``w`` and the method's ``state``.

        Nothing is saved of a model that is not finite. Rows must have been written by ``flush``.
        """
        if not snapshot["w"].isfinite().all():
            return None
        known = {"round": t, "w": snapshot["w"], "state": snapshot["state"], "tables": dict(self._lengths)}
        self.folder.save({**known, "swing": {"recent": [], "warning": None}, **snapshot})
        return Checkpointed(self.run, t, self.folder.path / "checkpoint.pt")

    def ended(self, event: RunEnded) -> None:
        """Write the last rows and the summary."""
        if event.last is not None:
            self.round_ended(event.last)
        self.flush()
        self.folder.close_tables()
        if event.summary["status"] == "finished":
            timing = {"seconds": round(event.seconds, 3), "rounds_timed": event.rounds, "together": event.together}
            self.folder.write_json("environment.json", {**self._environment, **timing})
        self.folder.write_json("summary.json", event.summary)

    def flush(self) -> None:
        """Write what is pending, and see whether it is finite."""
        found = [self._check(t, bool(losses), bool(weights)) for t, losses, weights in self._unwritten]
        lines: list[str] = []
        for event in self._pending:
            losses = event.raw_losses.tolist()
            weights = None if event.raw_weights is None else event.raw_weights.tolist()
            found.append(self._check(event.round, _finite(losses), _finite(weights or [])))
            lines += self._rows(event, losses, weights)
        if self.not_finite is None:
            self.not_finite = min(filter(None, found), default=None)
        self._pending.clear()
        self._unwritten.clear()
        self._lengths[CLIENTS] = self.folder.append("".join(lines))
        if THEORY in self._lengths:
            rows = [f"{t},{','.join(_figure(v) for v in values.tolist())}\n" for t, values in self._measured]
            self._measured.clear()
            self._lengths[THEORY] = self.folder.append("".join(rows), THEORY)

    def _rows(self, event: RoundEnded, losses: list[float], weights: list[float] | None) -> list[str]:
        """The round's rows of the long table; an evaluation has every client, whether it took part or not.

        Where only some clients are evaluated, it has these and those who took part.
        """
        given = [""] * len(losses) if weights is None else map(repr, weights)
        told = {c: f"{loss!r},{weight}" for c, loss, weight in zip(event.clients.tolist(), losses, given, strict=True)}
        if event.accuracy is None or event.own_accuracy is None:
            nothing = "," * (1 + len(self._shown))
            return [
                f"{event.round},{self._names[client]},{int(self._regular[client])},{row},{nothing}\n"
                for client, row in told.items()
            ]
        every = self.run.config.run.eval_clients == 0
        shown = [event.shown.get(name) for name in self._shown]
        rows = []
        for client, (regular, clean, own) in enumerate(
            zip(self._regular, event.accuracy, event.own_accuracy, strict=True)
        ):
            if not (every or client in told or not math.isnan(clean)):
                continue
            more = "".join("," if values is None else f",{_figure(float(values[client]))}" for values in shown)
            row = (
                f"{event.round},{self._names[client]},{int(regular)},{told.get(client, ',')},{clean!s},{own!s}{more}\n"
            )
            rows.append(row)
        return rows

    def _check(self, t: int, losses_finite: bool, weights_finite: bool) -> NotFinite | None:
        """A loss that is not finite; or weights that a rule of the user's made so of finite losses."""
        if not losses_finite:
            return NotFinite(t, "step")
        return NotFinite(t, "rule") if self._method.is_own and not weights_finite else None


def _quoted(name: str) -> str:
    """A client's name as a field of the table."""
    special = any(character in name for character in ',"\n\r')
    return '"' + name.replace('"', '""') + '"' if special else name


def _finite(values: list[float]) -> bool:
    return all(map(math.isfinite, values))


def _all_finite(values: Any) -> Any:
    """Whether all are, as a value that a GPU need not have computed yet."""
    if values is None:
        return True
    return values.isfinite().all() if isinstance(values, Tensor) else np.isfinite(values).all()


def _figure(value: float) -> str:
    """For a table; nothing where there is no figure. Infinities are figures."""
    return "" if math.isnan(value) else f"{value!r}"


def packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """An .npz, lightly compressed; whole numbers take the room they need."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            narrow = array.dtype == np.int64 and array.max(initial=0) < 2**31
            with archive.open(f"{name}.npy", "w") as file:
                np.save(file, array.astype(np.int32) if narrow else array)
    return buffer.getvalue()
