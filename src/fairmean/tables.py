"""Plain-text tables for the terminal."""

from __future__ import annotations

import itertools
import math
import shutil
import sys
import unicodedata
from collections.abc import Sequence

from fairmean.config import Config
from fairmean.experiment import Result
from fairmean.federation import poisoned_clients
from fairmean.metrics import METRICS
from fairmean.study import Comparison

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
    """Method × attack: average, variance, worst; the best of each column in bold (or starred, without colour)."""
    colour = sys.stdout.isatty() if colour is None else colour
    blocks = [_block(result, None, colour)]
    baseline = next((m for m in result.methods if m == "mean"), None)
    if len(result.seeds) > 1:
        blocks[0] = f"mean ± 95 % CI over {len(result.seeds)} paired seeds\n" + blocks[0]
        if baseline and len(result.methods) > 1:
            blocks.append(f"difference to {baseline}, paired by seed, ± 95 % CI\n" + _block(result, baseline, colour))
    return "\n\n".join(blocks)


def _block(result: Comparison, baseline: str | None, colour: bool) -> str:
    methods = [m for m in result.methods if m != baseline]
    cells: dict[tuple[str, str, str], str] = {}
    best: set[tuple[str, str, str]] = set()
    for attack, (metric, _, pick) in itertools.product(result.attacks, SHOWN):
        base = result.cells[baseline, attack] if baseline else None
        values = {m: result.cells[m, attack].estimate(metric, base) for m in methods}
        finite = [value for value, _ in values.values() if not math.isnan(value)]
        for m, (value, half) in values.items():
            cells[m, attack, metric] = _number(value, half, signed=base is not None)
            if base is None and finite and round(value, 2) == round(pick(finite), 2):
                best.add((m, attack, metric))
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


def _number(value: float, half: float, signed: bool) -> str:
    if math.isnan(value):
        return "diverged"
    digits = 1 if abs(value) >= 100 else 2
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    return text if math.isnan(half) else f"{text}±{half:.2g}"


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
    part, attack = config.partition, config.attack
    ids = poisoned_clients(part.clients, attack.clients, attack.fraction, attack.pick, config.seed)
    who = ", ".join(map(str, ids)) if len(ids) <= 5 and attack.pick == "last" else f"({len(ids)} of {part.clients})"
    kind = f"Dirichlet {part.alpha:g}" if part.name == "dirichlet" else part.name
    poisoned = f"clients {who} poisoned" if len(ids) and attack.name != "none" else "none poisoned"
    parts = (config.data.name, f"{part.clients} clients, {kind}", poisoned)
    return " · ".join([*parts, f"{config.train.rounds} rounds", config.train.device])


def footer(result: Comparison) -> str:
    """How to read the table, and where to go next."""
    return (
        f"best per column {'in bold' if sys.stdout.isatty() else '*'} · accuracy in %, var in %², on clean labels, "
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
        ),
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
