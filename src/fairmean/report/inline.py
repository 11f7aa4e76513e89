"""What a notebook shows of a comparison, a run or a certificate: sentences, tables and small pictures, without scripts.

Colours are the notebook's own (``currentColor``) wherever they can be, so that it reads on light and on dark ground.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fairmean.report import packing
from fairmean.report.certificates import plain
from fairmean.report.collect import collect
from fairmean.report.finding import LEVEL
from fairmean.report.judged import Judged
from fairmean.report.markup import tag, text
from fairmean.report.material import gather
from fairmean.report.views.certificate import told, verdict
from fairmean.theory.certificate import Certificate

_CELL = "padding:3px 6px;text-align:right;white-space:nowrap;border-bottom:1px solid rgba(128,128,128,.3)"
_NAME = "padding:3px 8px 3px 0;text-align:left;border-bottom:1px solid rgba(128,128,128,.3);font-weight:600"
_SOFT = "opacity:.7;font-size:.85em"
_VIRIDIS = ((68, 1, 84), (62, 74, 137), (38, 130, 142), (53, 183, 121), (181, 222, 43), (253, 231, 37))
MOST_CLIENTS = 200
MOST_METHODS = 40


def shown(runs: Any) -> str:
    """A comparison, a run or several runs as HTML for a notebook."""
    data = collect(gather(runs))
    sentences = tag("p", tag("strong", text(data["finding"]["headline"])), {"style": "font-size:1.1em;margin:0 0 4px"})
    facts = tag("p", text(" · ".join(fact for fact in data["facts"] if fact)), {"style": _SOFT + ";margin:0 0 8px"})
    parts = [sentences, facts, _table(data), _heat(data), _curves(data)]
    return tag("div", "".join(parts), {"class": "fairmean", "style": "max-width:900px"})


def certified(certificate: Certificate) -> str:
    """A certificate as HTML for a notebook."""
    found = plain(certificate)
    title = f"{certificate.folder}: {verdict(found)}"
    return tag("div", tag("p", tag("strong", text(title))) + told(found, title), {"class": "fairmean"})


def _table(data: dict[str, Any]) -> str:
    cells = {(cell["method"], cell["attack"]): cell for cell in data["cells"]}
    metrics, judged = data["metrics"], Judged.in_page(data)
    groups = tag("th", "") + "".join(
        tag("th", text("no attack" if attack == "none" else attack), {"colspan": len(metrics), "style": _CELL})
        for attack in data["attacks"]
    )
    names = "".join(
        tag("th", text(metric.replace("_", " ")), {"style": _CELL + ";font-weight:400"})
        for _ in data["attacks"]
        for metric in metrics
    )
    heads = tag("tr", groups) + tag("tr", tag("th", "method", {"style": _NAME + ";font-weight:400"}) + names)
    rows = []
    for method in data["methods"]:
        row = tag("th", text(method), {"style": _NAME})
        for attack in data["attacks"]:
            row += "".join(_entry(cells.get((method, attack)), metric, judged) for metric in metrics)
        rows.append(tag("tr", row))
    marks = f" ▲ ▼: differs from {data['baseline']} at 5 % after Holm’s correction." if _tested(data) else ""
    what = "Accuracy in %" if judged.is_share else judged.heading
    square = "in %²" if judged.is_share else "in its square"
    whose = "regular" if data["poisoning"] else "all"
    note = f"{what} on {data['labels']}, over {whose} clients; variance {square}. Bold is the best of a column.{marks}"
    table = tag(
        "table", tag("thead", heads) + tag("tbody", "".join(rows)), {"style": "border-collapse:collapse;font-size:.9em"}
    )
    return tag("div", table, {"style": "overflow-x:auto"}) + tag("p", text(note), {"style": _SOFT})


def _tested(data: dict[str, Any]) -> bool:
    return data["baseline"] is not None and len(data["seeds"]) > 1 and data["intervals"]


def _entry(cell: dict[str, Any] | None, metric: str, judged: Judged) -> str:
    if cell is None or cell["estimates"][metric]["mean"] is None:
        why = "–" if cell is None else next(iter(cell["lost"]), "–")
        return tag("td", text(why), {"style": _CELL})
    figure = cell["estimates"][metric]
    mean, half = judged.estimate(figure["mean"], figure["half"], metric)
    content = tag("strong", mean) if figure["best"] else mean
    if half:
        content += tag("span", f" ± {half}", {"style": _SOFT})
    difference = figure["difference"]
    if difference and difference["p"] is not None and difference["p"] < LEVEL:
        content += " ▲" if judged.is_better(difference["mean"], metric) else " ▼"
    return tag("td", content + ("†" if cell["lost"] else ""), {"style": _CELL})


def _viridis(share: float) -> str:
    at = max(0.0, min(share, 1.0)) * (len(_VIRIDIS) - 1)
    i = min(int(at), len(_VIRIDIS) - 2)
    mixed = [round(a + (at - i) * (b - a)) for a, b in zip(_VIRIDIS[i], _VIRIDIS[i + 1], strict=True)]
    return f"rgb({mixed[0]},{mixed[1]},{mixed[2]})"


def _heat(data: dict[str, Any]) -> str:
    """Clients × methods of the first draw under the first attack; a sample of the clients where they are many."""
    attack = next((i for i, name in enumerate(data["attacks"]) if name != "none"), 0)
    runs = [run for run in data["runs"] if run["attack"] == attack and run["seed"] == data["shown"][0]][:MOST_METHODS]
    if not runs or not data["clients"]:
        return ""
    numbers, n = packing.unpack(data["packed"]), data["clients"]
    judged = Judged.in_page(data)
    table = np.array([packing.back(numbers, run["figure"], n) for run in runs])
    known = np.isfinite(table)
    if not known.any():
        return ""
    served = np.where(known, table, 0).sum(0) / np.maximum(known.sum(0), 1)
    served = np.where(known.any(0), served, np.inf if judged.higher else -np.inf)
    poisoned = np.zeros(n, bool)
    poisoned[data["poisoned"][runs[0]["poisoned"]]] = True
    order = np.lexsort((np.arange(n), served if judged.higher else -served, poisoned))
    order = order[packing.evenly(n, MOST_CLIENTS)]
    ends = float(table[known].min()), float(table[known].max())
    worst, best = ends if judged.higher else ends[::-1]
    left, width, height = 150, 560, 18
    column = width / len(order)
    marks = []
    for r, run in enumerate(runs):
        name = data["methods"][run["method"]]
        name = name if len(name) <= 22 else name[:21] + "…"
        at = {"x": left - 8, "y": r * height + 13, "text-anchor": "end", "fill": "currentColor"}
        marks.append(tag("text", text(name), at))
        for i, client in enumerate(order):
            value = table[r, client]
            fill = "rgba(128,128,128,.35)" if math.isnan(value) else _viridis((value - worst) / ((best - worst) or 1))
            box = {"x": f"{left + i * column:.1f}", "y": r * height, "width": f"{column:.2f}", "height": height - 1}
            marks.append(tag("rect", "", {**box, "fill": fill}))
    base = len(runs) * height + 13
    for i, client in enumerate(order):
        if poisoned[client]:
            at = {"x": f"{left + (i + 0.5) * column:.1f}", "y": base, "text-anchor": "middle", "fill": "currentColor"}
            marks.append(tag("text", "×", at))
    where = "without an attack" if data["attacks"][attack] == "none" else f"under {data['attacks'][attack]}"
    many = f", {len(order)} of {n:,}" if len(order) < n else ""
    caption = (
        f"Every client{many} (a column, worst to best served; × poisoned) {where}, draw {data['shown'][0]}: dark is "
        f"{_named(worst, judged)}, bright is {judged.whole(best)}."
    )
    return _svg("".join(marks), left + width + 4, base + 8, caption)


def _named(value: float, judged: Judged) -> str:
    return judged.whole(value) if judged.is_share else f"an {judged.title} of {judged.whole(value)}"


def _curves(data: dict[str, Any]) -> str:
    """The worst clients over the rounds, under the first attack."""
    attack = next((i for i, name in enumerate(data["attacks"]) if name != "none"), 0)
    curves = [curve for curve in data["curves"] if curve["attack"] == attack][:6]
    points = [value[0] for curve in curves for value in curve["worst"]]
    if not points or max(len(curve["rounds"]) for curve in curves) < 2:
        return ""
    judged = Judged.in_page(data)
    low, high = min(points), max(max(points), min(points) + judged.least / 4)
    last = max(curve["rounds"][-1] for curve in curves) or 1
    left, width, height = 40, 420, 150
    dashes = ("", "6 3", "2 3", "9 3 2 3", "1 4", "12 4")
    marks, ends = [], []
    for curve, dash in zip(curves, dashes, strict=False):
        path = " ".join(
            f"{left + width * t / last:.1f},{8 + height * (1 - (value[0] - low) / (high - low)):.1f}"
            for t, value in zip(curve["rounds"], curve["worst"], strict=True)
        )
        style = {
            "points": path,
            "fill": "none",
            "stroke": "currentColor",
            "stroke-width": 1.5,
            "stroke-dasharray": dash,
        }
        marks.append(tag("polyline", "", style))
        ends.append((float(path.split(",")[-1]), data["methods"][curve["method"]], dash))
    place = -math.inf
    for y, name, dash in sorted(ends):
        place = max(y + 4, place + 13)
        name = name if len(name) <= 24 else name[:23] + "…"
        start, middle = left + width + 8, f"{place - 4:.1f}"
        line = {"x1": start, "x2": start + 22, "y1": middle, "y2": middle, "stroke": "currentColor"}
        marks.append(tag("line", "", {**line, "stroke-width": 1.5, "stroke-dasharray": dash}))
        marks.append(tag("text", text(name), {"x": start + 28, "y": f"{place:.1f}", "fill": "currentColor"}))
    for value, y in ((high, 12), (low, height + 8)):
        at = {"x": left - 6, "y": y, "text-anchor": "end", "fill": "currentColor"}
        marks.append(tag("text", judged.number(value), at))
    who = "worst client" if data["served"] == "worst" else "worst-served tenth"
    mean = ": the mean over draws" if len(data["seeds"]) > 1 else ""
    what = "in %" if judged.is_share else f"as {judged.title}, so lower is better"
    held_out = ", on samples held out from training" if data["held_out"] else ""
    caption = f"The {who} over {last} rounds, {what}{held_out}{mean}."
    return _svg("".join(marks), left + width + 200, max(height + 16, place + 6), caption)


def _svg(content: str, width: float, height: float, caption: str) -> str:
    attributes = {
        "viewBox": f"0 0 {width:.0f} {height:.0f}",
        "width": f"{width:.0f}",
        "role": "img",
        "aria-label": caption,
        "style": "max-width:100%;height:auto;font:11px sans-serif;display:block",
    }
    note = tag("figcaption", text(caption), {"style": _SOFT})
    return tag("figure", tag("svg", content, attributes) + note, {"style": "margin:12px 0"})
