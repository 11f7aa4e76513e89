"""``fairmean data show`` as a page for people: columns, target, classes, and a picture of who has what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairmean.text import columns

_MOST_COLUMNS, _MOST_CLIENTS, _MOST_CLASSES, _COUNTED = 40, 20, 40, 6
_SHADES = ((0.0, "·"), (0.05, "░"), (0.2, "▒"), (0.5, "▓"), (1.0, "█"))
_LEGEND = "· none  ░ up to 5 %  ▒ up to 20 %  ▓ up to 50 %  █ more"
Facts = Mapping[str, Any]


def column_table(rows: Sequence[Facts], count: int) -> str:
    """The columns of a table, with their types, and what is wrong with them."""
    cells = [
        [_cut(row["name"], 32), row["type"], _holds(row), row["role"] if row["role"] != "input" else _made(row)]
        for row in rows[:_MOST_COLUMNS]
    ]
    lines = [f"{count:,} rows, {len(rows):,} columns", "", columns(cells, ["column", "type", "holds", "is"])]
    if len(rows) > _MOST_COLUMNS:
        lines.append(f"… {len(rows) - _MOST_COLUMNS} more")
    if troubles := [row["trouble"] for row in rows if "trouble" in row]:
        lines += ["", *(f"! {trouble[0].upper()}{trouble[1:]}." for trouble in troubles[:10])]
        lines += [f"! … {len(troubles) - 10} more"] if len(troubles) > 10 else []
    return "\n".join(lines)


def _holds(row: Facts) -> str:
    if row["missing"]:
        return f"{row['missing']:,} missing"
    if "least" in row:
        return f"{row['least']:g}" if row["distinct"] == 1 else f"{row['least']:g} … {row['most']:g}"
    if "distinct" not in row:
        return ""
    more = ", …" if row["distinct"] > len(row["examples"]) else ""
    return _cut(f"{row['distinct']:,}: {', '.join(row['examples'])}", 46) + more


def _made(row: Facts) -> str:
    if "trouble" in row:
        return "refused, see below"
    if row["inputs"] is None:
        return "the input"
    if not row["inputs"]:
        return "left out: it has one value"
    return "1 input" if row["inputs"] == 1 else f"{row['inputs']} inputs"


def page(facts: Facts, target: str | None) -> str:
    """All but the columns; ``target`` is the column that is predicted, if there are columns."""
    sizes = f"{facts['train']:,} samples are for training, and {facts['test']:,} for testing."
    lines = [sizes, f"Inputs: {facts['inputs']}{_scaling(facts)}.", _target(facts, target)]
    return "\n".join([*lines, *_classes(facts), "", *_clients(facts)])


def _scaling(facts: Facts) -> str:
    if not facts["scaled"]:
        return ""
    also = ", and so is the target" if facts["task"] == "regression" else ""
    return f"; each is brought to mean 0 and spread 1 over the training samples{also}"


def _target(facts: Facts, target: str | None) -> str:
    of = f" '{target}'" if target else ""
    if facts["task"] == "regression":
        around = facts["target"]
        return (
            f"Target{of}: a number from {around['least']:g} to {around['most']:g}, {around['mean']:.4g} on average "
            "(data.task=regression)."
        )
    if facts["task"] == "next-token":
        return f"Target: the next token, out of {facts['tokens']:,} (data.task=next-token)."
    positive = f"; the positive one is '{facts['positive']}'" if "positive" in facts else ""
    return f"Target{of}: one of {len(facts['classes'])} classes{positive} (data.task={facts['task']})."


def _classes(facts: Facts) -> list[str]:
    rows = facts.get("classes", [])
    if not rows:
        return []
    cells = [[_cut(row["name"], 32), f"{row['train']:,}", f"{row['test']:,}"] for row in rows[:_MOST_CLASSES]]
    more = [f"… {len(rows) - _MOST_CLASSES} more"] if len(rows) > _MOST_CLASSES else []
    return ["", columns(cells, ["class", "train", "test"]), *more]


def _clients(facts: Facts) -> list[str]:
    clients = facts["clients"]
    if clients is None:
        return [
            "The data does not say whose a sample is: fairmean divides the samples among partition.clients clients. "
            "(data.client=COLUMN names a column of a table.)"
        ]
    shown = clients[:_MOST_CLIENTS]
    picture = _picture(facts, shown)
    header = ["client", "train", "test", *(picture[0] if picture else [])]
    cells = [
        [_cut(row["name"], 24), f"{row['train']:,}", "" if row["test"] is None else f"{row['test']:,}"] for row in shown
    ]
    if picture:
        cells = [row + more for row, more in zip(cells, picture[1], strict=True)]
    lines = [f"{len(clients):,} clients", columns(cells, header)]
    if len(clients) > len(shown):
        lines.append(f"… {len(clients) - len(shown):,} more")
    if picture:
        lines.append(f"{picture[2]} {_LEGEND}")
    untested = [row["name"] for row in clients if row["test"] == 0]
    if untested:
        names = ", ".join(untested[:5]) + (f" and {len(untested) - 5} more" if len(untested) > 5 else "")
        count = "One client has" if len(untested) == 1 else f"{len(untested):,} clients have"
        lines.append(f"{count} no sample for testing, and so no figures: {names}.")
    return lines


def _picture(facts: Facts, shown: Sequence[Facts]) -> tuple[list[str], list[list[str]], str] | None:
    """(headers, cells of each client, what a shade means): classes across, or parts of the target's range."""
    if facts["task"] == "regression":
        around = facts["target"]
        header = [f"{around['least']:g} … {around['most']:g}", "mean"]
        cells = [
            ["".join(_shade(n, row["train"]) for n in row["parts"]), f"{row['target']['mean']:.4g}"]
            for row in shown
        ]  # fmt: skip
        return header, cells, "Each mark is a tenth of the target's range, and the share of the client's samples in it:"
    if not shown or "classes" not in shown[0]:
        return None
    names = [row["name"] for row in facts["classes"]]
    told = "of the client's training samples:"
    if len(names) <= _COUNTED:
        cells = [[f"{_shade(n, row['train'])} {n:,}" for n in row["classes"]] for row in shown]
        return [_cut(name, 16) for name in names], cells, f"A class's share {told}"
    more = " …" if len(names) > _MOST_CLASSES else ""
    marks = ["".join(_shade(n, row["train"]) for n in row["classes"][:_MOST_CLASSES]) + more for row in shown]
    return ["classes, in the order above"], [[mark] for mark in marks], f"Each mark is a class, and its share {told}"


def _shade(count: int, total: int) -> str:
    share = count / total if total else 0.0
    return next(mark for limit, mark in _SHADES if share <= limit)


def _cut(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
