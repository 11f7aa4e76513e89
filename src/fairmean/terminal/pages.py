"""What 'fairmean list' shows: rows of a catalogue, at most 100 columns wide, or all about one of them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from fairmean.text import columns

_WIDTH = 100


def records(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of a catalogue: side by side where they fit, else one after the other with their last column wrapped."""
    header = list(rows[0])
    table = columns([[_plain(row[key]) for key in header] for row in rows], header)
    if max(map(len, table.splitlines())) <= _WIDTH:
        return table
    name = max(len(str(row["name"])) for row in rows) + 2
    return "\n".join(_hanging(f"{row['name']:<{name}}", _told(row)) for row in rows)


def _told(row: Mapping[str, Any]) -> str:
    """Everything of a row but its name, as one text."""
    parts = [f"{key}: {_plain(value)}" if key != "rule" else _plain(value) for key, value in row.items()]
    return " · ".join(part for part in parts[1:] if not part.endswith(": "))


def methods(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every method below what its server sees, with its rule."""
    lines: list[str] = []
    labels = {row["name"]: " ".join([row["name"], _plain(row["hyper-parameters"])]).strip() for row in rows}
    width = min(max(map(len, labels.values())), 38) + 2
    for rung in dict.fromkeys(row["rung"] for row in rows):
        of_rung = [row for row in rows if row["rung"] == rung]
        lines += ["", f"The server sees {of_rung[0]['server sees']} (rung {rung})."]
        for row in of_rung:
            label = labels[row["name"]]
            if len(label) < width:
                lines.append(_hanging(f"  {label:<{width}}", row["rule"]))
            else:
                name = f"  {row['name']} "
                lines += [_hanging(name, label[len(name) - 2 :]), _hanging("  " + " " * width, row["rule"])]
    return "\n".join([*lines[1:], "", "All about one of them: fairmean list methods NAME"])


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
