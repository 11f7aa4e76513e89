"""Further figures of the clients of one run: the interval of the first figure, and what else the task is judged by."""

from __future__ import annotations

from typing import Any

from fairmean.report.judged import Judged
from fairmean.report.markup import section, tag, text


def html(data: dict[str, Any]) -> str | None:
    """A table with a row for every client."""
    table = data["further"]
    if table is None:
        return None
    judged = Judged.in_page(data)
    heads = [["client", ""], ["", ""], ["training samples", ""], ["test samples", ""]]
    heads += [[judged.title, judged.unit], ["95 % interval", judged.unit], *table["heads"]]
    head = "".join(_head(name, unit) for name, unit in heads)
    rows = "".join(_row(row) for row in table["rows"])
    content = tag("table", tag("thead", tag("tr", head)) + tag("tbody", rows), {"class": "further"})
    attributes = {"class": "scroll", "tabindex": "0", "role": "group", "aria-labelledby": "further-title"}
    return section("further", "Figures of every client", _caption(table), tag("div", content, attributes), _notes(data))


def _caption(table: dict[str, Any]) -> str:
    words = [
        "Clients stand from worst to best served. The interval is as wide as the number of test samples leaves it."
    ]
    if table["about"]:
        listed = "; ".join(table["about"])
        words.append(f"{listed[0].upper()}{listed[1:]}.")
    if table["recalls"]:
        words.append("The figure of a class is the share of its samples that is recognised.")
    words.append("A dash stands where a client has too few samples, or none of a kind, for a figure.")
    return text(" ".join(words))


def _head(name: str, unit: str) -> str:
    if not name:
        return tag("td", "")
    return tag("th", text(name) + (f" <small>{text(unit)}</small>" if unit else ""), {"scope": "col"})


def _row(row: list[str]) -> str:
    name, kind, *figures = row
    cells = tag("th", text(name), {"scope": "row"}) + tag("td", text(kind), {"class": "poisoned"})
    return tag("tr", cells + "".join(tag("td", text(figure), {"class": "number"}) for figure in figures))


def _notes(data: dict[str, Any]) -> list[str]:
    table, judged = data["further"], Judged.in_page(data)
    notes = []
    if len(table["rows"]) < table["clients"]:
        shown = len(table["rows"])
        notes.append(f"{shown} of {table['clients']:,} clients are shown; summary.json in the run’s folder has all.")
    if table["held_out"]:
        average, low = (judged.whole(table["held_out"][key]) for key in ("average", "worst"))
        notes.append(
            f"On the samples that were held out from training, the average client had {average} and the worst {low}."
        )
    return notes
