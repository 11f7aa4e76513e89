"""What ``fairmean reproduce`` does: tables and figures of the paper, with ours beside them, into one folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fairmean.experiments.building import build_simulator
from fairmean.experiments.config import gather, parse
from fairmean.experiments.identity import resolve
from fairmean.experiments.study import Report, compare, label
from paper import calibration, figures, paper, render
from paper.calibration import CHOSEN, PROTOCOL, Row

DELTAS = (0.0, 0.1, 0.2, 0.3)
QUICK: dict[str, Any] = {"data.name": "fashion-mnist-mini", "train.rounds": 3, "train.batch": 0, "model.name": "linear"}
"""Embedded data, a few rounds: shows that everything works, and nothing else."""

Say = Callable[[str], None]


def reproduce(
    what: str,
    folder: Path,
    *,
    quick: bool = False,
    search: bool = False,
    report: Report | None = None,
    say: Say = print,
    overrides: Mapping[str, Any] | None = None,
) -> None:
    """Make one of ``WHAT``; ``search`` runs the whole grids of the calibration, not only what they gave."""
    overrides = dict(overrides or {})
    if what == "fig1":
        written = figures.figure1(folder)
    elif what == "fig2":
        written = _figure2(folder, quick, report, say, overrides)
    else:
        written = _table(what, folder, quick, search, report, say, overrides)
    say("wrote " + ", ".join(map(str, written)))


def _table(
    table: str, folder: Path, quick: bool, search: bool, report: Report | None, say: Say, overrides: dict[str, Any]
) -> list[Path]:
    methods = CHOSEN[table]
    chosen = list(calibration.specs(table)) if search else list(methods.values())
    settings: dict[str, Any] = (QUICK if quick else {}) | {"run.dir": str(folder / "runs")} | overrides
    _announce(table, len(chosen) * len(paper.ATTACKS), settings, say)
    records = calibration.run(table, chosen, report=report, **settings)
    folder.mkdir(parents=True, exist_ok=True)
    changed = ", ".join(key for key in overrides if key not in ("train.device", "train.dtype", "run.dir", "data.path"))
    name = f"{table}-quick" if quick else f"{table}-changed" if changed else table
    if search:
        calibration.write(folder / f"{name}-search.csv", records)
    rows = [_best(calibration.rows(records), table, method) for method in methods]
    files = {"csv": render.as_csv(table, rows), "tex": render.as_latex(table, rows), "txt": render.text(table, rows)}
    for kind, content in files.items():
        (folder / f"{name}.{kind}").write_text(content, encoding="utf-8")
    say("\n".join([_title(table, quick, changed), render.text(table, rows), "", render.settings(table, rows), ""]))
    if not quick:
        say("\n".join(render.orderings(table, rows)))
        far = render.far_cells(table, rows)
        say("\n".join(["further than 3 points from the paper:", *(f"  {line}" for line in far or ["none"])]))
    return [folder / f"{name}.{kind}" for kind in files]


def _best(rows: Sequence[Row], table: str, method: str) -> Row:
    """The paper has no row of Mean and of our variants: theirs are compared with its FairMean."""
    return calibration.nearest(rows, table, method, None if method in paper.TABLES[table] else "fairmean")


def _title(table: str, quick: bool, changed: str) -> str:
    data = {"table1": "Table 1, CIFAR-10", "table2": "Table 2, Fashion-MNIST"}[table]
    if quick:
        return f"{data}: QUICK, embedded images and three rounds; the numbers mean nothing"
    if changed:
        return f"{data}: NOT the paper's protocol, you changed {changed}; accuracy in %, variance in %²"
    return f"{data}: calibrated on the paper's one draw; average and worst accuracy in %, variance in %²"


def _figure2(folder: Path, quick: bool, report: Report | None, say: Say, overrides: dict[str, Any]) -> list[Path]:
    """Pairwise flips on Fashion-MNIST by the last clients, δ from 0 to 0.3, with the settings of Table 2."""
    table = "table2"
    settings = PROTOCOL[table] | (QUICK if quick else {}) | {"run.dir": str(folder / "runs"), "run.name": "fig2"}
    settings |= {"run.eval_every": 1000} | overrides
    _announce("fig2", len(CHOSEN[table]) * len(DELTAS), settings, say)
    curves: dict[str, list[paper.Cell]] = {method: [] for method in CHOSEN[table]}
    for delta in DELTAS:
        told = {
            method: calibration.told(spec, round(10 * delta)) if method in calibration.DEFENCES else spec
            for method, spec in CHOSEN[table].items()
        }
        attack = [f"pairwise:fraction={delta}"] if delta else ["none"]
        found = compare(methods=list(told.values()), attacks=attack, report=report, **settings)
        by_label = {record["method"]: record for record in found.records}
        for method, spec in told.items():
            record = by_label[label(spec)]
            curves[method].append((record["average"], record["variance"], record["worst"]))
    folder.mkdir(parents=True, exist_ok=True)
    name = "fig2-quick" if quick else "fig2"
    lines = ["method,delta,average,variance,worst"]
    for method, cells in curves.items():
        for delta, cell in zip(DELTAS, cells, strict=True):
            lines.append(f"{method},{delta:g},{','.join(f'{value:.2f}' for value in cell)}")
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    for method, stated in paper.FIGURE2.items():
        _, variance, worst = curves[method][-1]
        theirs = f"{stated['variance']:.2f}, {stated['worst']:.2f}"
        say(f"δ = 0.3, {render.NAMES[method]}: variance {variance:.2f}, worst {worst:.2f} (paper: {theirs})")
    return [folder / f"{name}.csv", *figures.figure2(folder, name, DELTAS, curves)]


def _announce(what: str, runs: int, settings: dict[str, Any], say: Say) -> None:
    """Where it will run and about how long it takes: measured on two rounds on a CPU."""
    table = "table1" if what == "table1" else "table2"
    config = resolve(parse(gather(None, PROTOCOL[table] | settings)))
    rounds = config.train.rounds
    text = f"{what}: {runs} runs of {rounds:,} rounds on {config.train.device}"
    if torch.device(config.train.device).type == "cpu":
        simulator = build_simulator(config)
        simulator.step(0)
        began = time.perf_counter()
        simulator.step(1)
        hours = (time.perf_counter() - began) * rounds * runs / 3600
        text += f", about {hours:.1f} hours" if hours > 0.05 else ""
        text += " (a GPU takes minutes)" if hours > 1 else ""
    say(f"{text}; an interrupted command goes on where it stopped")
