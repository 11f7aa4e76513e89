"""What happens in a run, written down: rows, checkpoints, the summary; and read again when it goes on."""

from __future__ import annotations

import io
import math
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean import models
from fairmean.engine import Simulator, Step
from fairmean.errors import Diverged, Lost
from fairmean.runs.config import Config, to_toml
from fairmean.runs.environment import environment
from fairmean.runs.folder import CLIENTS, RunFolder
from fairmean.runs.metrics import average, summarise
from fairmean.theory.measure.monitor import THEORY, Monitor
from fairmean.theory.oscillation import Swing
from fairmean.theory.premises import premises
from fairmean.transform import dispersion

CHECKPOINT_SECONDS = 5.0
FLUSH_ROUNDS = 50
_EVALUATIONS = 20
_TABLE_ROWS = 2_000_000  # with more rows than this, only evaluated rounds go into the table


@dataclass(frozen=True)
class Progress:
    """Where a run is: for whoever shows it."""

    round: int
    rounds: int
    rounds_per_second: float
    metrics: dict[str, float]
    runs: int = 1  # that advance together


Report = Callable[[Progress], None]


class Recorder:
    """Trains, evaluates, writes: a run on its own by ``run``; of many runs, each has one that is told what happened."""

    def __init__(self, config: Config, folder: RunFolder, simulator: Simulator, report: Report | None) -> None:
        self.config, self.folder, self.simulator, self.report = config, folder, simulator, report
        self.rounds = config.train.rounds
        self.every = config.run.eval_every or max(1, self.rounds // _EVALUATIONS)
        self.regular = simulator.federation.regular
        self.all_rounds = self.rounds * len(self.regular) <= _TABLE_ROWS
        self.pending: list[tuple[int, Step, tuple[Any, Any] | None]] = []
        self.unwritten: list[tuple[int, Any, Any]] = []  # rounds without rows: whether losses and weights were finite
        self.measured: list[tuple[int, Tensor]] = []
        self.metrics: dict[str, float] = {}
        self.ended: dict[str, Any] = {}
        self.lengths = {CLIENTS: 0, **({THEORY: 0} if config.theory else {})}
        self.t = 0
        fed = simulator.federation
        chosen = config.model.name, fed.shape, fed.classes, config.seed, fed.x[:1]
        self.swing = Swing(simulator, partial(models.build, *chosen))
        if config.theory:
            simulator.watch(Monitor, self.every)

    def run(self) -> dict[str, Any]:
        """To the end. When another rank is lost, the model is still the one before the round: it is saved."""
        try:
            return self._run()
        except Lost as lost:
            if not self.flush():
                self.checkpoint(self.t)
            lost.place, lost.kept = f" in round {self.t}", self._kept()
            raise

    def _run(self) -> dict[str, Any]:
        start = self.resume()
        began = saved = time.monotonic()
        for t in range(start, self.rounds):
            self.t = t
            accuracy = self.simulator.evaluate() if self.due(t) else None
            try:
                step = self.simulator.step(t)
            except Diverged:  # the rule was given losses that are not finite
                self.ended = self.ended if self.flush() else self._diverged(t, "step")
                return self.ended
            self.note(t, step, accuracy)
            self.swing.note(t, torch.as_tensor(step.losses))
            now = time.monotonic()
            self._tell(Progress(t + 1, self.rounds, (t + 1 - start) / max(now - began, 1e-9), self.metrics))
            if self.full or now - saved > CHECKPOINT_SECONDS:
                if self.flush():
                    return self.ended
                if now - saved > CHECKPOINT_SECONDS:
                    self.checkpoint(t + 1)
                    saved = now
        if self.flush():
            return self.ended
        self.t = self.rounds
        return self.finish(time.monotonic() - began, start)

    def _kept(self) -> str:
        """What there is to go on with."""
        checkpoint = self.folder.load("cpu")
        if checkpoint is None:
            return "there is no checkpoint yet"
        return f"the last checkpoint is round {checkpoint['round']} in {self.folder.path}"

    def due(self, t: int) -> bool:
        """Whether the clients are evaluated before round t."""
        return t % self.every == 0

    def note(self, t: int, step: Step, accuracy: tuple[Any, Any] | None) -> None:
        """Round t happened."""
        if accuracy is not None:
            self.metrics = summarise(accuracy[0], self.regular)
        if accuracy is not None or self.all_rounds:
            self.pending.append((t, step, accuracy))
        else:
            self.unwritten.append((t, _all_finite(step.losses), _all_finite(step.weights)))
        if step.measured is not None:
            self.measured.append((t, step.measured))

    @property
    def full(self) -> bool:
        """Whether there is enough to write."""
        return max(len(self.pending), len(self.unwritten), len(self.measured)) >= FLUSH_ROUNDS

    def flush(self) -> bool:
        """Write what is pending; whether the run turned out to have diverged, and so has ended."""
        bad = self._flush()
        if bad is not None:
            self.ended = self._diverged(*bad)
        return bad is not None

    def _tell(self, progress: Progress) -> None:
        """Report between two rounds; whoever listens may interrupt here, and then nothing is lost."""
        try:
            if self.report:
                self.report(progress)
        except KeyboardInterrupt:
            if not self.flush():
                self.checkpoint(progress.round)
            raise

    def resume(self) -> int:
        """Read the checkpoint, or set up a new run; the round to go on with."""
        checkpoint = self.folder.load(self.simulator.w.device, len(self.simulator.w))
        self.folder.sweep()
        if checkpoint is None:
            self._write_setup()
            for table in self.lengths:
                self.folder.cut(0, table)
                self.lengths[table] = self.folder.append("", table)
            self.checkpoint(0)
            return self.simulator.agree(0)
        if checkpoint["round"] > self.rounds or set(checkpoint["tables"]) != set(self.lengths):
            raise self.folder.damaged("checkpoint.pt", "is damaged (it is of another run)")
        self.folder.mend_config(self.config)
        self.lengths = dict(checkpoint["tables"])
        for table, length in self.lengths.items():
            self.folder.cut(length, table)
        self.t = int(checkpoint["round"])
        self.swing.load(checkpoint["swing"])
        self.simulator.restore(checkpoint, self.t)
        return self.simulator.agree(self.t)

    def checkpoint(self, t: int) -> None:
        """Save what is needed to go on with round t."""
        w = self.simulator.w
        if w.isfinite().all():
            kept = {"round": t, "tables": dict(self.lengths), "swing": self.swing.state()}
            self.folder.save(kept | self.simulator.snapshot())

    def _flush(self) -> tuple[int, str] | None:
        """Write pending rows; the first round whose numbers are not finite, if there is one, and what is to blame."""
        lines = []
        bad: tuple[int, str] | None = None
        for t, losses_finite, weights_finite in self.unwritten:
            bad = bad or self._not_finite(t, bool(losses_finite), bool(weights_finite))
        for t, step, accuracy in self.pending:
            losses, given = step.losses.tolist(), [] if step.weights is None else step.weights.tolist()
            found = self._not_finite(t, all(map(math.isfinite, losses)), all(map(math.isfinite, given)))
            bad = found if found and (bad is None or found[0] < bad[0]) else bad
            weights = [""] * len(losses) if step.weights is None else map(repr, given)
            row = {
                c: f"{loss!r},{weight}" for c, loss, weight in zip(step.clients.tolist(), losses, weights, strict=True)
            }
            # an evaluation covers every client, whether it took part in the round or not
            for client in range(len(self.regular)) if accuracy else row:
                tested = f"{accuracy[0][client]!s},{accuracy[1][client]!s}" if accuracy else ","
                lines.append(f"{t},{client},{int(self.regular[client])},{row.get(client, ',')},{tested}\n")
        self.pending.clear()
        self.unwritten.clear()
        self.lengths[CLIENTS] = self.folder.append("".join(lines))
        if THEORY in self.lengths:
            rows = [f"{t},{','.join(_figure(v) for v in values.tolist())}\n" for t, values in self.measured]
            self.measured.clear()
            self.lengths[THEORY] = self.folder.append("".join(rows), THEORY)
        return bad

    def _not_finite(self, t: int, losses_finite: bool, weights_finite: bool) -> tuple[int, str] | None:
        """(round, cause) where a loss is not finite; or where a rule of the user's made weights of finite losses so."""
        if not losses_finite:
            return t, "step"
        return (t, "rule") if self.simulator.method.is_own and not weights_finite else None

    def _diverged(self, t: int, cause: str) -> dict[str, Any]:
        self.folder.close_tables()
        summary = {"status": "diverged", "round": t, "cause": cause}
        self.folder.write_json("summary.json", summary)
        return summary

    def finish(
        self, seconds: float, start: int, together: int = 1, accuracy: tuple[Any, Any] | None = None
    ) -> dict[str, Any]:
        """Evaluate the last model (unless that was done) and write the summary; ``together``: how many runs at once."""
        simulator, T = self.simulator, self.rounds
        accuracy = accuracy or simulator.evaluate()
        losses, clients = simulator.losses(T), simulator.participants(T)
        if not (losses.isfinite().all() and simulator.w.isfinite().all()):
            return self._diverged(T, "step")
        self.checkpoint(T)  # before the last rows: a run stopped below comes here again and writes them once
        self.pending.append((T, Step(clients, losses, None), accuracy))
        last = simulator.look(T)
        if last is not None:
            self.measured.append((T, last))
        self._flush()
        self.folder.close_tables()
        everyone = simulator.training_losses(losses)
        summary: dict[str, Any] = {
            "status": "finished",
            **summarise(accuracy[0], self.regular),
            "loss_dispersion": dispersion(everyone[torch.from_numpy(self.regular)]).item(),
            "poisoned": None,
            "without_test_data": int(np.isnan(accuracy[0]).sum()),
            "accuracy": accuracy[0].tolist(),
            "own_accuracy": accuracy[1].tolist(),
            "regular": self.regular.tolist(),
        }
        if not self.regular.all():
            clean, mine = (values[~self.regular & ~np.isnan(values)] for values in accuracy)
            summary["poisoned"] = (
                {"clean_average": average(clean), "own_average": average(mine)} if len(clean) else None
            )
        if self.swing.warning:
            summary["warning"] = self.swing.warning
        made = environment(self.simulator) | {
            "seconds": round(seconds, 3),
            "rounds_timed": T - start,
            "together": together,
        }
        self.folder.write_json("environment.json", made)
        self.folder.write_json("summary.json", summary)
        return summary

    def _write_setup(self) -> None:
        fed = self.simulator.federation
        names = ("rows", "offsets", "test_rows", "test_offsets", "regular")
        self.folder.write("config.toml", to_toml(self.config))
        self.folder.write("partition.npz", packed({name: getattr(fed, name) for name in names}))
        self.folder.write_json("environment.json", environment(self.simulator))
        if self.simulator.monitor is not None:
            self.folder.write_json("theory.json", premises(self.simulator, self.config.train.dtype))


class Follower(Recorder):
    """The part of a run that ranks beside the first have: the same rounds, nothing written."""

    def resume(self) -> int:
        return self.simulator.agree(0)

    def note(self, t: int, step: Step, accuracy: tuple[Any, Any] | None) -> None:
        pass

    def flush(self) -> bool:
        return False

    def checkpoint(self, t: int) -> None:
        pass

    def finish(
        self, seconds: float, start: int, together: int = 1, accuracy: tuple[Any, Any] | None = None
    ) -> dict[str, Any]:
        self.simulator.evaluate()
        self.simulator.training_losses(self.simulator.losses(self.rounds))
        return {}


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
