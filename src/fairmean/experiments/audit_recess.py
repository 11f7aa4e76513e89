"""What a run of a recess method recorded about its clients' labels, as an audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairmean.experiments.audit_folds import Floats
from fairmean.experiments.audit_verdicts import CONTRADICTED, NOTHING, TOO_LITTLE, limits
from fairmean.experiments.reading import Run

EXCESS = "excess"


def recorded(run: Run) -> dict[str, Any] | None:
    """Every client's excess as the run last had it, and what else it recorded; None where it recorded none."""
    columns = run.columns
    if EXCESS not in columns or not np.isfinite(columns[EXCESS]).any():
        return None
    clients = len(run.client_names)
    return {
        "names": run.client_names,
        "task": run.settings.get("data.task", "classification"),
        "model": run.settings.get("model.name", "auto"),
        "samples": [int(size) or None for size in run.partition.sizes + run.partition.test_sizes],
        "trust": _last(columns["client"], columns["trust"], clients)
        if "trust" in columns
        else np.full(clients, np.nan),
        "excess": _last(columns["client"], columns[EXCESS], clients),
        "loss": _last(columns["client"], columns["loss"], clients),
        "entropy": _last(columns["client"], columns["entropy"], clients)
        if "entropy" in columns
        else np.full(clients, np.nan),
        "error": 1 - _last(columns["client"], columns[f"own_{run.metric.name}"], clients) / 100,
    }


def _last(client: Any, values: Any, clients: int) -> Floats:
    """The last known value of every client; NaN where there is none."""
    result = np.full(clients, np.nan)
    known = np.isfinite(values)
    result[client[known]] = values[known]  # rows are in the order of rounds
    return result


def judged(
    record: Mapping[str, Any], rate: float, name: str, notes: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The clients and the settings of an audit of what was recorded.

    A run records no sample's evidence, so there are no samples and no labels to name, and no interval by samples. The
    spread between clients stands for all chance.
    """
    excess: Floats = record["excess"]
    known = np.isfinite(excess)
    usual = limits(excess[known], np.zeros(int(known.sum())), rate)
    alarm = float(usual.of(np.zeros(1))[0])
    clients = [
        {
            "client": client,
            "verdict": TOO_LITTLE if not known[i] else CONTRADICTED if excess[i] > alarm else NOTHING,
            "excess": _plain(excess[i]),
            "low": None,
            "high": None,
            "standard_error": None,
            "limit": _plain(alarm),
            "could_tell": bool(known[i]),
            "trust": _plain(record["trust"][i]),
            "entropy": _plain(record["entropy"][i]),
            "loss": _plain(record["loss"][i]),
            "error": _plain(record["error"][i]),
            "bias": None,
            "samples": record["samples"][i],
            "samples_used": None,
            "moves": [],
            "most_contradicted": [],
        }
        for i, client in enumerate(record["names"])
    ]
    settings = {
        "data": name,
        "task": record["task"],
        "evidence": "recess",
        "false_alarms": rate,
        "model": record["model"],
        "centre": _plain(usual.centre),
        "spread": _plain(usual.spread),
        "limit": _plain(alarm),
        "usual_error": _plain(float(np.nanmedian(record["error"]))),
        "notes": list(notes),
    }
    return clients, settings


def _plain(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None
