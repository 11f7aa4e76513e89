"""Plain-text tables for the terminal."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence

from fairmean import statistics
from fairmean.config import Config
from fairmean.experiment import Result, poisoned
from fairmean.metrics import METRICS
from fairmean.study import Cell, Comparison

_LOST = "†"
SHOWN = (("average", "avg", max), ("variance", "var", min), ("worst", "worst", max))


def columns(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Rows under a header, columns padded to their widest entry."""
    every = [list(header), *map(list, rows)]
    widths = [max(_width(row[i]) for row in every) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in every
    )


def _width(text: str) -> int:
    """Columns on a terminal: a tilde over an f takes none."""
    return sum(not unicodedata.combining(character) for character in text)


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
    """Whether to print in bold: on a terminal, unless NO_COLOR asks not to."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _block(result: Comparison, baseline: str | None, colour: bool) -> str:
    methods = [m for m in result.methods if m != baseline]
    cells: dict[tuple[str, str, str], str] = {}
    best: set[tuple[str, str, str]] = set()
    for attack, (metric, _, pick) in itertools.product(result.attacks, SHOWN):
        base = result.cells[baseline, attack] if baseline else None
        whole = {}
        for m in methods:
            cell = result.cells[m, attack]
            value, half = cell.estimate(metric, base)
            cells[m, attack, metric] = _entry(cell, value, half, base)
            if base is None and not cell.lost and not math.isnan(value):
                whole[m] = value
        best |= {(m, attack, metric) for m, v in whole.items() if round(v, 2) == round(pick(whole.values()), 2)}
    width = max(7, *map(len, cells.values())) + 2
    name = max(len(m) for m in [*methods, "method"])
    lines = [
        (" " * name + "".join(attack.center(3 * width) for attack in result.attacks)).rstrip(),
        ("method".ljust(name) + "".join(label.rjust(width - 1) + " " for _ in result.attacks for _, label, _ in SHOWN)),
    ]
    for m in methods:
        line = m.ljust(name)
        for attack, (metric, _, _) in itertools.product(result.attacks, SHOWN):
            key = (m, attack, metric)
            text = cells[key].rjust(width - 1)
            line += (f"\033[1m{text}\033[0m " if colour else f"{text}*") if key in best else f"{text} "
        lines.append(line)
    return "\n".join(line.rstrip() for line in lines)


def _entry(cell: Cell, value: float, half: float, base: Cell | None) -> str:
    """A figure with its interval; or, where there is none, why."""
    lost = cell.lost or (base.lost if base else {})
    if math.isnan(value):
        return next(iter(lost), "no data")
    digits = 1 if abs(value) >= 100 else 2
    text = f"{value:.{digits}f}" if base is None else f"{value:+.{digits}f}"
    return text + ("" if math.isnan(half) else f"±{half:.2g}") + (_LOST if cell.lost else "")


def records(rows: Sequence[dict[str, object]]) -> str:
    """Rows of a catalogue."""
    header = list(rows[0])
    text = columns([[_plain(row[key]) for key in header] for row in rows], header)
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(line if len(line) <= width else line[: width - 1] + "…" for line in text.splitlines())


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={inner}" for key, inner in value.items())
    return str(value)


def headline(config: Config) -> str:
    """What was run, in one line; under an attack, who is poisoned."""
    part, attack, ids = config.partition, config.attack, poisoned(config)
    who = ", ".join(map(str, ids)) if len(ids) <= 5 and attack.pick == "last" else f"({len(ids)} of {part.clients})"
    kind = f"Dirichlet {part.alpha:g}" if part.name == "dirichlet" else part.name
    attacked = f"clients {who} poisoned" if len(ids) else "none poisoned"
    parts = (config.data.name, f"{part.clients} clients, {kind}", attacked)
    return " · ".join([*parts, f"{config.train.rounds} rounds", config.train.device])


def footer(result: Comparison) -> str:
    """How to read the table, and where to go next."""
    return (
        f"best per column {'in bold' if in_colour() else '*'} · accuracy in %, var in %², on clean labels, "
        "over regular clients (all of them where there is no attack)\n"
        f"{_assumptions(result)}details: {result.folder}/table.csv, and one folder per run beside it\n"
        "next: fairmean compare --seeds 1-5   ·   fairmean compare data.name=fashion-mnist   ·   fairmean new my.toml"
    )


def _assumptions(result: Comparison) -> str:
    """Methods that were given something the others were not."""
    groups: dict[str, list[str]] = {}
    for method, text in result.assumes.items():
        if text:
            groups.setdefault(text, []).append(method)
    return "".join(f"{text}: {', '.join(methods)}\n" for text, methods in groups.items())


def run(result: Result) -> str:
    """One finished run."""
    s = result.summary
    method = result.config.method
    hyper = " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in method.hyper.items()
    )
    lines = [
        headline(result.config),
        f"{method.name} {hyper} · attack {result.config.attack.name}",
        columns(
            [[f"{s[name]:.4g}" for name in METRICS] + [f"{s['loss_dispersion']:.3g}"]],
            [*METRICS, "loss dispersion D_1"],
        ),
        "accuracy per client: "
        + " ".join(
            f"{value:.1f}{'' if regular else ' (poisoned)'}"
            for value, regular in list(zip(result.accuracy, result.regular, strict=True))[:20]
        )
        + (f" … and {len(result.accuracy) - 20} more in {result.table.name}" if len(result.accuracy) > 20 else ""),
    ]
    if "warning" in s:
        lines.append(f"warning: {s['warning']}")
    if s["without_test_data"]:
        lines.append(f"{s['without_test_data']} clients have no test data and are in none of these figures")
    if s["poisoned"]:
        view = s["poisoned"]
        lines.append(
            f"poisoned clients: {view['clean_average']:.1f} % on clean labels, {view['own_average']:.1f} % on their own"
        )
    lines.append(f"details: {result.folder}")
    if result.config.theory:
        lines.append(f"next: fairmean check {result.folder}")
    return "\n".join(lines)
