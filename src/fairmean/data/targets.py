"""What a column holds that is to be predicted: classes or numbers, and so which task it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairmean.data.column import FLAG, MOST_CATEGORIES, NUMBER, TEXT, Column, is_free_text, named
from fairmean.errors import UserError

FEW = 20  # so many different whole numbers are classes; more of them are numbers
_LARGEST = 1_000_000  # a larger label is a mistake more often than the name of a class


class Target(NamedTuple):
    """One value for each row: int64 classes with their ``names``, or float32 numbers, or rows of int64 tokens."""

    task: str
    values: NDArray[np.int64] | NDArray[np.float32]
    classes: int
    names: tuple[str, ...] | None = None


def target_of(name: str, column: Column, task: str = "auto") -> Target:
    """The targets in the data set called ``name``; ``task`` 'auto': what they look like."""
    where = f"data '{name}': the target"
    if column.trouble:
        raise UserError(f"{where} {column.trouble}")
    if task == "next-token":
        raise UserError(
            f"data.task = 'next-token': the target '{column.name}' of '{name}' is a column of single values"
        )
    distinct = column.distinct
    if distinct == 1:
        raise UserError(f"{where} '{column.name}' is the same in all rows: there is nothing to predict")
    if task == "auto":
        task = looks_like(column)
    if task == "regression":
        if column.kind == TEXT:
            raise UserError(
                f"data.task = 'regression': the target '{column.name}' of '{name}' holds texts such as "
                f"'{column.texts[0]}', and a regression predicts numbers"
            )
        return Target("regression", column.values.astype(np.float32), 1)
    if column.kind == TEXT and (is_free_text(distinct, len(column)) or distinct > MOST_CATEGORIES):
        raise UserError(
            f"{where} '{column.name}' holds {distinct:,} different texts in {len(column):,} rows, which is free text "
            "and no class: name another column with data.target"
        )
    if column.kind == NUMBER:
        _check_numbers(where, column, distinct)
    if task == "binary" and distinct != 2:
        raise UserError(
            f"data.task = 'binary': the target '{column.name}' of '{name}' has {distinct} classes, not two; use "
            "data.task=classification"
        )
    codes, names = named(column)
    return Target(task, codes, len(names), names)


def looks_like(column: Column) -> str:
    """The task: texts, true and false, and few different whole numbers are classes; other numbers are a regression."""
    distinct = column.distinct
    numbers = column.kind not in (TEXT, FLAG)
    if numbers and not (column.whole and distinct <= FEW and (distinct == 2 or 2 * distinct <= len(column))):
        return "regression"
    return "binary" if distinct == 2 else "classification"


def _check_numbers(where: str, column: Column, distinct: int) -> None:
    """Numbers that are to be classes."""
    if not column.whole or distinct > MOST_CATEGORIES:
        what = f"{distinct:,} different numbers" if column.whole else "numbers that are not whole"
        raise UserError(f"{where} '{column.name}' holds {what}, which are no classes: use data.task=regression")
    largest = int(np.abs(column.values).max())
    if largest >= _LARGEST:
        row = int(np.abs(column.values).argmax()) + 1
        raise UserError(
            f"{where} '{column.name}' holds {largest:,} in row {row:,}, among {distinct} different values: write it as "
            "text if it is the name of a class, or use data.task=regression"
        )
