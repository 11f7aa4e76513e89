"""A comparison as a plain-text table: what ``print`` shows of it."""

from __future__ import annotations

import itertools
import math
import os
import sys
from typing import TYPE_CHECKING

from fairmean.data.tasks import task
from fairmean.experiments import statistics
from fairmean.text import decimals

if TYPE_CHECKING:
    from fairmean.experiments.study import Cell, Comparison

_LOST = "†"
SHOWN = (("average", "avg"), ("variance", "var"), ("worst", "worst"))


def comparison(result: Comparison, colour: bool | None = None) -> str:
    """Method × attack: average, variance, worst; the best of each column in bold (or starred, without colour).

    A cell of which some seeds did not finish is marked, and what it holds is over the others; it is never the best.
    """
    colour = in_colour() if colour is None else colour
    blocks = [_block(result, None, colour)]
    baseline = next((m for m in result.methods if m == "mean"), None)
    if len(result.seeds) > 1:
        interval, reason = (" ± 95 % CI", "") if statistics.available() else ("", f" ({statistics.MISSING})")
        blocks[0] = f"mean{interval} over {len(result.seeds)} paired seeds{reason}\n" + blocks[0]
        if baseline and len(result.methods) > 1:
            sign = f",{interval}" if interval else ""
            blocks.append(f"difference to {baseline}, paired by seed{sign}\n" + _block(result, baseline, colour))
    lost = [
        f"{_LOST} {method} · {attack}: {count} of {len(cell.status)} seeds {what}; the others are shown"
        for (method, attack), cell in result.cells.items()
        for what, count in cell.lost.items()
        if count < len(cell.status)
    ]
    return "\n\n".join([*blocks, *(["\n".join(lost)] if lost else [])])


def in_colour() -> bool:
    """Whether to print in bold: on a terminal, unless NO_COLOR asks not to; elsewhere, if FORCE_COLOR asks for it."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def _block(result: Comparison, baseline: str | None, colour: bool) -> str:
    methods = [m for m in result.methods if m != baseline]
    cells: dict[tuple[str, str, str], str] = {}
    best: set[tuple[str, str, str]] = set()
    judged = task(result.config.data.task).metric
    digits = {metric: None if judged.unit == "%" else _decimals(result, metric) for metric, _ in SHOWN}
    for attack, (metric, _) in itertools.product(result.attacks, SHOWN):
        pick = max if judged.higher and metric != "variance" else min
        base = result.cells[baseline, attack] if baseline else None
        whole = {}
        for m in methods:
            cell = result.cells[m, attack]
            value, half = cell.estimate(metric, base)
            cells[m, attack, metric] = _entry(cell, value, half, base, digits[metric])
            if base is None and not cell.lost and not math.isnan(value):
                whole[m] = value
        fine = 2 if (few := digits[metric]) is None else few
        best |= {(m, attack, metric) for m, v in whole.items() if round(v, fine) == round(pick(whole.values()), fine)}
    width = max(7, *map(len, cells.values())) + 2
    name = max(len(m) for m in [*methods, "method"])
    lines = [
        (" " * name + "".join(attack.center(3 * width) for attack in result.attacks)).rstrip(),
        ("method".ljust(name) + "".join(label.rjust(width - 1) + " " for _ in result.attacks for _, label in SHOWN)),
    ]
    for m in methods:
        line = m.ljust(name)
        for attack, (metric, _) in itertools.product(result.attacks, SHOWN):
            key = (m, attack, metric)
            text = cells[key].rjust(width - 1)
            line += (f"\033[1m{text}\033[0m " if colour else f"{text}*") if key in best else f"{text} "
        lines.append(line)
    return "\n".join(line.rstrip() for line in lines)


def _decimals(result: Comparison, metric: str) -> int:
    """So many that four digits count: an error may have any size."""
    return 1 + decimals(cell.estimate(metric, None)[0] for cell in result.cells.values())


def _entry(cell: Cell, value: float, half: float, base: Cell | None, digits: int | None = None) -> str:
    """A figure with its interval; or, where there is none, why."""
    lost = cell.lost or (base.lost if base else {})
    if math.isnan(value):
        return next(iter(lost), "no data")
    if digits is None:
        digits = 1 if abs(value) >= 100 else 2
    text = f"{value:.{digits}f}" if base is None else f"{value:+.{digits}f}"
    return text + ("" if math.isnan(half) else f"±{half:.2g}") + (_LOST if cell.lost else "")
