"""Runs for reports that nobody had to train: the same files' worth of numbers, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fairmean.data.tasks import ACCURACY, TASKS, Metric
from fairmean.experiments.metrics import finished
from fairmean.report.material import Entry, Material


@dataclass
class MadeRun:
    """What a report reads of a run."""

    folder: Path
    settings: dict[str, Any]
    status: str
    summary: dict[str, Any]
    columns: dict[str, np.ndarray]
    partition: Any
    regular: np.ndarray
    certificate: Any = None
    metric: Metric = ACCURACY
    names: list[str] | None = None
    class_names: list[str] | None = None
    environment: dict[str, Any] = field(
        default_factory=lambda: {
            "fairmean": "1",
            "python": "3.11",
            "torch": "2",
            "device": "a processor",
            "seconds": 1.5,
        }
    )

    @property
    def has_names(self) -> bool:
        return self.names is not None

    @property
    def client_names(self) -> list[str]:
        return self.names or [str(i) for i in range(len(self.regular))]


def made_run(
    method="mean",
    attack="pairwise",
    seed=1,
    clients=10,
    rounds=8,
    classes=5,
    quality=60.0,
    untested=(),
    status="finished",
    names=None,
    hyper=None,
    task="classification",
    unit=1.0,
    data="fashion-mnist-mini",
    class_names=None,
):
    """A run whose clients are served around ``quality`` percent; the last fifth is poisoned, if there is an attack.

    Where numbers are predicted, errors are what is lacking to 100, times ``unit``.
    """
    metric = TASKS[task].metric
    draw = np.random.default_rng([seed, clients])
    own = np.random.default_rng([seed, clients, sum(map(ord, method)), sum(map(ord, attack))])
    regular = np.ones(clients, bool)
    if attack != "none":
        regular[clients - max(1, clients // 5) :] = False
    final = quality + draw.normal(0, 10, clients) + own.normal(0, 3, clients) - 25 * ~regular
    grown = 1 - np.exp(-np.arange(rounds + 1) / max(1, rounds / 4))
    accuracy = np.clip(final * grown[:, None] + own.normal(0, 1.5, (rounds + 1, clients)), 0, 100)
    accuracy[:, list(untested)] = np.nan
    judged = accuracy if metric.higher else unit * (100 - accuracy)
    weight = np.where(regular, 1.0, 0.4) / clients * (1 + own.normal(0, 0.05, (rounds + 1, clients)))
    weight[-1] = np.nan
    at = np.repeat(np.arange(rounds + 1), clients)
    who = np.tile(np.arange(clients), rounds + 1)
    columns = {
        "round": at,
        "client": who,
        "regular": np.tile(regular, rounds + 1),
        "loss": np.ones(len(at)),
        "weight": weight.ravel(),
        metric.name: judged.ravel(),
        f"own_{metric.name}": judged.ravel(),
    }
    counts = draw.multinomial(200, draw.dirichlet(np.ones(classes) * 0.5), clients)
    poisoned = np.where(regular[:, None], counts, counts[:, ::-1])
    tested = np.where(np.isnan(accuracy[-1]), 0, counts.sum(1) // np.arange(1, clients + 1))
    summary = {}
    if status == "finished":
        wide = 3 * judged[-1] / np.sqrt(np.maximum(tested, 1))
        details = {"low": np.maximum(judged[-1] - wide, 0), "high": np.where(tested > 1, judged[-1] + wide, np.nan)}
        details |= {more.name: judged[-1] * 0.8 for more in TASKS[task].more}
        if TASKS[task].has_classes:
            details |= {f"recall_{label}": np.clip(judged[-1] + label, 0, 100) for label in range(classes)}
        summary = finished(judged[-1], judged[-1], regular, what=metric, details=details)
    if status == "diverged":
        summary = {"status": "diverged", "round": rounds // 2, "reason": "a loss is not finite"}
    settings = {
        "seed": seed,
        "data.name": data,
        "data.task": task,
        "partition.name": "dirichlet",
        "partition.alpha": 0.5,
        "partition.clients": clients,
        "attack.name": attack,
        "method.name": method,
        "train.rounds": rounds,
        "train.lr": 0.1,
        "run.name": "made",
        **{f"method.{key}": value for key, value in (hyper or {}).items()},
    }
    by_class = (poisoned, counts) if TASKS[task].has_classes else (None, None)
    partition = SimpleNamespace(
        sizes=counts.sum(1), test_sizes=tested, regular=regular, classes=by_class[0], clean_classes=by_class[1]
    )
    folder = Path("runs/made") / f"{method}-{attack}-{seed}-{clients}"
    return MadeRun(folder, settings, status, summary, columns, partition, regular, None, metric, names, class_names)


def made_study(methods=3, attacks=("none", "pairwise"), seeds=(1, 2, 3), gain=8.0, title="made", **options):
    """A study of made runs; the last method is better than the others by ``gain`` points."""
    names = methods if isinstance(methods, list) else ["mean", *(f"method-{i}" for i in range(1, methods))]
    entries = []
    for place, method in enumerate(names):
        quality = 55 + (gain if place == len(names) - 1 else 0) - 0.1 * place
        for attack in attacks:
            for seed in seeds:
                run = made_run(method, attack, seed, quality=quality, **options)
                entries.append(Entry(method, attack, seed, run.status, run))
    return Material(title, entries)
