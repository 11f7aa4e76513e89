"""Hyper-parameters of the evidence, chosen once per method on clean validation data of other draws (docs/claims.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fairmean import data
from fairmean.data import Dataset
from fairmean.reproduce.grids import Grid, points
from fairmean.study import Report, compare, label

HELD_OUT = 10_000
DRAWS = {"fashion-mnist": (901, 902, 903), "cifar10": (901, 902)}
SETTINGS: dict[str, dict[str, Any]] = {
    "fashion-mnist": {"partition.alpha": 0.5, "train.rounds": 2000, "train.lr_decay": 0.999},
    "cifar10": {"partition.alpha": 0.1, "train.rounds": 3000, "train.lr_decay": 0.999, "train.batch": 256},
}

_STEPS = [0.05, 0.1, 0.2, 0.4, 0.8]
_POWERS = [0.1, 0.5, 1.0, 2.0]
_PLAIN = (
    "mean",
    "fedavg",
    "rfa",
    "faba",
    "krum",
    "multi-krum",
    "cwtm",
    "median",
    "centered-clipping",
    "lfighter",
    "bant",
)
TUNING: dict[str, Grid] = {
    **{name: {"train.lr": _STEPS} for name in _PLAIN},
    "fairmean": {"kappa": [0.5, 1.0, 4.0], "train.lr": _STEPS},
    "fairmean-normalised": {"kappa": [1.0, 4.0, 16.0], "train.lr": _STEPS},
    "fairmean-split": {"train.lr": _STEPS},
    **{name: {"q": _POWERS, "train.lr": _STEPS[1:]} for name in ("qffl", "qffl-normalised", "h-nobs", "qffl+cwtm")},
    "term+": {"t": [0.5, 1.0, 2.0], "train.lr": _STEPS[1:]},
    "term-": {"t": [-0.5, -1.0, -2.0], "train.lr": _STEPS[1:]},
    "term-hierarchical": {"t_in": [-0.5, -1.0], "train.lr": _STEPS[1:]},
    "drfl": {"train.lr": _STEPS},
    "adafed": {"gamma": [0.5, 1.0, 2.0], "normalise": [True], "train.lr": [0.3, 1.0, 3.0]},
    "fedmgda+": {"epsilon": [0.1, 0.5, 1.0], "train.lr": [0.3, 1.0, 3.0]},
    "fairmoo": {"train.lr": _STEPS[:4]},
    "fedmdfg": {"train.lr": _STEPS[:4]},
    "fedlf": {"train.lr": _STEPS[:4]},
}
"""By method; ``term+`` and ``term-`` are TERM with t of either sign."""


BFLOAT16 = (
    *("mean", "fedavg", "fairmean", "fairmean-normalised", "fairmean-split", "fairmean-equal"),
    *("qffl", "h-nobs", "term+", "term-", "term-hierarchical", "drfl"),
)
FLOAT32 = ("adafed", "fedmgda+")


def precision(method: str) -> str:
    """Rules on sums and losses, and H-nobs, in bfloat16; two that react to the smallest differences in float32."""
    return "bfloat16" if method in BFLOAT16 else "float32" if method in FLOAT32 else "tf32"


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
    """For data.name = fairmean.reproduce.tuning:fashion_mnist."""
    return validation("fashion-mnist")


def cifar10() -> Dataset:
    """For data.name = fairmean.reproduce.tuning:cifar10."""
    return validation("cifar10")


def specs(methods: Iterable[str] | None = None) -> Iterator[tuple[str, str]]:
    """(method, spec) of every point of the grids."""
    for name, grid in TUNING.items():
        if methods is None or name in methods:
            for spec in points("term" if name in ("term+", "term-") else name, grid):
                yield name, spec


def run(
    dataset: str, methods: Iterable[str] | None = None, *, report: Report | None = None, **overrides: Any
) -> list[dict[str, Any]]:
    """One record per method, spec and tuning draw, with its validation figures, at the method's own precision."""
    grids = list(specs(methods))
    records: list[dict[str, Any]] = []
    for dtype in dict.fromkeys(precision(name) for name, _ in grids):
        some = {spec: name for name, spec in grids if precision(name) == dtype}
        records += _run(dataset, some, report, {"train.dtype": dtype} | overrides)
    return records


def _run(
    dataset: str, chosen: dict[str, str], report: Report | None, overrides: dict[str, Any]
) -> list[dict[str, Any]]:
    settings = SETTINGS[dataset] | {
        "data.name": f"fairmean.reproduce.tuning:{dataset.replace('-', '_')}",
        "run.name": f"tuning-{dataset}",
        "run.eval_every": 1000,
    }
    names = {label(spec): spec for spec in chosen}
    found = compare(
        methods=list(chosen), attacks=["none"], seeds=list(DRAWS[dataset]), report=report, **settings | overrides
    )
    records = []
    for record in found.records:
        spec = names[record["method"]]
        figures = {key: record[key] for key in ("average", "variance", "worst")}
        dtype = overrides["train.dtype"]
        records.append({"method": chosen[spec], "spec": spec, "dtype": dtype, "seed": record["seed"], **figures})
    return records


def score(records: Iterable[Mapping[str, Any]]) -> float:
    """The mean over draws of (average + worst)/2; −∞ if a draw diverged."""
    values = np.array([(record["average"] + record["worst"]) / 2 for record in records], dtype=float)
    return float(values.mean()) if len(values) and np.isfinite(values).all() else -np.inf


def choose(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The spec with the highest score for each method; of equal ones to two decimals, the one with the smaller step."""
    by_spec: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        by_spec.setdefault((record["method"], record["spec"]), []).append(record)
    best: dict[str, tuple[tuple[float, float], str]] = {}
    for (name, spec), mine in by_spec.items():
        step = float(spec.rpartition("train.lr=")[2])
        key = (round(score(mine), 2), -step)
        if name not in best or key > best[name][0]:
            best[name] = (key, spec)
    return {name: spec for name, (_, spec) in best.items()}
