"""Runs for reports that nobody had to train: the same files' worth of numbers, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

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
    environment: dict[str, Any] = field(
        default_factory=lambda: {
            "fairmean": "1",
            "python": "3.11",
            "torch": "2",
            "device": "a processor",
            "seconds": 1.5,
        }
    )


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
):
    """A run whose clients are served around ``quality`` percent; the last fifth is poisoned, if there is an attack."""
    draw = np.random.default_rng([seed, clients])
    own = np.random.default_rng([seed, clients, sum(map(ord, method)), sum(map(ord, attack))])
    regular = np.ones(clients, bool)
    if attack != "none":
        regular[clients - max(1, clients // 5) :] = False
    final = quality + draw.normal(0, 10, clients) + own.normal(0, 3, clients) - 25 * ~regular
    grown = 1 - np.exp(-np.arange(rounds + 1) / max(1, rounds / 4))
    accuracy = np.clip(final * grown[:, None] + own.normal(0, 1.5, (rounds + 1, clients)), 0, 100)
    accuracy[:, list(untested)] = np.nan
    weight = np.where(regular, 1.0, 0.4) / clients * (1 + own.normal(0, 0.05, (rounds + 1, clients)))
    weight[-1] = np.nan
    at = np.repeat(np.arange(rounds + 1), clients)
    who = np.tile(np.arange(clients), rounds + 1)
    columns = {
        "round": at,
        "client": who if names is None else np.array(names)[who],
        "regular": np.tile(regular, rounds + 1),
        "loss": np.ones(len(at)),
        "weight": weight.ravel(),
        "accuracy": accuracy.ravel(),
        "own_accuracy": accuracy.ravel(),
    }
    counts = draw.multinomial(200, draw.dirichlet(np.ones(classes) * 0.5), clients)
    poisoned = np.where(regular[:, None], counts, counts[:, ::-1])
    summary = finished(accuracy[-1], accuracy[-1], regular) if status == "finished" else {}
    if status == "diverged":
        summary = {"status": "diverged", "round": rounds // 2, "reason": "a loss is not finite"}
    settings = {
        "seed": seed,
        "data.name": "made-up",
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
    partition = SimpleNamespace(
        sizes=counts.sum(1), test_sizes=counts.sum(1), regular=regular, classes=poisoned, clean_classes=counts
    )
    folder = Path("runs/made") / f"{method}-{attack}-{seed}-{clients}"
    return MadeRun(folder, settings, status, summary, columns, partition, regular)


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
