"""Trackio: a run in the project ``PLACE``, named by its hash, in a database on this machine (TRACKIO_DIR).

Exporting a run again writes it anew."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmean.export.tracker import Identity, Tracker, curves, known

INSTALL = "pip install trackio"


def open_tracker(place: str) -> Tracker:
    """A tracker for a project."""
    import trackio

    return Trackio(trackio, place or "fairmean")


class Trackio:
    """One run in Trackio."""

    def __init__(self, library: Any, project: str) -> None:
        self._library, self._project = library, project
        self._values: dict[str, Any] = {}

    def start(self, run: Identity) -> int:
        """Remove what was written of this run before, and begin anew."""
        self._forget(run.hash)
        with contextlib.redirect_stdout(io.StringIO()):  # it says how to look at every project
            self._run = self._library.init(
                self._project,
                name=run.hash,
                group=run.group,
                config={**run.settings, "name": run.name},
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return 0

    def _forget(self, name: str) -> None:
        try:
            before = [run for run in self._library.Api().runs(self._project) if run.name == name]
        except ValueError:  # there is no such project yet
            return
        for run in before:
            run.delete()

    def clients(self, t: int, labels: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
        """A histogram over clients, and where they are few a curve each; sent with the figures of the round."""
        there = {f"clients/{name}": known(column) for name, column in values.items()}
        histograms = {name: self._library.Histogram(column) for name, column in there.items() if column}
        self._values = {**histograms, **curves(labels, values)}

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        """A point of each curve."""
        self._run.log({**self._values, **figures}, step=t)
        self._values = {}

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> str:
        """Wait until everything is in the database."""
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()
        return f"project '{self._project}', run {self._run.name} (look at it with: trackio show)"
