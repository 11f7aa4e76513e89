"""Plain text in columns, and tables for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


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


def decimals(values: Iterable[float]) -> int:
    """How many decimals numbers of this size need so that three of their digits count.

    >>> decimals([53.2, 61.7, 48.0]), decimals([0.031, 0.05]), decimals([45_213.0]), decimals([])
    (1, 4, 0, 1)
    """
    sizes = sorted(abs(value) for value in values if math.isfinite(value) and value != 0)
    if not sizes:
        return 1
    return min(9, max(0, 2 - math.floor(math.log10(sizes[len(sizes) // 2]))))


def figure(value: float, share: bool) -> str:
    """A figure of clients: a percentage (``share``) with one decimal, any other with three digits that count.

    >>> figure(69.649, True), figure(0.031, False), figure(53.24, False), figure(45_213.0, False)
    ('69.6', '0.0310', '53.2', '45213')
    """
    if share or not math.isfinite(value):
        return f"{value:.1f}"
    return f"{value:.3g}" if abs(value) >= 1e7 else f"{value:.{decimals([value])}f}"


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with a column for every key of any of them; what a row lacks, and NaN, is left empty.

    >>> print(to_csv([{"name": "mean", "lr": 0.1}, {"name": "qffl", "q": 1}]))
    name,lr,q
    mean,0.1,
    qffl,,1
    """
    text = io.StringIO()
    header = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(text, list(header), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue().rstrip("\n")


def _cell(value: Any) -> Any:
    """A value for one cell: settings as key=value words, lists as JSON."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={inner}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
