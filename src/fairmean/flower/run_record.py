"""A federation's run on disk: the same folder as a simulator's, written by the same recorder from the same events.

Beside it stands ``rejected.csv``: every reply that was not used, by round, client and node, and why.
"""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean.data.tasks import task
from fairmean.experiments.environment import environment
from fairmean.experiments.events import Audience, Listener, RoundEnded, RunEnded, RunStarted, read_only
from fairmean.experiments.folder import RunFolder
from fairmean.experiments.metrics import finished, summarise
from fairmean.experiments.recorder import Recorder
from fairmean.experiments.sections import Config
from fairmean.flower.checking import Accepted
from fairmean.transform import dispersion

REJECTED = "rejected.csv"
_COLUMNS = ("round", "attempt", "client", "node", "claims", "reason")


class RunRecord:
    """Writes what happens; ``told``: whether clients let their losses and accuracies be known."""

    def __init__(
        self, folder: RunFolder, config: Config, names: Sequence[str], told: bool, listeners: Iterable[Listener]
    ) -> None:
        self.recorder, self.audience = Recorder(folder, config), Audience(listeners)
        self.config, self.names, self.told = config, names, told
        self._regular = np.ones(len(names), dtype=bool)
        self._kind = task(config.data.task)
        self._metrics: dict[str, float] = {}
        self._rejected = folder.path / REJECTED
        self._began, self._first = time.monotonic(), 0

    @property
    def due(self) -> int:
        """The clients are evaluated every so many rounds."""
        return self.config.run.eval_every or max(1, self.config.train.rounds // 20)

    def resume(self, length: int) -> dict[str, Any] | None:
        """The checkpoint to go on from, or None for a new run."""
        return self.recorder.last_checkpoint("cpu", length)

    def started(self, t: int, resumed: bool, facts: Mapping[str, Any]) -> None:
        """The run begins with round t."""
        self._first = t
        nothing, n = np.zeros(0, dtype=np.int64), len(self.names)
        empty = np.zeros(n + 1, dtype=np.int64)
        partition = {
            "rows": nothing, "offsets": empty, "test_rows": nothing, "test_offsets": empty, "regular": self._regular,
        }  # fmt: skip
        event = RunStarted(
            self.recorder.run,
            read_only(self._regular),
            start=t,
            resumed=resumed,
            environment=environment(torch.device("cpu"), 1),
            partition=partition,
            facts=facts,
        )
        self.recorder.started(event)
        self.audience.note(event)
        self.audience.tell()

    def round(self, t: int, accepted: Sequence[Accepted], weights: Tensor | None, evaluated: bool) -> None:
        """Round t is over."""
        event = self._event(t, accepted, weights, evaluated)
        self.recorder.round_ended(event)
        self.recorder.flush()
        self.audience.note(event)

    def _event(self, t: int, accepted: Sequence[Accepted], weights: Tensor | None, evaluated: bool) -> RoundEnded:
        if not self.told:
            nobody = np.zeros(0, dtype=np.int64)
            return RoundEnded(self.recorder.run, t, nobody, np.zeros(0), None, None, None, {})
        figures = None
        if evaluated:
            figures = self.figures(accepted)
            self._metrics = summarise(figures, self._regular, self._kind.metric.higher)
        return RoundEnded(
            self.recorder.run,
            t,
            np.array([one.client for one in accepted], dtype=np.int64),
            np.array([one.loss for one in accepted]),
            weights,
            figures,
            figures,
            self._metrics,
            raw_shown=self._shown(accepted) if evaluated else {},
        )

    def figures(self, accepted: Sequence[Accepted]) -> NDArray[np.float64]:
        """The accuracy of every client; NaN where nothing was told."""
        figures = np.full(len(self.names), np.nan)
        for one in accepted:
            figures[one.client] = one.accuracy
        return read_only(figures)

    def _shown(self, accepted: Sequence[Accepted]) -> dict[str, NDArray[np.float64]]:
        """What clients tell about themselves, of every client; NaN where nothing was told."""
        columns: dict[str, NDArray[np.float64]] = {}
        for one in accepted:
            for name, value in one.shown.items():
                columns.setdefault(name, np.full(len(self.names), np.nan))[one.client] = value
        return columns

    def checkpoint(self, t: int, snapshot: Mapping[str, Any]) -> None:
        """What is needed to go on with round t, in one step."""
        written = self.recorder.checkpoint(t, snapshot)
        if written is not None:
            self.audience.note(written)
        self.audience.tell()

    def rejected(self, t: int, attempt: int, client: str, node: int, claims: str, reason: str) -> None:
        """A reply was not used. ``client`` is whom the server knows the node as, ``claims`` who the reply says it is.

        The table only grows: what happened in a round that was repeated happened, too."""
        new = not self._rejected.exists()
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        if new:
            writer.writerow(_COLUMNS)
        writer.writerow([t, attempt, client, node, claims, reason])
        with open(self._rejected, "a", encoding="utf-8", newline="") as file:
            file.write(buffer.getvalue())

    def rejections(self) -> int:
        """How many replies were not used so far."""
        if not self._rejected.exists():
            return 0
        with open(self._rejected, encoding="utf-8", newline="") as file:
            return sum(1 for _ in csv.reader(file)) - 1

    def ended(self, t: int, last: Sequence[Accepted], more: Mapping[str, Any]) -> dict[str, Any]:
        """The run has come to its end after t rounds; the summary."""
        figures = self.figures(last if self.told else [])
        losses = torch.tensor([one.loss for one in last], dtype=torch.float64)
        spread = dispersion(losses).item() if self.told and len(losses) else math.nan
        summary = finished(figures, figures, self._regular, spread, None, self._kind.metric)
        summary |= {"rounds": t, "rejected": self.rejections(), **more}
        event = self._event(t, last, None, True) if self.told and last else None
        self._end(RunEnded(self.recorder.run, summary, event, t - self._first, time.monotonic() - self._began))
        return summary

    def diverged(self, t: int) -> dict[str, Any]:
        """The model is not finite any more."""
        summary = {"status": "diverged", "round": t, "cause": "step"}
        self._end(RunEnded(self.recorder.run, summary))
        return summary

    def _end(self, event: RunEnded) -> None:
        self.recorder.ended(event)
        self.audience.note(event)
        self.audience.tell()
