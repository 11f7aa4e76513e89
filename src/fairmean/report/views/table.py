"""Method × attack: every figure, its interval and its paired difference to the baseline. It reads without scripts."""

from __future__ import annotations

from typing import Any

from fairmean.report.finding import LEVEL
from fairmean.report.judged import Judged
from fairmean.report.markup import section, tag, text
from fairmean.report.numbers import counted

HEADS = {"average": "average", "variance": "variance", "worst": "worst", "worst_tenth": "worst tenth"}


def html(data: dict[str, Any]) -> str | None:
    """The table, in a box that scrolls by itself where it is too wide."""
    if not data["cells"]:
        return None
    body = tag(
        "div",
        tag("table", _head(data) + _body(data), {"class": "results"}),
        {"class": "scroll", "tabindex": "0", "role": "group", "aria-labelledby": "table-title"},
    )
    return section("table", _title(data), _caption(data), body, _notes(data))


def _title(data: dict[str, Any]) -> str:
    if len(data["methods"]) == 1:
        return "The figures"
    return "Methods under each attack" if len(data["attacks"]) > 1 else "Methods side by side"


def _caption(data: dict[str, Any]) -> str:
    judged = Judged.in_page(data)
    several = len(data["seeds"]) > 1 and data["intervals"]
    whose = "over regular clients" if data["poisoning"] else "over all clients"
    first = f"{judged.heading} {whose} on {data['labels']}"
    first += ": the average client, the variance across clients, and the worst client"
    first += ", with the mean of the worst-served tenth" if "worst_tenth" in data["metrics"] else ""
    parts = [text(first + ".")]
    if several:
        parts.append(f"Each ± is half a 95 % interval over {counted(len(data['seeds']), 'draw')}.")
    if data["baseline"]:
        small = f"The small figure is the difference to {data['baseline']}, paired by draw"
        if several:
            small += "; ▲ (better) and ▼ (worse) mark those that remain at 5 % after Holm’s correction"
        parts.append(text(small + "."))
    if len(data["methods"]) > 1:
        parts.append("<strong>Bold</strong> is the best of a column.")
    return " ".join(parts)


def _head(data: dict[str, Any]) -> str:
    span = len(data["metrics"])
    first = {"rowspan": 2, "scope": "col", "class": "name", "data-column": 0, "aria-sort": "none"}
    groups = [
        tag("th", _button("method"), first)
    ]  # without scripts the buttons do nothing, and the table reads all the same
    columns, judged = [], Judged.in_page(data)
    for a, attack in enumerate(data["attacks"]):
        name = "no attack" if attack == "none" else attack
        groups.append(tag("th", text(name), {"colspan": span, "scope": "colgroup", "class": "group", "data-attack": a}))
        for k, metric in enumerate(data["metrics"]):
            attributes = {
                "scope": "col",
                "data-attack": a,
                "data-column": 1 + a * span + k,
                "aria-sort": "none",
                "class": "first" if k == 0 else None,
            }
            unit = f" <small>{'%²' if metric == 'variance' else '%'}</small>" if judged.is_share else ""
            columns.append(tag("th", _button(HEADS[metric], unit), attributes))
    return tag("thead", tag("tr", "".join(groups)) + tag("tr", "".join(columns)))


def _button(name: str, unit: str = "") -> str:
    return tag("button", f"{text(name)}{unit}<i aria-hidden='true'></i>", {"type": "button", "class": "sort"})


def _body(data: dict[str, Any]) -> str:
    cells = {(cell["method"], cell["attack"]): cell for cell in data["cells"]}
    rows, judged = [], Judged.in_page(data)
    for m, method in enumerate(data["methods"]):
        mark = " <small>baseline</small>" if method == data["baseline"] else ""
        row = tag("th", f"<span class='swatch'></span>{text(method)}{mark}", {"scope": "row", "class": "name"})
        for a, attack in enumerate(data["attacks"]):
            for k, metric in enumerate(data["metrics"]):
                row += _entry(cells.get((method, attack)), metric, a, k == 0, judged)
        rows.append(tag("tr", row, {"data-method": m}))
    return tag("tbody", "".join(rows))


def _entry(cell: dict[str, Any] | None, metric: str, attack: int, first: bool, judged: Judged) -> str:
    """One figure; or, where there is none, why."""
    place = {"data-attack": attack, "class": "first" if first else None}
    if cell is None:
        return tag("td", "–", place)
    figure = cell["estimates"][metric]
    if figure["mean"] is None:
        why = next(iter(cell["lost"]), "no data")
        return tag("td", tag("span", text(why), {"class": "lost"}), place)
    mean, half = judged.estimate(figure["mean"], figure["half"], metric)
    value = tag("b" if figure["best"] else "span", mean, {"class": "figure"})
    if half:
        value += f" <small>± {half}</small>"
    if cell["lost"]:
        value += "<sup title='some runs of this cell did not finish'>†</sup>"
    return tag("td", value + _difference(figure["difference"], metric, judged), {**place, "data-value": figure["mean"]})


def _difference(difference: dict[str, Any] | None, metric: str, judged: Judged) -> str:
    if difference is None:
        return ""
    sure = difference["p"] is not None and difference["p"] < LEVEL
    better = judged.is_better(difference["mean"], metric)
    kind = ("gain" if better else "loss") if sure else "open"
    mark = {"gain": "▲", "loss": "▼", "open": ""}[kind]
    words = {"gain": "better, ", "loss": "worse, ", "open": ""}[kind]
    mean, half = judged.estimate(difference["mean"], difference["half"], metric, sign=True)
    hidden = tag("span", f"{words}difference ", {"class": "unseen"})
    shown = tag("span", mark, {"aria-hidden": "true"}) + " " if mark else ""
    return tag("span", f"{hidden}{shown}{mean}{f' ± {half}' if half else ''}", {"class": f"difference {kind}"})


def _notes(data: dict[str, Any]) -> list[str]:
    """What the marks mean, and what some methods were told that others were not."""
    notes = []
    some = [cell for cell in data["cells"] if cell["lost"]]
    if some:
        texts = [
            f"{cell['method']}, {cell['attack']}: "
            + ", ".join(f"{count} of {cell['runs']} {status}" for status, count in cell["lost"].items())
            for cell in some[:8]
        ]
        rest = f" And {len(some) - 8} more." if len(some) > 8 else ""
        notes.append(f"† Runs that did not finish are not in the figures. {'; '.join(texts)}.{rest}")
    told: dict[str, list[str]] = {}
    for method, what in data["assumes"].items():
        told.setdefault(what, []).append(method)
    notes += [f"{what}: {', '.join(methods)}." for what, methods in told.items()]
    return notes
