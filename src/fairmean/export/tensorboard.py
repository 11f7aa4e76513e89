"""TensorBoard: one event file for each run, in ``PLACE/<name>/<hash>``. An event file cannot be changed, so exporting a
run again writes its file anew."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmean.export.tracker import Identity, Tracker, curves, figures_of, known

INSTALL = "pip install tensorboard"
_SUFFIX = ".fairmean"  # of the event files that are ours to replace


def open_tracker(place: str) -> Tracker:
    """A tracker that writes below the folder ``place``."""
    import tensorboard.summary.writer.event_file_writer  # noqa: F401 - missing libraries are told here

    return TensorBoard(Path(place or "tensorboard"))


class TensorBoard:
    """One run's event file."""

    def __init__(self, folder: Path) -> None:
        self._root = folder

    def start(self, run: Identity) -> int:
        """Remove what was written of this run before, and begin anew."""
        from tensorboard.plugins.text import summary as text
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = self._root / run.group / run.hash
        for file in self._folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
            file.unlink()
        self._writer = EventFileWriter(str(self._folder), filename_suffix=_SUFFIX)
        table = "\n".join(["| key | value |", "|---|---|", *(f"| {k} | {v} |" for k, v in run.settings.items())])
        self._add(0, text.text_pb("config", table))
        self._add(0, text.text_pb("run", run.name))
        return 0

    def clients(self, t: int, labels: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
        """A histogram over clients, and where they are few a curve each."""
        import numpy as np
        from tensorboard.plugins.histogram import summary as histogram

        for name, column in values.items():
            if known(column):
                self._add(t, histogram.histogram_pb(f"clients/{name}", np.array(known(column))))
        self._scalars(t, curves(labels, values))

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        """A point of each curve."""
        self._scalars(t, figures)
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> str:
        """The final figures as text."""
        from tensorboard.plugins.text import summary as text

        lines = [f"status: {summary.get('status')}", *(f"{k}: {v:.6g}" for k, v in figures_of(summary).items())]
        self._add(0, text.text_pb("summary", "\n\n".join(lines)))
        self._writer.close()
        return f"{self._folder} (look at it with: tensorboard --logdir {self._root})"

    def _scalars(self, t: int, figures: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
        if points:
            self._add(t, Summary(value=points))

    def _add(self, t: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=t, summary=summary))
