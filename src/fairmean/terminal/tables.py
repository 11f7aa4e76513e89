"""Plain-text tables for the terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from fairmean.experiments.building import poisoned
from fairmean.experiments.comparison_table import in_colour
from fairmean.experiments.config import Config
from fairmean.experiments.metrics import METRICS
from fairmean.experiments.reading import Run
from fairmean.experiments.study import Comparison
from fairmean.text import columns


def records(rows: Sequence[dict[str, object]]) -> str:
    """Rows of a catalogue."""
    header = list(rows[0])
    text = columns([[_plain(row[key]) for key in header] for row in rows], header)
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(line if len(line) <= width else line[: width - 1] + "…" for line in text.splitlines())


def record(row: Mapping[str, object]) -> str:
    """One row of a catalogue, line by line; what is empty is left out."""
    width = max(map(len, row)) + 2
    lines = []
    for key, value in row.items():
        paragraphs = value if isinstance(value, list) else [_plain(value)]
        labels = [key, *[""] * len(paragraphs)]
        lines += [_hanging(f"{label:<{width}}", text) for label, text in zip(labels, paragraphs, strict=False) if text]
    return "\n".join(lines)


def method(facts: Mapping[str, Any]) -> str:
    """One method: what it does, and what travels in a round."""
    parts = facts["parts"]
    pre = [f"pre-aggregation {name}" for name in parts["pre"]]
    made_of = [f"objective {parts['objective']}", f"scale {parts['scale']}", *pre, f"aggregator {parts['aggregator']}"]
    row = {
        "name": facts["name"],
        "rule": facts["rule"],
        "use it": facts["when"],
        "hyper-parameters": facts["hyper-parameters"],
        "made of": " · ".join(made_of),
        "the server sees": f"{facts['server sees']} (rung {facts['rung']})",
        "assumes": facts["assumes"],
        "reference": facts["reference"],
    }
    return f"{record(row)}\n\n{_travels(facts['travels'])}"


def _travels(facts: Mapping[str, Any]) -> str:
    """What is sent and kept in a round: names, sizes and meanings in columns."""
    groups = {key: items for key, items in facts.items() if isinstance(items, list) and key != "needs"}
    cells = [[item["name"], _counted(item["numbers"])] for items in groups.values() for item in items]
    name, size = (max(len(row[k]) for row in cells) for k in (0, 1))
    lines = [f"In a round, with d parameters, n clients and {facts['classes']} classes:"]
    for key, items in groups.items():
        lines += ["", f"{key}{'' if items else ': nothing'}"]
        for item in items:
            start = f"  {item['name']:<{name}}  {_counted(item['numbers']):<{size}}  "
            lines.append(_hanging(start, item["about"]))
        if key == "a client sends":
            lines.append(_hanging("  ", " ".join(facts["needs"])))
    return "\n".join(lines)


def _counted(numbers: int | str) -> str:
    return f"{numbers} number{'' if numbers == 1 else 's'}"


def _hanging(start: str, text: str) -> str:
    """A text after its label, at most 100 columns wide; its further lines begin where the first one does."""
    lines = textwrap.wrap(text, max(100 - len(start), 30), break_on_hyphens=False)
    return (start + f"\n{' ' * len(start)}".join(lines)).rstrip()


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
        f"{_assumptions(result)}{_diverged(result)}"
        f"details: {result.folder}/table.csv, and one folder per run beside it\n"
        "next: fairmean compare --seeds 1-5   ·   fairmean compare data.name=fashion-mnist   ·   fairmean new my.toml"
    )


def _diverged(result: Comparison) -> str:
    """What to do about runs that diverged."""
    count = sum(record["status"] == "diverged" for record in result.records)
    if not count:
        return ""
    return f"{count} of {len(result.records)} runs diverged: use a smaller train.lr ('fairmean advise' suggests one)\n"


def _assumptions(result: Comparison) -> str:
    """Methods that were given something the others were not."""
    groups: dict[str, list[str]] = {}
    for method, text in result.assumes.items():
        if text:
            groups.setdefault(text, []).append(method)
    return "".join(f"{text}: {', '.join(methods)}\n" for text, methods in groups.items())


def run(result: Run) -> str:
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
