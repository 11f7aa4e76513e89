"""What a data set holds, as plain values: its columns, its target, its classes, and whose the samples are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.data import huggingface, own, store, tables
from fairmean.data.column import IMAGE, LIST, TEXT, UNCOUNTED, Column, named
from fairmean.data.dataset import Columns, Dataset
from fairmean.data.registry import SPECS
from fairmean.data.scaling import scaled
from fairmean.data.tables import Table
from fairmean.data.tasks import TASKS

_ROLES = ("target", "client", "split", "input", "not used")
BINS = 10
"""Parts of equal width into which the range of numbers that are predicted is divided, to show where they lie."""


def table_of(name: str, asked: Columns) -> tuple[Table | None, Columns]:
    """The columns of a file or folder that has any, and what they are; None for data that has none."""
    if name in SPECS or own.is_function(name) or not own.is_own(name):
        return None, asked
    file = store.expanded(name)
    form = own.form(file)
    if form == "table":
        table = tables.read(name, file, asked)
    elif form == "huggingface":
        saved = huggingface.read(name, file)
        asked = huggingface.replace_target(saved, asked)
        table = huggingface.as_table(name, saved, asked)
    else:
        return None, asked
    tables.check_names(name, list(table.columns), asked)
    return table, asked


def is_whole(table: Table, asked: Columns) -> bool:
    """Whether a table can be made a data set: it is known what is predicted, also where that is the next token."""
    return asked.target is not None or table.only is not None


def dataset_of(table: Table, asked: Columns) -> Dataset:
    """The data set in a table that has been read; a file is not read twice."""
    return (
        tables.dataset(table, asked) if own.form(store.expanded(table.name)) == "table" else own.load(table.name, asked)
    )


def columns_of(table: Table, asked: Columns) -> list[dict[str, Any]]:
    """One row for each column: its type, its range or categories, its role, and what is wrong with it."""
    roles = {asked.target: "target", asked.client: "client", asked.split: "split"}
    if table.only is not None:
        roles |= {key: "not used" for key in table.columns if key not in roles and key != table.only}
    rows = [_column(column, roles.get(key, "input")) for key, column in table.columns.items()]
    return sorted(rows, key=lambda row: _ROLES.index(row["role"]))


def _column(column: Column, role: str) -> dict[str, Any]:
    trouble = {"input": column.input_trouble, "not used": ""}.get(role, column.trouble)
    absent = 0 if column.kind in UNCOUNTED else int(column.absent.sum())
    row: dict[str, Any] = {"name": column.name, "type": column.kind, "role": role, "missing": absent}
    if column.kind == TEXT:
        row |= {"distinct": column.distinct, "examples": list(named(column)[1][:5]) if not absent else []}
    elif column.kind not in UNCOUNTED and absent < len(column):
        row |= {
            "distinct": column.distinct,
            "least": float(np.nanmin(column.values)),
            "most": float(np.nanmax(column.values)),
        }
    if role == "input":
        row["inputs"] = None if column.kind in (IMAGE, LIST) else 0 if trouble else column.width
    return row | ({"trouble": trouble} if trouble else {})


def overview(data: Dataset, scale: str = "auto") -> dict[str, Any]:
    """What a data set holds: sizes, inputs, target, and every client's part of it."""
    facts: dict[str, Any] = {
        "name": data.name,
        "task": data.task,
        "train": len(data.train_y),
        "test": len(data.test_y),
        "shape": list(data.train_x.shape[1:]),
        "inputs": _inputs(data),
        "scaled": scaled(scale, data),
    }
    if TASKS[data.task].has_classes:
        names = class_names(data)
        train, test = (np.bincount(y.astype(np.int64), minlength=data.classes) for y in (data.train_y, data.test_y))
        facts["classes"] = [
            {"name": called, "train": int(some), "test": int(others)}
            for called, some, others in zip(names, train, test, strict=True)
        ]
        if data.task == "binary":
            facts["positive"] = names[1]
    elif data.task == "regression":
        facts["target"] = _range(data.train_y)
    else:
        facts["tokens"] = data.classes
    facts["clients"] = None if data.train_clients is None else _clients(data, data.train_clients)
    return facts


def class_names(data: Dataset) -> tuple[str, ...]:
    """What classes are called: their numbers, where they have no names."""
    return data.class_names or tuple(map(str, range(data.classes)))


def client_names(data: Dataset, clients: int) -> tuple[str, ...]:
    """What clients are called: their numbers, where they have no names."""
    return data.client_names or tuple(map(str, range(clients)))


def _clients(data: Dataset, owner: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Each client's sizes, and how many of its training samples have each class (or lie in each part of the range)."""
    number = int(owner.max()) + 1
    train = np.bincount(owner, minlength=number)
    test = None if data.test_clients is None else np.bincount(data.test_clients, minlength=number)
    spread = _spread(data, owner, number)
    rows = []
    for i, called in enumerate(client_names(data, number)[:number]):
        row: dict[str, Any] = {"name": called, "train": int(train[i])}
        row["test"] = None if test is None else int(test[i])
        if spread is not None:
            row["classes" if data.task != "regression" else "parts"] = spread[i].tolist()
        if data.task == "regression" and train[i]:
            row["target"] = _range(data.train_y[owner == i])
        rows.append(row)
    return rows


def _spread(data: Dataset, owner: NDArray[np.int64], number: int) -> NDArray[np.int64] | None:
    if data.train_y.ndim > 1:
        return None
    if data.task == "regression":
        low, high = float(data.train_y.min()), float(data.train_y.max())
        places = np.clip((data.train_y.astype(np.float64) - low) / ((high - low) or 1.0) * BINS, 0, BINS - 1)
        kinds, width = places.astype(np.int64), BINS
    else:
        kinds, width = data.train_y.astype(np.int64), data.classes
    return np.bincount(owner * width + kinds, minlength=number * width).reshape(number, width)


def _range(values: NDArray[Any]) -> Mapping[str, float]:
    return {"least": float(values.min()), "mean": float(values.mean(dtype=np.float64)), "most": float(values.max())}


def _inputs(data: Dataset) -> str:
    """What a sample is, in words."""
    shape = data.train_x.shape[1:]
    if data.train_x.dtype == np.int64:
        return f"sequences of {shape[0]} tokens"
    if data.train_x.dtype == np.uint8 and len(shape) in (2, 3):
        colours = " in colour" if len(shape) == 3 and shape[2] == 3 else ""
        return f"images of {shape[1]} × {shape[0]} pixels{colours}"
    return f"{' × '.join(map(str, shape))} numbers"
