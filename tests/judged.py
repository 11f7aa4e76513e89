"""Three small runs on tables with named clients: numbers under an attack, two classes, and samples held out."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

import fairmean
from fairmean.experiments.reading import Run

SITES = ("Ulm, Donau", 'Bern "Insel"', "<b>Graz</b>", "Oslo & Co", "Turku")
"""Names with commas, quotation marks and markup."""
SIZES = (60, 50, 40, 30, 8)


def table(file: Path, kind: str) -> str:
    """A table with a column of sites, the last of which is small; its target is a number, or one of two words."""
    draw = np.random.default_rng(5)
    site = np.repeat(np.arange(len(SITES)), SIZES)
    x = draw.normal(size=(len(site), 3))
    y = 0.02 * (x @ [1.0, -2.0, 0.5] + 0.3 * site) + draw.normal(0, 0.01, len(site))
    target = [f"{value:.5f}" for value in y] if kind == "regression" else ["ill" if v > 0.02 else "well" for v in y]
    with open(file, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["a", "b", "c", "site", "target"])
        writer.writerows([*row, SITES[s], t] for row, s, t in zip(x.round(4), site, target, strict=True))
    return str(file)


def made(folder: Path) -> dict[str, Run]:
    """The runs by name."""
    regression, binary = (table(folder / f"{kind}.csv", kind) for kind in ("regression", "binary"))
    common: dict[str, Any] = {"train": {"rounds": 6, "lr": 0.1}, "method": {"name": "mean"}}

    def run(name: str, file: str, attack: dict[str, object], **data: object) -> Run:
        asked = {"name": file, "target": "target", "client": "site", **data}
        place = {"dir": str(folder / "runs"), "name": name, "eval_every": 2}
        return fairmean.run(data=asked, attack=attack, run=place, **common)

    return {
        "regression": run("regression", regression, {"name": "sign", "clients": 1}),
        "binary": run("binary", binary, {"name": "none"}),
        "held out": run("held-out", regression, {"name": "none"}, validation=0.3),
    }
