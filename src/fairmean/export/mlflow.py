"""MLflow: a run in the experiment that is called like the runs, found again by the tag ``fairmean.hash``.

The tag ``fairmean.rounds`` says how many rounds are there; it is written together with their figures.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmean.export.tracker import Identity, Tracker, curves, figures_of

INSTALL = "pip install mlflow"
_AT_ONCE = 800  # figures in one call; MLflow takes 1,000
_SECONDS = 2.0  # that figures wait for company
_PARAMETERS = 100  # in one call
_STATUS = {"finished": "FINISHED", "diverged": "FAILED", "interrupted": "KILLED", "running": "RUNNING"}


def open_tracker(place: str) -> Tracker:
    """A tracker at a tracking URI; by default MLFLOW_TRACKING_URI, or a file in the working folder."""
    import mlflow.tracking

    place = place or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if place.startswith("sqlite"):
        import alembic  # noqa: F401 - mlflow-skinny comes without what a database needs
        import sqlalchemy  # noqa: F401
    return MLflow(mlflow.tracking.MlflowClient(tracking_uri=place), place)


class MLflow:
    """One run in MLflow."""

    def __init__(self, client: Any, place: str) -> None:
        self._client, self._place = client, place
        self._waiting: list[Any] = []
        self._rounds = 0
        self._sent = time.monotonic()

    def start(self, run: Identity) -> int:
        """Find the run by its hash, or make it."""
        from mlflow.entities import Param

        client = self._client
        experiment = client.get_experiment_by_name(run.group)
        number = client.create_experiment(run.group) if experiment is None else experiment.experiment_id
        there = client.search_runs([number], f"tags.`fairmean.hash` = '{run.hash}'", max_results=1)
        if there:
            self._run = there[0].info
            self._rounds = int(there[0].data.tags.get("fairmean.rounds", 0))
        else:
            self._run = client.create_run(number, tags={"fairmean.hash": run.hash}, run_name=run.name).info
            parameters = [Param(key, str(value)) for key, value in run.settings.items()]
            for start in range(0, len(parameters), _PARAMETERS):
                client.log_batch(self._run.run_id, params=parameters[start : start + _PARAMETERS])
        return self._rounds

    def clients(self, t: int, labels: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
        """A curve for each client, where they are few."""
        self._add(t, curves(labels, values))

    def round(self, t: int, figures: Mapping[str, float]) -> None:
        """A point of each curve; sent when there are enough, or after a while."""
        self._add(t, figures)
        self._rounds = t + 1
        if len(self._waiting) >= _AT_ONCE or time.monotonic() - self._sent > _SECONDS:
            self._send()

    def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> str:
        """Final figures, files, and how the run ended."""
        self._send()
        for key, value in figures_of(summary).items():
            self._client.set_tag(self._run.run_id, f"final.{key}", f"{value:.6g}")
        for file in files:
            self._client.log_artifact(self._run.run_id, str(file))
        status = _STATUS.get(str(summary.get("status")), "FAILED")
        if status == "RUNNING":
            self._client.update_run(self._run.run_id, status=status)
        else:
            self._client.set_terminated(self._run.run_id, status=status)
        return f"{self._place}, run {self._run.run_id}"

    def _add(self, t: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        when = int(self._run.start_time) + t  # the same whenever it is sent: MLflow keeps equal figures once
        self._waiting += [Metric(_allowed(key), value, when, t) for key, value in figures.items()]

    def _send(self) -> None:
        from mlflow.entities import RunTag

        while self._waiting:
            part, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
            tags = [] if self._waiting else [RunTag("fairmean.rounds", str(self._rounds))]
            self._client.log_batch(self._run.run_id, metrics=part, tags=tags)
        self._sent = time.monotonic()


def _allowed(name: str) -> str:
    """A name without what MLflow refuses; the slash that parts a client from its figure stays."""
    who, slash, figure = name.rpartition("/")
    return re.sub(r"[^\w .:-]", "_", who) + slash + figure
