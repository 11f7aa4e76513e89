"""What an audit said of a run's clients, for the page; and an audit by itself, as a notebook shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.experiments.audit_verdicts import CONTRADICTED, NOTHING, SERVED_BADLY, TOO_LITTLE
from fairmean.experiments.audit_words import headline, heads, row
from fairmean.report.markup import tag, text

ORDER = (NOTHING, CONTRADICTED, SERVED_BADLY, TOO_LITTLE)
"""Verdicts by their numbers in the page."""
COLOURS = {CONTRADICTED: "#d1495b", SERVED_BADLY: "#c98a00", TOO_LITTLE: "#8a8a8a", NOTHING: "#2a7f9e"}
_CELL = "padding:3px 8px;text-align:left;white-space:nowrap;border-bottom:1px solid rgba(128,128,128,.3)"
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 460, 230, 44, 30
_MOST_ROWS = 100


def places(audit: Mapping[str, Any]) -> tuple[NDArray[np.float64], str]:
    """Priority (mean entropy, or the loss where no entropy was recorded), excess and verdict: 3 × clients."""
    clients = audit["clients"]
    key = "entropy" if any(client["entropy"] is not None for client in clients) else "loss"
    rows = [[_value(client[name]) for client in clients] for name in (key, "excess")]
    return np.array([*rows, [float(ORDER.index(client["verdict"])) for client in clients]]), key


def told(audit: Mapping[str, Any], method: str, attack: str) -> dict[str, Any]:
    """What the page says of an audit in words."""
    return {
        "method": method,
        "attack": attack,
        "across": places(audit)[1],
        "headline": headline(audit),
        "told": [client["words"] for client in audit["clients"] if client["verdict"] != NOTHING],
        "notes": audit["notes"],
    }


def _value(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def shown(audit: Mapping[str, Any]) -> str:
    """An audit as HTML for a notebook: the answer, a picture, the table, and how it was found."""
    clients = sorted(audit["clients"], key=lambda client: -(client["excess"] or 0.0))
    said = tag("p", tag("strong", text(headline(audit))), {"style": "font-size:1.1em;margin:0 0 4px"})
    told = "".join(tag("li", text(client["words"])) for client in clients if client["verdict"] != NOTHING)
    head = tag("tr", "".join(tag("th", text(name), {"style": _CELL}) for name in heads(audit)))
    body = "".join(tag("tr", _cells(client, audit)) for client in clients[:_MOST_ROWS])
    table = tag("table", tag("thead", head) + tag("tbody", body), {"style": "border-collapse:collapse;font-size:.9em"})
    notes = tag("p", text(" ".join(audit["notes"])), {"style": "opacity:.7;font-size:.85em"})
    parts = [said, tag("ul", told) if told else "", _picture(audit), tag("div", table, {"style": "overflow-x:auto"})]
    return tag("div", "".join([*parts, notes]), {"class": "fairmean", "style": "max-width:900px"})


def _cells(client: Mapping[str, Any], audit: Mapping[str, Any]) -> str:
    cells = row(client, audit)
    marked = f"{_CELL};color:{COLOURS[client['verdict']]};font-weight:600"
    return "".join(tag("td", text(cell), {"style": marked if i == 1 else _CELL}) for i, cell in enumerate(cells))


def _picture(audit: Mapping[str, Any]) -> str:
    """Priority against excess, a dot for every client."""
    values, key = places(audit)
    known = np.isfinite(values[:2]).all(0)
    if not known.any():
        return ""
    limit = audit["limit"] or 0.0
    x, y = _axis(values[0, known], 0.0), _axis([*values[1, known], limit], 0.0)
    right, bottom = _WIDTH - 8, _HEIGHT - _BOTTOM
    line = _at(limit, y, bottom, 12)
    parts = [
        _line(_LEFT, right, line, "4 3"),
        _line(_LEFT, right, _at(0.0, y, bottom, 12), None),
        _word(right, line - 4, "alarm", "end"),
        _word(right, _HEIGHT - 4, "how unsure the others' models are →" if key == "entropy" else "loss →", "end"),
        _word(_LEFT, 10, "excess ẽ ↑", "start"),
    ]
    for i in np.flatnonzero(known):
        client = audit["clients"][int(i)]
        dot = {
            "cx": round(_at(values[0, i], x, _LEFT, right), 1), "cy": round(_at(values[1, i], y, bottom, 12), 1),
            "r": 5, "fill": COLOURS[client["verdict"]], "fill-opacity": ".85",
        }  # fmt: skip
        parts.append(tag("circle", tag("title", text(f"{client['client']}: {client['verdict']}")), dot))
    box = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "style": f"max-width:{_WIDTH}px;width:100%", "role": "img",
           "aria-label": "Priority against held-out excess, one dot for every client"}  # fmt: skip
    return tag("svg", "".join(parts), box)


def _axis(values: Sequence[float] | NDArray[np.float64], at_most: float) -> tuple[float, float]:
    low, high = min(at_most, float(np.min(values))), float(np.max(values))
    pad = 0.05 * ((high - low) or 1.0)
    return low - pad, high + pad


def _at(value: float, axis: tuple[float, float], first: float, last: float) -> float:
    return first + (value - axis[0]) / (axis[1] - axis[0]) * (last - first)


def _line(x1: float, x2: float, y: float, dashes: str | None) -> str:
    return tag("line", "", {"x1": x1, "x2": x2, "y1": round(y, 1), "y2": round(y, 1), "stroke": "currentColor",
                            "stroke-opacity": ".5", "stroke-dasharray": dashes})  # fmt: skip


def _word(x: float, y: float, word: str, anchor: str) -> str:
    place = {"x": x, "y": round(y, 1), "text-anchor": anchor, "font-size": 11, "fill": "currentColor"}
    return tag("text", text(word), place)
