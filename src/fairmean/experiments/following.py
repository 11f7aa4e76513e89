"""The long table of a run, read while it grows, with the standard library alone.

A run at work appends whole rounds to ``clients.csv.part``; when it ends, the file becomes ``clients.csv``. A run that
is resumed goes on from an exact prefix and writes the same rows again, so rows that were read once stay true.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fairmean.errors import UserError
from fairmean.experiments.listing import ERRORS, Entry

TABLE = "clients.csv"
_AT_ONCE = 1 << 24  # bytes


@dataclass(frozen=True)
class Round:
    """What the table says about one round: a value for each client in it, NaN where there is none.

    ``rows`` are the cells of the table as text; numbers are made of them when somebody asks. ``metric`` is the figure
    by which clients are judged, and ``places`` are the numbers of clients that have names.
    """

    round: int
    rows: list[list[str]]
    metric: str = "accuracy"
    places: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def clients(self) -> list[int]:
        """Who is in it, by number."""
        return [self.places[row[1]] if self.places else int(row[1]) for row in self.rows]

    @property
    def names(self) -> list[str] | None:
        """Who is in it, by name; None where clients have no names."""
        return [row[1] for row in self.rows] if self.places else None

    @cached_property
    def regular(self) -> list[bool]:
        """Whether each of them is regular, that is, not poisoned."""
        return [row[2] == "1" for row in self.rows]

    @cached_property
    def loss(self) -> list[float]:
        """The loss of each."""
        return [_number(row[3]) for row in self.rows]

    @cached_property
    def weight(self) -> list[float]:
        """The weight of each one's gradient in the step."""
        return [_number(row[4]) for row in self.rows]

    @cached_property
    def values(self) -> list[float]:
        """The figure of each (``metric`` says which), on clean labels."""
        return [_number(row[5]) for row in self.rows]

    @property
    def evaluated(self) -> bool:
        """Whether the clients were evaluated in this round."""
        return any(row[5] for row in self.rows)

    def figures(self) -> dict[str, float]:
        """Average, variance and worst figure of the regular clients that have test data; NaN where none has."""
        x = [a for a, regular in zip(self.values, self.regular, strict=True) if regular and not math.isnan(a)]
        if not x:
            return dict.fromkeys(("average", "variance", "worst"), math.nan)
        mean = math.fsum(x) / len(x)
        worst = max(x) if self.metric in ERRORS.values() else min(x)
        return {"average": mean, "variance": math.fsum((a - mean) ** 2 for a in x) / len(x), "worst": worst}

    def mean_loss(self) -> float:
        """Mean loss of the regular clients that took part; NaN where none did."""
        x = [f for f, regular in zip(self.loss, self.regular, strict=True) if regular and not math.isnan(f)]
        return sum(x) / len(x) if x else math.nan


class Following:
    """Reads a run's table from where the last look ended.

    The last round in the file is kept back until a row of the next one follows, or until ``whole`` says that nothing
    follows: a round is told once, and with all its rows.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entry = Entry(folder)
        self._start_anew()

    @cached_property
    def _metric(self) -> str:
        try:
            return self._entry.metric
        except UserError:  # a folder whose config cannot be read may still have a table
            return "accuracy"

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self._entry.client_names or [])}

    def _start_anew(self) -> None:
        self._offset, self._rest, self._begun = 0, b"", ""
        self._round: int | None = None
        self._rows: list[list[str]] = []

    @property
    def file(self) -> Path:
        """The table as it is called now."""
        whole = self.folder / TABLE
        return whole if whole.exists() else self.folder / f"{TABLE}.part"

    @property
    def changed(self) -> float | None:
        """When a row was last written, in seconds since 1970; None where there is no table."""
        for name in (f"{TABLE}.part", TABLE):
            try:
                return (self.folder / name).stat().st_mtime
            except OSError:
                continue
        return None

    def news(self, whole: bool = False) -> Iterator[Round]:
        """The rounds that were written since the last look."""
        for line in self._records():
            row = next(csv.reader([line])) if '"' in line else line.split(",")
            if len(row) < 6 or not (row[0].isdecimal() and self._is_client(row[1])):
                continue  # the header; and a damaged row is nobody's news
            number = int(row[0])
            if self._round is not None and number != self._round:
                yield self._told()
            self._round = number
            self._rows.append(row)
        if whole and self._round is not None:
            yield self._told()

    def _is_client(self, text: str) -> bool:
        return text in self._places if self._places else text.isdecimal()

    def _told(self) -> Round:
        assert self._round is not None
        told = Round(self._round, self._rows, self._metric, self._places)
        self._round, self._rows = None, []
        return told

    def _records(self) -> Iterator[str]:
        """The rows as text; a name in quotation marks may go over several lines."""
        for line in self._lines():
            self._begun += line
            if self._begun.count('"') % 2:
                self._begun += "\n"
                continue
            yield self._begun
            self._begun = ""

    def _lines(self) -> Iterator[str]:
        """The whole lines after the last one that was read."""
        try:
            with open(self.file, "rb") as file:
                if file.seek(0, 2) < self._offset:  # the run goes on from an earlier checkpoint
                    self._start_anew()
                file.seek(self._offset)
                while chunk := file.read(_AT_ONCE):
                    self._offset += len(chunk)
                    *lines, self._rest = (self._rest + chunk).split(b"\n")
                    yield from (line.decode(errors="replace") for line in lines)
        except OSError:  # not written yet, or renamed this very moment: the next look finds it
            return


def _number(text: str) -> float:
    try:
        return float(text) if text else math.nan
    except ValueError:
        return math.nan
