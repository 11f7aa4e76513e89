"""Calibration: which settings bring each method's row nearest to the paper's, on the paper's own draw.

The paper states neither step sizes nor hyper-parameters. The grids below are searched on its single draw (partition
seed 1, clients 8 and 9 poisoned), and the row nearest to the paper's is reported as what it is: fitted to the answer.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairmean.experiments.study import Report, compare, label
from paper import paper
from paper.grids import Grid, points

PROTOCOL: dict[str, dict[str, Any]] = {
    "table1": {
        "data.name": "cifar10",
        "partition.alpha": 0.1,
        "train.rounds": 1500,  # where FedAvg comes nearest to the paper's row (results/rounds-cifar10.csv)
        "train.batch": 256,
        "train.lr_decay": 0.999,
    },
    "table2": {"data.name": "fashion-mnist", "partition.alpha": 0.5, "train.rounds": 2000, "train.lr_decay": 0.999},
}
"""What is the same for every method; the rest is the default: 10 clients, seed 1, clients 8 and 9 poisoned."""

GRIDS: dict[str, dict[str, Grid]] = {
    "table1": {
        "fedavg": {"train.lr": [0.1, 0.15, 0.2, 0.3, 0.4, 0.5]},
        "mean": {"train.lr": [0.1, 0.15, 0.2, 0.3, 0.4, 0.5]},
        "qffl": {"q": [0.1, 0.2, 0.5, 1.0, 2.0], "train.lr": [0.05, 0.1, 0.2, 0.3, 0.4, 0.8]},
        "adafed": {"gamma": [0.5, 1.0, 2.0], "train.lr": [1.0, 2.0, 3.0], "normalise": [True]},
        "fedmgda+": {"epsilon": [0.1, 0.3, 0.6, 1.0], "train.lr": [1.0, 1.5, 2.0, 3.0]},
        "h-nobs": {"q": [0.1, 0.2, 0.5, 1.0], "train.lr": [0.1, 0.2, 0.3, 0.4]},
        "qffl+cwtm": {"q": [0.1, 0.5, 1.0], "train.lr": [0.05, 0.1, 0.2, 0.4]},
        "fairmean": {"kappa": [0.25, 0.5, 1.0, 2.0, 4.0], "tau": [1.0], "train.lr": [0.1, 0.2, 0.3, 0.4]},
        "fairmean-normalised": {"kappa": [1.0, 4.0, 16.0], "tau": [1.0], "train.lr": [0.1, 0.2, 0.3, 0.4]},
        "fairmean-split": {"train.lr": [0.1, 0.2, 0.3, 0.4]},
    },
    "table2": {
        "fedavg": {"train.lr": [0.05, 0.1, 0.2, 0.3, 0.5, 0.8], "train.lr_decay": [0.999, 1.0]},
        "mean": {"train.lr": [0.05, 0.1, 0.2, 0.3, 0.5, 0.8], "train.lr_decay": [0.999, 1.0]},
        "qffl": {"q": [0.1, 0.2, 0.5, 1.0, 2.0], "train.lr": [0.1, 0.2, 0.3, 0.5, 0.8]},
        "adafed": {"gamma": [1.0, 2.0, 3.0], "train.lr": [3.0, 6.0], "normalise": [True]},
        "fedmgda+": {"epsilon": [0.6, 1.0], "train.lr": [1.0, 3.0, 6.0, 9.0]},
        "h-nobs": {"q": [0.1, 0.2, 0.5, 1.0, 2.0], "train.lr": [0.1, 0.2, 0.3, 0.5, 0.8]},
        "qffl+cwtm": {"q": [0.1, 0.5, 1.0], "train.lr": [0.1, 0.3, 0.8]},
        "fairmean": {
            "kappa": [0.25, 0.5, 1.0, 2.0, 4.0],
            "tau": [0.5, 1.0, 2.0],
            "train.lr": [0.05, 0.1, 0.15, 0.2, 0.3, 0.5],
        },
        "fairmean-normalised": {"kappa": [1.0, 4.0], "tau": [0.5, 1.0, 2.0], "train.lr": [0.1, 0.2, 0.3, 0.5]},
        "fairmean-split": {"kappa": [4.0, 16.0], "beta": [0.5, 1.0], "train.lr": [0.1, 0.2, 0.3, 0.5]},
    },
}
CHOSEN: dict[str, dict[str, str]] = {
    "table1": {
        "fedavg": "fedavg:train.lr=0.2",
        "qffl": "qffl:q=0.5:train.lr=0.3",
        "adafed": "adafed:gamma=1.0:train.lr=2.0:normalise=true",
        "fedmgda+": "fedmgda+:epsilon=0.6:train.lr=1.5",
        "h-nobs": "h-nobs:q=0.5:train.lr=0.2",
        "qffl+cwtm": "qffl+cwtm:q=1.0:train.lr=0.2",
        "fairmean": "fairmean:kappa=1.0:tau=1.0:train.lr=0.3",
        "mean": "mean:train.lr=0.2",
        "fairmean-normalised": "fairmean-normalised:kappa=4.0:tau=1.0:train.lr=0.2",
        "fairmean-split": "fairmean-split:train.lr=0.4",
    },
    "table2": {
        "fedavg": "fedavg:train.lr=0.3:train.lr_decay=0.999",
        "qffl": "qffl:q=0.1:train.lr=0.5",
        "adafed": "adafed:gamma=1.0:train.lr=3.0:normalise=true",
        "fedmgda+": "fedmgda+:epsilon=0.6:train.lr=3.0",
        "h-nobs": "h-nobs:q=0.1:train.lr=0.1",
        "qffl+cwtm": "qffl+cwtm:q=1.0:train.lr=0.1",
        "fairmean": "fairmean:kappa=0.25:tau=1.0:train.lr=0.5",
        "mean": "mean:train.lr=0.5:train.lr_decay=0.999",
        "fairmean-normalised": "fairmean-normalised:kappa=1.0:tau=0.5:train.lr=0.5",
        "fairmean-split": "fairmean-split:kappa=16.0:beta=0.5:train.lr=0.5",
    },
}
"""What the search gave: each method's nearest row. Methods that the paper has not are compared with its FairMean."""

DEFENCES = ("h-nobs", "qffl+cwtm")
"""Told f = 2 under attack and f = 0 without, where they equal q-FFL, as the paper's tables show."""

FIELDS = ("spec", "attack", "status", *paper.METRICS)


@dataclass(frozen=True)
class Row:
    """A method with its settings, and its cell under every attack: NaN where it has none."""

    spec: str
    cells: dict[str, paper.Cell]

    @property
    def method(self) -> str:
        """Its name."""
        return self.spec.split(":")[0]


def specs(table: str, methods: Iterable[str] | None = None) -> Iterator[str]:
    """Every point of the grids, as ``name:key=value:…``."""
    for name, grid in GRIDS[table].items():
        if methods is None or name in methods:
            yield from points(name, grid)


def run(
    table: str,
    some: Sequence[str],
    *,
    attacks: Sequence[str] = paper.ATTACKS,
    report: Report | None = None,
    together: int | None = None,
    **overrides: Any,
) -> list[dict[str, Any]]:
    """Records of these specs on the paper's draw; a defence without an attack is told f = 0."""
    settings = PROTOCOL[table] | {"run.name": table, "run.eval_every": 1000} | overrides
    records: list[dict[str, Any]] = []
    defences = [spec for spec in some if spec.split(":")[0] in DEFENCES]
    plain = [spec for spec in some if spec not in defences]
    for meant, which in (
        ({spec: spec for spec in plain}, attacks),
        ({spec: told(spec, 0) for spec in defences}, [a for a in attacks if a == "none"]),
        ({spec: told(spec) for spec in defences}, [a for a in attacks if a != "none"]),
    ):
        if meant and which:
            these = list(dict.fromkeys(meant.values()))  # told f = 0, defences that differ in f alone are one
            found = compare(methods=these, attacks=list(which), report=report, together=together, **settings)
            for spec, known in meant.items():
                mine = [record for record in found.records if record["method"] == label(known)]
                records += [{"spec": spec, **{key: record[key] for key in FIELDS[1:]}} for record in mine]
    return records


def told(spec: str, f: int | None = None) -> str:
    """A defence's spec with the f that it is told: this one, or its own, or 2."""
    parts = [part for part in spec.split(":") if not part.startswith("f=")]
    own = next((part for part in spec.split(":") if part.startswith("f=")), "f=2")
    return ":".join([*parts, own if f is None else f"f={f}"])


def write(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """A small table: two decimals say all that 10,000 test images can."""
    with open(file, "w", newline="") as out:
        writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
        writer.writeheader()
        for record in records:
            rounded = {m: "" if math.isnan(record[m]) else f"{record[m]:.2f}" for m in paper.METRICS}
            writer.writerow({**record, **rounded})


def read(file: Path) -> list[Row]:
    """The rows of a table that ``write`` wrote."""
    with open(file, newline="") as lines:
        return rows(csv.DictReader(lines))


def rows(records: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Records of one spec under several attacks, as a row."""
    nothing = dict.fromkeys(paper.ATTACKS, (math.nan, math.nan, math.nan))
    found: dict[str, dict[str, paper.Cell]] = {}
    for record in records:
        values = [math.nan if record[m] == "" else float(record[m]) for m in paper.METRICS]
        found.setdefault(record["spec"], dict(nothing))[record["attack"]] = (values[0], values[1], values[2])
    return [Row(spec, cells) for spec, cells in found.items()]


def distance(row: Row, target: Sequence[paper.Cell]) -> float:
    """Mean difference to the paper's row in points: of average, of worst, and of the standard deviation √variance."""
    total = []
    for attack, (average, variance, worst) in zip(paper.ATTACKS, target, strict=True):
        a, v, w = row.cells[attack]
        total += [abs(a - average), abs(math.sqrt(v) - math.sqrt(variance)) if v >= 0 else math.nan, abs(w - worst)]
    return sum(total) / len(total)


def nearest(rows: Iterable[Row], table: str, method: str, target: str | None = None) -> Row:
    """The row of a method that comes nearest to the paper's (of ``target``, for a method that the paper has not)."""
    goal = paper.TABLES[table][target or method]
    mine = [row for row in rows if row.method == method]
    return min(mine, key=lambda row: (math.isnan(distance(row, goal)), distance(row, goal)))
