"""Further figures of every client of one run, such as its mean absolute error, or how well each class is recognised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fairmean.data.tasks import task
from fairmean.report.judged import Judged, title
from fairmean.report.material import Entry
from fairmean.report.numbers import NONE, fixed
from fairmean.text import decimals

MOST_CLIENTS = 100
MOST_CLASSES = 12


def further(entries: Sequence[Entry], judged: Judged) -> dict[str, Any] | None:
    """The table of a page about one finished run: heads, and a row for every client, the worst served first."""
    if len(entries) != 1 or entries[0].run is None or entries[0].run.summary.get("status") != "finished":
        return None
    run = entries[0].run
    summary, details = run.summary, run.summary.get("clients") or {}
    values = [math.nan if value is None else float(value) for value in summary[run.metric.name]]
    if "low" not in details:
        return None
    kind = task(run.settings.get("data.task", "classification"))
    chosen = [(metric.name, title(metric.name), metric.unit, metric.about) for metric in kind.more]
    chosen = [column for column in chosen if column[0] in details]
    recalls = [key for key in details if key.startswith("recall_")]
    if kind.name != "binary" and len(recalls) <= MOST_CLASSES:
        names = run.class_names or [key.removeprefix("recall_") for key in recalls]
        chosen += [(key, f"class {name}", "%", "") for key, name in zip(recalls, names, strict=True)]
    regular = [bool(flag) for flag in summary["regular"]]
    order = sorted(range(len(values)), key=lambda i: _place(values[i], regular[i], judged))
    served = [i for i in order if regular[i] and math.isfinite(values[i])]
    sizes, tested = run.partition.sizes, run.partition.test_sizes
    rows = []
    for i in order[:MOST_CLIENTS]:
        row = [run.client_names[i] if run.has_names else str(i), "" if regular[i] else "poisoned"]
        row += [f"{int(sizes[i]):,}", f"{int(tested[i]):,}", judged.number(values[i]), _interval(details, i, judged)]
        rows.append([*row, *(_text(details[key], i, unit) for key, _, unit, _ in chosen)])
    held_out = summary.get("validation")
    return {
        "heads": [[name, "%" if unit == "%" else ""] for _, name, unit, _ in chosen],
        "about": [f"{name} is {about}" for _, name, _, about in chosen if about],
        "recalls": any(key.startswith("recall_") for key, *_ in chosen),
        "rows": rows,
        "clients": len(values),
        "lowest": (run.client_names[served[0]] if served else None),
        "held_out": None if not held_out else {key: held_out[key] for key in ("average", "worst")},
    }


def _place(value: float, regular: bool, judged: Judged) -> tuple[bool, bool, float]:
    """Regular clients first, from the worst served to the best; then poisoned ones; those without a figure last."""
    known = math.isfinite(value)
    return not known, not regular, (judged.gain(value, "worst") if known else 0.0)


def _interval(details: dict[str, Any], i: int, judged: Judged) -> str:
    low, high = details["low"][i], details["high"][i]
    return NONE if low is None or high is None else f"{judged.number(low)} to {judged.number(high)}"


def _text(values: Sequence[float | None], i: int, unit: str) -> str:
    """A figure with the decimals that its column needs: one for a percentage, two where it has no unit."""
    if unit == "%":
        return fixed(values[i], 1)
    return fixed(values[i], decimals([v for v in values if v is not None]) if unit else 2)
