"""Weights & Biases: a run in the project ``PLACE``, whose id is the hash.

Online, W&B says which rounds it has. Offline (WANDB_MODE=offline), a run is a folder below ``wandb``; exporting it
again writes that folder anew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmean.export.tracker import Identity, Tracker, curves, figures_of, known

INSTALL = "pip install wandb"


def open_tracker(place: str) -> Tracker:
    """A tracker for ``project`` or ``entity/project``."""
    import wandb

    entity, _, project = (place or "fairmean").rpartition("/")
    return WeightsAndBiases(wandb, entity or None, project)


class WeightsAndBiases:
    """One run in W&B."""

    def __init__(self, library: Any, entity: str | None, project: str) -> None:
        self._library, self._entity, self._project = library, entity, project

    def start(self, run: Identity) -> int:
        """Begin the run of this id, or go on with it."""
        mode = os.environ.get("WANDB_MODE")
        folder = Path(os.environ.get("WANDB_DIR", "."))
        if mode == "offline":
            for before in (folder / "wandb").glob(f"offline-run-*-{run.hash}"):
                shutil.rmtree(before)
        self._run = self._library.init(
            entity=self._entity,
            project=self._project,
            id=run.hash,
            name=run.name,
            group=run.group,
            config=dict(run.settings),
            resume=None if mode == "offline" else "allow",
            reinit="create_new",
            dir=str(folder),
            settings={"silent": True, "x_disable_stats": True, "console": "off"},
        )
        return int(self._run.starting_step) if self._run.resumed else 0

    def clients(self, t: int, labels: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
        """A histogram over clients, and where they are few a curve each."""
        there = {f"clients/{name}": known(column) for name, column in values.items()}
        histograms = {name: self._library.Histogram(column) for name, column in there.items() if column}
        self._run.log({**histograms, **curves(labels, values)}, step=t, commit=False)

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        """A point of each curve."""
        self._run.log(dict(figures), step=t, commit=True)

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> str:
        """Final figures and files."""
        for key, value in {**figures_of(summary), "status": summary.get("status")}.items():
            self._run.summary[f"final/{key}"] = value
        for file in files:
            self._run.save(str(file.resolve()), base_path=str(file.resolve().parent), policy="now")
        place = str(self._run.url or Path(self._run.dir).parent)
        self._run.finish(exit_code=0 if summary.get("status") == "finished" else 1)
        return place
