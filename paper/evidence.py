"""The evidence: every method over many paired draws, with hyper-parameters that tuning chose (docs/claims.md)."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.experiments.study import Report, compare, label
from paper.claims import ATTACKED, EQUAL, THREE_POISONED
from paper.paper import METRICS
from paper.tuning import SETTINGS, precision

ATTACKS = ("none", *ATTACKED)
DRAWS = {"fashion-mnist": range(1001, 1021), "cifar10": range(1001, 1011)}
FIELDS = ("method", "spec", "dtype", "rounds", "attack", "seed", "status", *METRICS)
TRUST = {"fashion-mnist": 500}
"""Clean test images that BANT's server owns: left out of the test data of every method, so that all stay paired."""

TUNED: dict[str, dict[str, str]] = {
    "fashion-mnist": {
        "mean": "mean:train.lr=0.4",
        "fedavg": "fedavg:train.lr=0.4",
        "qffl": "qffl:q=0.1:train.lr=0.4",
        "adafed": "adafed:gamma=0.5:normalise=true:train.lr=3.0",
        "fedmgda+": "fedmgda+:epsilon=0.05:train.lr=3.0",
        "h-nobs": "h-nobs:q=0.05:train.lr=0.4",
        "qffl+cwtm": "qffl+cwtm:q=0.1:train.lr=0.4",
        "fairmean": "fairmean:kappa=0.5:train.lr=0.4",
        "fairmean-normalised": "fairmean-normalised:kappa=16.0:train.lr=0.4",
        "fairmean-split": "fairmean-split:train.lr=0.4",
        "term+": "term:t=1.0:train.lr=0.4",
        "term-": "term:t=-0.5:train.lr=0.4",
        "term-hierarchical": "term-hierarchical:t_in=-0.25:train.lr=0.8",
        "drfl": "drfl:train.lr=0.4",
        "qffl-normalised": "qffl-normalised:q=0.1:train.lr=0.8",
        "fairmoo": "fairmoo:train.lr=0.4",
        "rfa": "rfa:train.lr=0.4",
        "faba": "faba:train.lr=0.4",
        "krum": "krum:train.lr=0.2",
        "multi-krum": "multi-krum:train.lr=0.4",
        "cwtm": "cwtm:train.lr=0.8",
        "median": "median:train.lr=0.4",
        "centered-clipping": "centered-clipping:train.lr=1.6",
        "lfighter": "lfighter:train.lr=0.2",
        "bant": "bant:train.lr=0.4",
        "fedlf": "fedlf:train.lr=0.2",
        "fedmdfg": "fedmdfg:train.lr=0.05",
    },
    "cifar10": {
        "mean": "mean:train.lr=0.2",
        "fedavg": "fedavg:train.lr=0.2",
        "qffl": "qffl:q=0.1:train.lr=0.4",
        "adafed": "adafed:gamma=2.0:normalise=true:train.lr=3.0",
        "fedmgda+": "fedmgda+:epsilon=0.5:train.lr=3.0",
        "h-nobs": "h-nobs:q=0.1:train.lr=0.4",
        "qffl+cwtm": "qffl+cwtm:q=0.5:train.lr=0.1",
        "fairmean": "fairmean:kappa=1.0:train.lr=0.2",
        "fairmean-normalised": "fairmean-normalised:kappa=16.0:train.lr=0.2",
        "fairmean-split": "fairmean-split:train.lr=0.4",
        "term+": "term:t=0.5:train.lr=0.4",
        "term-": "term:t=-0.5:train.lr=0.4",
        "rfa": "rfa:train.lr=0.4",
        "multi-krum": "multi-krum:train.lr=0.4",
        "centered-clipping": "centered-clipping:train.lr=0.8",
    },
}
"""What ``tuning.choose`` gave from results/tuning-*.csv."""


def specs(dataset: str) -> dict[str, str]:
    """A spec per method of the table: what tuning chose, and FairMean's weighting at Mean's step."""
    tuned = TUNED[dataset]
    if not {"fairmean", "mean"} <= set(tuned):
        return tuned
    kappa = next(part for part in tuned["fairmean"].split(":") if part.startswith("kappa="))
    step = next(part for part in tuned["mean"].split(":") if part.startswith("train.lr="))
    return tuned | {EQUAL: f"fairmean-normalised:{kappa}:{step}"}


@dataclass(frozen=True)
class Evidence:
    """The long table of one data set."""

    dataset: str
    records: list[dict[str, Any]]

    @cached_property
    def _by_key(self) -> dict[tuple[str, str], dict[int, dict[str, Any]]]:
        found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        for record in self.records:
            found.setdefault((record["method"], record["attack"]), {})[record["seed"]] = record
        return found

    @property
    def seeds(self) -> list[int]:
        """The draws."""
        return sorted({record["seed"] for record in self.records})

    @property
    def methods(self) -> list[str]:
        """In the order of the table."""
        return list(dict.fromkeys(record["method"] for record in self.records))

    def values(self, method: str, attack: str, metric: str) -> NDArray[np.float64] | None:
        """One number per draw, NaN where there is none; None where the method was not run.

        A run that diverged has no model: its average and worst accuracy are 0, and it has no variance.
        """
        mine = self._by_key.get((method, attack))
        if mine is None:
            return None
        return np.array([_figure(mine.get(seed), metric) for seed in self.seeds])

    def not_run(self, method: str, attack: str) -> int:
        """In how many draws a method was not run."""
        return len(self.seeds) - len(self._by_key.get((method, attack), ()))

    def spec(self, method: str) -> tuple[str, str, str]:
        """(spec, dtype, rounds) of a method's runs."""
        record = next(record for record in self.records if record["method"] == method)
        return record["spec"], record["dtype"], record["rounds"]


def _figure(record: dict[str, Any] | None, metric: str) -> float:
    if record is None:
        return math.nan
    if record["status"] == "diverged":
        return math.nan if metric == "variance" else 0.0
    return float(record[metric])


def run(
    dataset: str,
    methods: Iterable[str] | Mapping[str, str] | None = None,
    *,
    seeds: Sequence[int] | None = None,
    attacks: Sequence[str] = ATTACKS,
    report: Report | None = None,
    **overrides: Any,
) -> list[dict[str, Any]]:
    """Records of these methods (or specs by name) over these draws, at each method's precision."""
    known = methods if isinstance(methods, Mapping) else specs(dataset)
    chosen = {name: known[name] for name in methods or known}
    settings: dict[str, Any] = SETTINGS[dataset] | {
        "data.trust": TRUST.get(dataset, 0),
        "data.name": dataset,
        "attack.pick": "random",
        "run.name": f"evidence-{dataset}",
        "run.eval_every": 1000,
    }
    told = {attack: "pairwise:clients=3" if attack == THREE_POISONED else attack for attack in attacks}
    attack_names = {label(spec): attack for attack, spec in told.items()}
    records = []
    for dtype in dict.fromkeys(precision(name, dataset) for name in chosen):
        some = {name: spec for name, spec in chosen.items() if precision(name, dataset) == dtype}
        lists: dict[str, Any] = {"methods": list(dict.fromkeys(some.values())), "attacks": list(told.values())}
        lists["seeds"] = list(seeds or DRAWS[dataset])
        every = settings | {"train.dtype": dtype} | overrides
        found = compare(report=report, **lists, **every)
        for (name, spec), record in itertools.product(some.items(), found.records):
            if record["method"] != label(spec):
                continue
            row = {"method": name, "spec": spec, "dtype": every["train.dtype"], "rounds": str(every["train.rounds"])}
            row |= {"attack": attack_names[record["attack"]], "seed": record["seed"], "status": record["status"]}
            records.append(row | {metric: record[metric] for metric in METRICS})
    return records


def write(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """A long table, compressed, the same bytes for the same records."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for record in records:
        rounded = {m: "" if math.isnan(record[m]) else f"{record[m]:.4f}" for m in METRICS}
        writer.writerow({**record, **rounded})
    file.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def read(file: Path, dataset: str) -> Evidence:
    """What ``write`` wrote."""
    rows = csv.DictReader(io.StringIO(gzip.decompress(file.read_bytes()).decode()))
    records = [{**row, "seed": int(row["seed"]), **{m: float(row[m] or "nan") for m in METRICS}} for row in rows]
    return Evidence(dataset, records)
