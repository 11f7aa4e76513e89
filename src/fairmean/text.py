"""Plain text in columns."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


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
