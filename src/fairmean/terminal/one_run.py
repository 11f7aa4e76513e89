"""One run that is on disk, as 'fairmean show' prints it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.experiments.keys import SECTIONS
from fairmean.experiments.metrics import METRICS
from fairmean.experiments.reading import Run
from fairmean.text import columns

Values = NDArray[np.float64]


def record(run: Run) -> dict[str, Any]:
    """The run for programs."""
    return {
        "folder": str(run.folder),
        "status": run.status,
        "summary": run.summary or None,
        "settings": run.settings,
        "environment": run.environment,
        "clients": [
            {key: value.item() if isinstance(value, np.generic) else value for key, value in client.items()}
            for client in _clients(run)
        ],
    }


def page(run: Run, most: int = 20) -> str:
    """The run for people; of its clients at most so many, those with the lowest accuracies first."""
    settings, environment = run.settings, run.environment
    lines = [
        f"run {run.folder}",
        f"{settings.get('method.name')} · attack {settings.get('attack.name')} · seed {settings.get('seed')}"
        f" · {run.status}",
        f"settings: {_unusual(settings) or 'the defaults'}",
        "made with: "
        + " · ".join(
            f"{key} {environment[key]}" for key in ("fairmean", "torch", "python", "device") if environment.get(key)
        ),
        "",
    ]
    if run.summary.get("status") == "finished":
        lines += [columns([[f"{run.summary[name]:.4g}" for name in METRICS]], list(METRICS)), ""]
    if "warning" in run.summary:
        lines += [f"warning: {run.summary['warning']}", ""]
    clients = _clients(run)
    order = sorted(clients, key=lambda client: math.inf if math.isnan(client["accuracy"]) else client["accuracy"])
    header = ["client", "", "samples", "test", "loss", "weight", "accuracy %", "on its own labels %"]
    lines.append(columns([_row(client) for client in order[:most]], header))
    if len(clients) > most:
        lines.append(f"… {len(clients) - most} more (--clients {len(clients)} shows them)")
    lines += ["", f"table: {run.table}", f"model: fairmean.load({run.hash[:8]!r}).model()"]
    if run.status in ("interrupted", "running"):
        lines.append(f"It has come to round {run.rounds} of {settings.get('train.rounds')}.")
    if settings.get("theory"):
        lines.append(f"next: fairmean check {run.hash[:8]}")
    return "\n".join(lines)


def _row(client: dict[str, Any]) -> list[str]:
    kind = "" if client["regular"] else "poisoned"
    figures = (f"{client['loss']:.3f}", f"{client['weight']:.4f}", *(f"{client[key]:.1f}" for key in _ACCURACIES))
    shown = ["–" if text == "nan" else text for text in figures]
    return [str(client["client"]), kind, str(client["samples"]), str(client["test"]), *shown]


_ACCURACIES = ("accuracy", "own_accuracy")


def _clients(run: Run) -> list[dict[str, Any]]:
    """Every client: its data, its last loss and weight, and its accuracy when it was last evaluated."""
    partition, table = run.partition, run.columns
    n = len(partition.regular)
    latest: dict[str, Values] = {}
    for name in ("loss", "weight", *_ACCURACIES):
        column = np.full(n, math.nan)
        there = ~np.isnan(table[name])
        column[table["client"][there]] = table[name][there]  # rows are in the order of rounds
        latest[name] = column
    return [
        {
            "client": client,
            "regular": bool(partition.regular[client]),
            "samples": int(partition.sizes[client]),
            "test": int(partition.test_sizes[client]),
            **{name: float(column[client]) for name, column in latest.items()},
        }
        for client in range(n)
    ]


def _unusual(settings: dict[str, Any]) -> str:
    """The settings that are not the defaults."""
    usual = {section.dotted(key): key.default for section in SECTIONS for key in section.keys}
    told = ("method.name", "attack.name", "seed", "partition.seed", "train.device")
    return " ".join(
        f"{key}={value}"
        for key, value in settings.items()
        if key not in told and not key.endswith("sha256") and value != usual.get(key, value if key in usual else None)
    )
