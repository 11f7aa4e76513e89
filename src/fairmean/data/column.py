"""A column of a table: what it holds, what is wrong with it, and how it becomes inputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]

NUMBER, FLAG, TEXT, DATE, MIXED, OTHER = "number", "true/false", "category", "date", "mixed", "other"
IMAGE, LIST = "image", "list"  # one of these is a whole input by itself
UNCOUNTED = (DATE, MIXED, OTHER, IMAGE, LIST)
MOST_CATEGORIES = 1000
_FEW = 20  # so many different texts are categories, however few rows there are
_MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}([T ].*)?")
_DECIMAL_COMMA = re.compile(r"-?\d+,\d+")


@dataclass(frozen=True)
class Column:
    """What was read from a column.

    ``values`` of numbers and of true/false are float64, NaN where one is missing. Those of texts are places in
    ``texts``, −1 where one is missing. ``odd`` is, in a mixed column, the first row that is not like the others, and
    ``texts`` begins with what stands there. Of dates and of what cannot be read, ``texts`` has an example.
    """

    name: str
    kind: str
    values: NDArray[np.float64] | Index
    texts: tuple[str, ...] = ()
    odd: int = -1
    declared: bool = False
    """Whether the file says that these are categories, however many there are."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def absent(self) -> NDArray[np.bool_]:
        """The rows that have no value."""
        return self.values < 0 if self.kind == TEXT else np.isnan(self.values)

    @property
    def distinct(self) -> int:
        """How many different values there are."""
        present = self.values[~self.absent]
        return len(np.unique(present))

    @property
    def whole(self) -> bool:
        """Whether all numbers are whole."""
        return self.kind != TEXT and bool((np.mod(self.values, 1) == 0).all())

    @property
    def trouble(self) -> str:
        """Why the column cannot be used at all, and the remedy; '' where it can."""
        if self.kind == MIXED:
            return (
                f"column '{self.name}' holds both numbers and texts (row {self.odd + 1:,} has '{_cut(self.texts[0])}')"
                ": write numbers alone, or texts alone"
            )
        if self.kind == DATE:
            return (
                f"column '{self.name}' holds dates (such as {self.texts[0]}): write numbers instead, for example days "
                "since a first day, or leave the column out"
            )
        if self.kind == OTHER:
            return f"column '{self.name}' holds {self.texts[0]}, which is no input: leave the column out"
        absent = self.absent
        if absent.any():
            return (
                f"column '{self.name}' lacks a value in {int(absent.sum()):,} of {len(self):,} rows, first in row "
                f"{int(absent.argmax()) + 1:,}: fill them in, or leave these rows or the column out"
            )
        if self.kind == NUMBER:
            large = ~(np.abs(self.values) <= np.finfo(np.float32).max)
            if large.any():
                return (
                    f"column '{self.name}' holds {int(large.sum()):,} values that are not finite in float32, first in "
                    f"row {int(large.argmax()) + 1:,}: clean them"
                )
        return ""

    @property
    def input_trouble(self) -> str:
        """Why the column cannot be an input, and the remedy; '' where it can."""
        if self.trouble or self.kind != TEXT:
            return self.trouble
        distinct = self.distinct
        if distinct > MOST_CATEGORIES or (is_free_text(distinct, len(self)) and not self.declared):
            commas = all(_DECIMAL_COMMA.fullmatch(text) for text in self.texts)
            remedy = "write numbers with a decimal point" if commas else "leave the column out of the file"
            return (
                f"column '{self.name}' holds {distinct:,} different texts in {len(self):,} rows, such as "
                f"'{_cut(self.texts[0])}', which is too many for categories: {remedy}"
            )
        return ""

    @property
    def width(self) -> int:
        """How many inputs it makes."""
        distinct = self.distinct
        return 0 if distinct < 2 else 1 if self.kind != TEXT or distinct == 2 else distinct

    def inputs(self) -> NDArray[np.float32]:
        """rows × inputs: a number as it is; of two categories, whether it is the second; of more, one input for each.

        A column with one value has no inputs, since it says nothing of a row.
        """
        if self.distinct < 2:
            return np.zeros((len(self), 0), np.float32)
        if self.kind != TEXT:
            return self.values.astype(np.float32)[:, None]
        codes, names = named(self)
        if len(names) == 2:
            return np.asarray(codes, np.float32)[:, None]
        return np.asarray(codes[:, None] == np.arange(len(names)), np.float32)

    def taken(self, rows: NDArray[Any]) -> Column:
        """The same column with these rows alone."""
        return Column(self.name, self.kind, self.values[rows], self.texts, self.odd, self.declared)


def is_free_text(distinct: int, rows: int) -> bool:
    """Whether so many different texts are no categories: one for each row, or for every second row."""
    return (distinct == rows and rows >= 5) or (distinct > _FEW and 2 * distinct > rows)


def is_missing(text: str) -> bool:
    """Whether a text stands for a value that is not there."""
    return text.lower() in _MISSING


def number(text: str) -> float | None:
    """The number that is written; None if none is."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def coded(texts: Iterable[str], table: dict[str, int]) -> Index:
    """Every text's place in the table, which grows by those that are new."""
    return np.fromiter((table.setdefault(text, len(table)) for text in texts), np.int64)


def without_missing(column: Column) -> Column:
    """Texts such as '' and 'NA' are no texts, but missing."""
    if not any(map(is_missing, column.texts)):
        return column
    kept = [i for i, text in enumerate(column.texts) if not is_missing(text)]
    place = np.full(len(column.texts) + 1, -1)
    place[kept] = np.arange(len(kept))
    return Column(column.name, TEXT, place[column.values.astype(np.int64)], tuple(column.texts[i] for i in kept))


def recognised(column: Column) -> Column:
    """What texts mean: numbers, true and false, dates; or some of them numbers, and others not."""
    if column.kind != TEXT or not column.texts:
        return column
    codes, numbers = column.values.astype(np.int64), [number(text) for text in column.texts]
    if all(value is not None for value in numbers):
        return Column(column.name, NUMBER, np.array([*numbers, np.nan], float)[codes])
    if {text.lower() for text in column.texts} <= {"true", "false"}:
        return Column(column.name, FLAG, np.array([*(text.lower() == "true" for text in column.texts), np.nan])[codes])
    if all(_DATE.fullmatch(text) for text in column.texts):
        return Column(column.name, DATE, np.zeros(len(codes)), column.texts[:1])
    is_number = np.array([*(value is not None for value in numbers), False])[codes]
    if 2 * is_number.sum() >= (codes >= 0).sum():  # most are: the others are mistakes rather than names
        odd = int((~is_number & (codes >= 0)).argmax())
        return Column(column.name, MIXED, np.zeros(len(codes)), (column.texts[int(codes[odd])],), odd)
    return column


def named(column: Column) -> tuple[Index, tuple[str, ...]]:
    """Every row's place among the sorted names of what the column holds, and those names."""
    if column.kind == TEXT:
        used, places = np.unique(column.values.astype(np.int64), return_inverse=True)
        return sorted_names(places, [column.texts[i] for i in used])
    used, places = np.unique(column.values, return_inverse=True)
    names = ("false", "true") if column.kind == FLAG else None
    return places.astype(np.int64), tuple(names[int(value)] if names else written(value) for value in used)


def sorted_names(places: NDArray[Any], names: Sequence[str]) -> tuple[Index, tuple[str, ...]]:
    """Names in order, whole numbers by their size, and the places in that order."""
    try:
        order = sorted(range(len(names)), key=lambda i: (int(names[i]), names[i]))
    except ValueError:
        order = sorted(range(len(names)), key=lambda i: names[i])
    rank = np.empty(len(names), np.int64)
    rank[order] = np.arange(len(names))
    return rank[places], tuple(names[i] for i in order)


def written(value: float) -> str:
    """A number as people write it."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else f"{text[:39]}…"
