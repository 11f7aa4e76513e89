"""Tables: CSV, TSV and Parquet files, one row for each sample, with a column for the target and one for the client."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairmean.data.column import (
    NUMBER,
    TEXT,
    Column,
    Index,
    coded,
    is_missing,
    number,
    recognised,
    without_missing,
    written,
)
from fairmean.data.dataset import Columns, Dataset
from fairmean.data.division import dataset_of, marked, owners
from fairmean.data.targets import target_of
from fairmean.errors import UserError, nearest

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
_ROWS_AT_ONCE = 20_000
_MOST_CELLS = 2**31


class Table(NamedTuple):
    """A table in memory; ``notes`` say what was left out of it. ``only``: the one column that is the input."""

    name: str
    columns: Mapping[str, Column]
    notes: tuple[str, ...] = ()
    only: str | None = None

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return len(next(iter(self.columns.values()), ()))


def load(name: str, file: Path, asked: Columns) -> Dataset:
    """The data set in a CSV, TSV or Parquet file."""
    return dataset(read(name, file, asked), asked)


def read(name: str, file: Path, asked: Columns) -> Table:
    """All columns of a file, their types inferred; whose row it is and its split stay the texts that they are."""
    try:
        if file.suffix.lower() in (".parquet", ".pq"):
            from fairmean.data import arrow

            return Table(name, arrow.parquet(name, file))
        return _csv(name, file, asked)
    except FileNotFoundError:
        raise UserError(f"data '{name}': {file} is not there: check the path") from None
    except IsADirectoryError:
        raise UserError(f"data '{name}': {file} is a folder: name a file in it") from None
    except PermissionError:
        raise UserError(f"data '{name}': {file} cannot be read: look at its rights") from None


def dataset(table: Table, asked: Columns, test: NDArray[np.bool_] | None = None) -> Dataset:
    """The rows of a table as a data set. ``test``: the rows for testing, where that is known without a column."""
    name, columns = table.name, table.columns
    check_names(name, list(columns), asked)
    if asked.target is None:
        raise UserError(
            f"data '{name}' is a table: name the column that is to be predicted with data.target=…; its columns are "
            f"{listed(list(columns))}"
        )
    target = target_of(name, columns[asked.target], asked.task)
    owned = owners(name, columns[asked.client]) if asked.client else None
    if asked.split:
        test = marked(name, columns[asked.split])
    features = inputs(table, asked)
    for column in features:
        if column.input_trouble:
            raise UserError(f"data '{name}': {column.input_trouble}")
    widths = [column.width for column in features]
    if not sum(widths):
        raise UserError(f"data '{name}' has no column to predict '{asked.target}' from: every other holds one value")
    if sum(widths) * table.rows > _MOST_CELLS:
        widest = features[int(np.argmax(widths))]
        raise UserError(
            f"data '{name}': {table.rows:,} rows with {sum(widths):,} inputs are too many; column '{widest.name}' "
            f"alone makes {max(widths):,}, one for each category: leave it out, or give it fewer categories"
        )
    x = np.concatenate([column.inputs() for column in features], axis=1)
    return dataset_of(name, x, target, owned, test, asked.test, table=True)


def inputs(table: Table, asked: Columns) -> list[Column]:
    """The columns from which the target is predicted."""
    others = (asked.target, asked.client, asked.split)
    return [column for key, column in table.columns.items() if key not in others]


def check_names(name: str, known: Sequence[str], asked: Columns) -> None:
    """The columns that are asked for are there, and none of them is two things."""
    roles = [(key, column) for key in ("target", "client", "split") if (column := getattr(asked, key))]
    for i, (key, column) in enumerate(roles):
        if column not in known:
            near = nearest(column, known)
            hint = f"did you mean '{near}'? " if near else ""
            raise UserError(
                f"data.{key} = '{column}': '{name}' has no such column; {hint}its columns are {listed(known)}"
            )
        for other, same in roles[:i]:
            if column == same:
                raise UserError(f"data.{other} and data.{key} are both '{column}': name different columns")


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names with commas, cut where there are many."""
    return ", ".join(names[:most]) + (f", … {len(names) - most} more" if len(names) > most else "")


@dataclass
class _Growing:
    """A column that is read in pieces: numbers as long as there is nothing else, or texts by their place."""

    name: str
    as_text: bool
    pieces: list[NDArray[Any]] = field(default_factory=list)
    table: dict[str, int] = field(default_factory=dict)

    def add(self, cells: Sequence[str]) -> None:
        """Further rows."""
        numbers = None if self.as_text else _numbers(cells)
        if numbers is None and not self.as_text:
            self.as_text = True
            self.pieces = [self._codes(_as_text(value) for value in piece.tolist()) for piece in self.pieces]
        self.pieces.append(self._codes(cell.strip() for cell in cells) if numbers is None else numbers)

    def _codes(self, texts: Iterable[str]) -> Index:
        return coded(texts, self.table)

    def finished(self) -> Column:
        """The whole column."""
        values = np.concatenate(self.pieces)
        self.pieces.clear()
        if not self.as_text:
            return Column(self.name, NUMBER, values)
        return without_missing(Column(self.name, TEXT, values, tuple(self.table)))


def _numbers(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """Cells as numbers, NaN where a value is missing; None if some are something else."""
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        try:
            values = np.array([np.nan if is_missing(cell.strip()) else float(cell) for cell in cells])
        except ValueError:
            return None
    return None if "_" in "".join(cells) else values


def _as_text(value: float) -> str:
    return "" if np.isnan(value) else written(value) if np.isfinite(value) else str(value)


def _csv(name: str, file: Path, asked: Columns) -> Table:
    """A file with a line of names, and cells that are parted by commas, semicolons, tabs or bars."""
    texts = (asked.target, asked.client, asked.split)
    with file.open(encoding="utf-8-sig", newline="") as stream:
        try:
            first = stream.readline()
            stream.seek(0)
            reader = csv.reader(stream, delimiter=_delimiter(file, first), strict=True)
            header = _header(name, next(reader, []))
            check_names(name, header, asked)
            growing = [_Growing(column, column in texts) for column in header]
            for start, rows in _pieces(name, reader, len(header)):
                if (start + len(rows)) * len(header) > _MOST_CELLS:
                    raise UserError(f"data '{name}' has more than {_MOST_CELLS:,} cells: store it as arrays (.npz)")
                for column, cells in zip(growing, zip(*rows, strict=True), strict=True):
                    column.add(cells)
        except UnicodeDecodeError as error:
            raise UserError(f"data '{name}' is not text in UTF-8 ({error.reason}): save it as UTF-8") from None
        except csv.Error as error:
            line = reader.line_num
            raise UserError(f"data '{name}' is not a readable table ({error}, line {line:,}): write it anew") from None
    if not growing[0].pieces:
        raise UserError(f"data '{name}' has a line of names and no rows: give it some")
    columns = {column.name: column.finished() for column in growing}
    named = (asked.client, asked.split)
    columns = {key: column if key in named else recognised(column) for key, column in columns.items()}
    return _without_counter(name, columns)


def _delimiter(file: Path, header: str) -> str:
    if file.suffix.lower() == ".tsv":
        return "\t"
    return max(",;\t|", key=header.count)


def _header(name: str, cells: Sequence[str]) -> list[str]:
    """The columns' names, each of them given once."""
    header = [cell.strip() for cell in cells]
    if not any(header):
        raise UserError(f"data '{name}' is empty: its first line must name the columns")
    if len(header) > 1 and all(number(cell) is not None for cell in header):
        raise UserError(f"data '{name}': its first line holds numbers, where the names of the columns must stand")
    if twice := [column for i, column in enumerate(header) if column in header[:i]]:
        raise UserError(f"data '{name}': two columns are called '{twice[0]}': give each a name of its own")
    return header


def _pieces(name: str, reader: Iterator[list[str]], width: int) -> Iterator[tuple[int, list[list[str]]]]:
    """Some rows at a time, with the number of rows before them; empty lines are none."""
    done = 0
    while lines := list(islice(reader, _ROWS_AT_ONCE)):
        rows = [row for row in lines if row]
        if set(map(len, rows)) - {width}:
            at, row = next((i, row) for i, row in enumerate(rows) if len(row) != width)
            raise UserError(
                f"data '{name}': row {done + at + 1:,} has {len(row)} cells, and there are {width} columns: put texts "
                "with a separator in them in quotes"
            )
        if rows:
            yield done, rows
        done += len(rows)


def _without_counter(name: str, columns: dict[str, Column]) -> Table:
    """Without a nameless first column that counts rows, which some programs write."""
    first = next(iter(columns))
    if first not in ("", "Unnamed: 0"):
        if "" in columns:
            raise UserError(f"data '{name}': column {list(columns).index('') + 1} has no name: give it one")
        return Table(name, columns)
    counter = columns.pop(first)
    if counter.kind != NUMBER or (len(counter) > 1 and not (np.diff(counter.values) == 1).all()):
        raise UserError(f"data '{name}': the first column has no name: give it one, or leave the column out")
    return Table(name, columns, ("The first column only counts the rows, and is left out.",))
