"""Hyper-parameters of the evidence, chosen once per method on clean validation data of other draws (docs/claims.md)."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmean import data
from fairmean.data import Dataset
from fairmean.experiments import choosing
from fairmean.experiments.study import Report, compare, label
from fairmean.experiments.tune import BY
from paper.grids import Grid, points
from paper.paper import METRICS

HELD_OUT = 10_000
FIELDS = ("method", "spec", "dtype", "seed", *METRICS)
DRAWS = {"fashion-mnist": (901, 902, 903), "cifar10": (901, 902)}
SETTINGS: dict[str, dict[str, Any]] = {
    "fashion-mnist": {"partition.alpha": 0.5, "train.rounds": 2000, "train.lr_decay": 0.999},
    "cifar10": {"partition.alpha": 0.1, "train.rounds": 1200, "train.lr_decay": 0.999, "train.batch": 256},
}

_STEPS = [0.05, 0.1, 0.2, 0.4, 0.8]
_LARGER = [*_STEPS[1:], 1.6]
_POWERS = [0.05, 0.1, 0.5, 1.0, 2.0]
FASHION_MNIST: dict[str, Grid] = {
    **{
        name: {"train.lr": _STEPS}
        for name in ("mean", "fedavg", "rfa", "faba", "krum", "multi-krum", "lfighter", "bant")
    },
    **{name: {"train.lr": [*_STEPS, 1.6]} for name in ("cwtm", "median", "centered-clipping")},
    "fairmean": {"kappa": [0.25, 0.5, 1.0, 4.0], "train.lr": _STEPS},
    "fairmean-normalised": {"kappa": [1.0, 4.0, 16.0, 64.0], "train.lr": _STEPS},
    "fairmean-split": {"train.lr": _STEPS},
    "qffl": {"q": _POWERS, "train.lr": _STEPS[1:]},
    "h-nobs": {"q": _POWERS, "train.lr": _STEPS[1:]},
    "qffl+cwtm": {"q": _POWERS, "train.lr": _STEPS[1:]},
    "qffl-normalised": {"q": _POWERS, "train.lr": _LARGER},
    "term+": {"t": [0.5, 1.0, 2.0], "train.lr": _STEPS[1:]},
    "term-": {"t": [-0.25, -0.5, -1.0, -2.0], "train.lr": _STEPS[1:]},
    "term-hierarchical": {"t_in": [-0.25, -0.5, -1.0], "train.lr": _LARGER},
    "drfl": {"train.lr": _STEPS},
    "adafed": {"gamma": [0.25, 0.5, 1.0, 2.0], "normalise": [True], "train.lr": [0.3, 1.0, 3.0, 9.0]},
    "fedmgda+": {"epsilon": [0.05, 0.1, 0.5, 1.0], "train.lr": [0.3, 1.0, 3.0, 9.0]},
    "fairmoo": {"train.lr": _STEPS},
    "fedmdfg": {"train.lr": _STEPS},
    "fedlf": {"train.lr": _STEPS},
}
CIFAR10: dict[str, Grid] = {
    **{name: {"train.lr": _STEPS[1:]} for name in ("mean", "fedavg", "fairmean-split", "rfa", "multi-krum")},
    "centered-clipping": {"train.lr": [*_STEPS[1:], 1.6]},
    "fairmean": {"kappa": [1.0, 0.25, 0.5, 4.0], "train.lr": _STEPS[1:]},
    "fairmean-normalised": {"kappa": [4.0, 1.0, 16.0, 64.0], "train.lr": _STEPS[1:]},
    **{name: {"q": _POWERS[1:], "train.lr": _STEPS[1:]} for name in ("qffl", "h-nobs", "qffl+cwtm")},
    "term+": {"t": [1.0, 0.5, 2.0], "train.lr": _STEPS[1:]},
    "term-": {"t": [-0.5, -0.25, -1.0, -2.0], "train.lr": _STEPS[1:]},
    "adafed": {"gamma": [1.0, 0.5, 2.0], "normalise": [True], "train.lr": [0.3, 1.0, 3.0, 9.0]},
    "fedmgda+": {"epsilon": [0.5, 0.1, 1.0], "train.lr": [0.3, 1.0, 3.0, 9.0]},
}
TUNING = {"fashion-mnist": FASHION_MNIST, "cifar10": CIFAR10}
"""By method; ``term±`` is TERM with t of that sign. Fashion-MNIST's grids are extended at edges and searched whole."""

STAGED = ("cifar10",)
"""Searched in two stages: step sizes with each parameter's first value, then its other values at the best step."""

TRUSTING = ("bant",)
"""Run by themselves, so that the images their server owns are not missing from the others' validation data."""

TF32 = ("cwtm", "median", "qffl+cwtm")


def precision(method: str, dataset: str) -> str:
    """tf32 for full-batch rules that sort messages coordinate by coordinate, else bfloat16."""
    return "tf32" if method in TF32 and "train.batch" not in SETTINGS[dataset] else "bfloat16"


def validation(name: str) -> Dataset:
    """A data set whose test data are the last training samples, which are no longer trained on."""
    whole = data.load(name)
    first = len(whole.train_y) - HELD_OUT
    return replace(
        whole,
        train_x=whole.train_x[:first],
        train_y=whole.train_y[:first],
        test_x=whole.train_x[first:],
        test_y=whole.train_y[first:],
    )


def fashion_mnist() -> Dataset:
    """For data.name = paper.tuning:fashion_mnist."""
    return validation("fashion-mnist")


def cifar10() -> Dataset:
    """For data.name = paper.tuning:cifar10."""
    return validation("cifar10")


def specs(
    dataset: str, methods: Iterable[str] | None = None, records: Iterable[Mapping[str, Any]] = ()
) -> Iterator[tuple[str, str]]:
    """(method, spec) of every point of the grids; of a second stage too, once ``records`` hold its first."""
    records = list(records)
    for name, grid in TUNING[dataset].items():
        if methods is None or name in methods:
            rule = "term" if name in ("term+", "term-") else name
            mine = [record for record in records if record["method"] == name]
            for spec in _stages(rule, grid, mine) if dataset in STAGED else points(rule, grid):
                yield name, spec


def _stages(rule: str, grid: Grid, records: list[Mapping[str, Any]]) -> Iterator[str]:
    first = list(points(rule, {key: values if key == "train.lr" else values[:1] for key, values in grid.items()}))
    yield from first
    ran = [record for record in records if record["spec"] in first]
    if {record["spec"] for record in ran} == set(first):
        (best,) = choose(ran).values()
        yield from (spec for spec in points(rule, {**grid, "train.lr": [_step(best)]}) if spec not in first)


def _step(spec: str) -> float:
    return float(spec.rpartition("train.lr=")[2])


def run(
    dataset: str,
    methods: Iterable[str] | None = None,
    *,
    known: Iterable[Mapping[str, Any]] = (),
    seeds: Sequence[int] | None = None,
    report: Report | None = None,
    **overrides: Any,
) -> list[dict[str, Any]]:
    """One record per method, spec and tuning draw, with its validation figures, at the method's own precision.

    ``known``: records that need not be made again.
    """
    known, draws = list(known), seeds or DRAWS[dataset]
    records: list[dict[str, Any]] = []

    def kind(name: str) -> tuple[str, bool]:
        return overrides.get("train.dtype") or precision(name, dataset), name in TRUSTING

    def left() -> list[tuple[str, str]]:
        there = {(record["spec"], record["dtype"], record["seed"]) for record in [*known, *records]}
        wanted = specs(dataset, methods, [*known, *records])
        return [(name, spec) for name, spec in wanted if any((spec, kind(name)[0], s) not in there for s in draws)]

    while grids := left():
        for dtype, alone in dict.fromkeys(kind(name) for name, _ in grids):
            some = {spec: name for name, spec in grids if kind(name) == (dtype, alone)}
            records += _run(dataset, some, draws, report, overrides | {"train.dtype": dtype})
    return records


def _run(
    dataset: str, chosen: dict[str, str], seeds: Sequence[int], report: Report | None, overrides: dict[str, Any]
) -> list[dict[str, Any]]:
    settings = SETTINGS[dataset] | {
        "data.name": f"paper.tuning:{dataset.replace('-', '_')}",
        "run.name": f"tuning-{dataset}",
        "run.eval_every": 1000,
    }
    names = {label(spec): spec for spec in chosen}
    lists: dict[str, Any] = {"methods": list(chosen), "attacks": ["none"], "seeds": list(seeds)}
    found = compare(report=report, **lists, **settings | overrides)
    records = []
    for record in found.records:
        spec = names[record["method"]]
        figures = {key: record[key] for key in METRICS}
        dtype = overrides["train.dtype"]
        records.append({"method": chosen[spec], "spec": spec, "dtype": dtype, "seed": record["seed"], **figures})
    return records


def read(file: Path) -> list[dict[str, Any]]:
    """Records of a table of the tuning."""
    with open(file, newline="") as lines:
        rows = list(csv.DictReader(lines))
    return [{**row, "seed": int(row["seed"]), **{m: float(row[m] or "nan") for m in METRICS}} for row in rows]


def write(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """What ``read`` reads."""
    with open(file, "w", newline="") as out:
        writer = csv.DictWriter(out, FIELDS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**record, **{m: f"{record[m]:.3f}" for m in METRICS}} for record in records)


def score(records: Iterable[Mapping[str, Any]]) -> float:
    """The mean over draws of (average + worst)/2; −∞ if a draw diverged."""
    return choosing.score([BY["average+worst"](record) for record in records])


def choose(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The spec with the highest score for each method; of equal ones to two decimals, the one with the smaller step."""
    by_method: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for record in records:
        by_method.setdefault(record["method"], {}).setdefault(record["spec"], []).append(record)
    return {
        name: choosing.ranked({spec: score(every) for spec, every in by_spec.items()}, _step)[0]
        for name, by_spec in by_method.items()
    }
