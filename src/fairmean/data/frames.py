"""Objects of other libraries: pandas DataFrames, and torch Datasets that are read item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.data import tables
from fairmean.data.arrays import OPTIONAL, from_arrays
from fairmean.data.column import DATE, FLAG, MIXED, NUMBER, OTHER, TEXT, Column, coded
from fairmean.data.dataset import Columns, Dataset
from fairmean.data.division import division
from fairmean.errors import UserError

FRAMES = ("frame", "train", "test")


def is_frame(thing: Any) -> bool:
    """Whether an object is a table with named columns, as pandas has it."""
    return all(hasattr(thing, name) for name in ("columns", "dtypes", "iloc"))


def load(things: Mapping[str, Any], asked: Columns) -> Dataset:
    """``{"frame": …}`` is all rows; ``{"train": …, "test": …}`` are DataFrames, or torch Datasets.

    An item of a torch Dataset is (x, y) or (x, y, client).
    """
    if ("frame" in things) == ("train" in things):
        raise UserError("data: give one 'frame', or 'train' (and 'test', where there is one)")
    if "frame" in things:
        if not is_frame(things["frame"]):
            raise UserError(f"data: 'frame' is a {type(things['frame']).__name__}: give a pandas DataFrame")
        if "test" in things:
            raise UserError("data: 'test' goes with 'train', and not with 'frame'")
        return tables.dataset(_table(things["frame"]), asked)
    train, test = things["train"], things.get("test")
    if is_frame(train):
        return _two_frames(train, test, asked)
    for key in ("target", "client", "split"):
        if getattr(asked, key) is not None:
            raise UserError(f"data: '{key}' names a column of a DataFrame, and 'train' is a {type(train).__name__}")
    return _items(train, test, asked)


def _two_frames(train: Any, test: Any, asked: Columns) -> Dataset:
    if test is None:
        return tables.dataset(_table(train), asked)
    if not is_frame(test) or list(train.columns) != list(test.columns):
        raise UserError("data: 'train' and 'test' must be DataFrames with the same columns")
    import pandas

    rows = np.repeat([False, True], [len(train), len(test)])
    return tables.dataset(_table(pandas.concat([train, test], ignore_index=True)), asked, rows)


def _table(frame: Any) -> tables.Table:
    names = [str(name) for name in frame.columns]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UserError(f"data 'frame': two columns are called '{twice[0]}': give each a name of its own")
    if not names or not len(frame):
        raise UserError(f"data 'frame' has no {'rows' if names else 'columns'}: give it some")
    return tables.Table("frame", {name: _column(name, frame.iloc[:, i]) for i, name in enumerate(names)})


def _column(name: str, series: Any) -> Column:
    """A column of a DataFrame."""
    import pandas.api.types as types

    kind = series.dtype
    if types.is_bool_dtype(kind):
        return Column(name, FLAG, series.to_numpy(np.float64, na_value=np.nan))
    if str(kind) == "category":
        names = tuple(str(category) for category in kind.categories)
        return Column(name, TEXT, series.cat.codes.to_numpy(np.int64), names, declared=True)
    if types.is_datetime64_any_dtype(kind) or types.is_timedelta64_dtype(kind):
        return Column(name, DATE, np.zeros(len(series)), (str(series.iloc[0]),))
    if types.is_complex_dtype(kind):
        return Column(name, OTHER, np.zeros(len(series)), (f"values of the type {kind}",))
    if types.is_numeric_dtype(kind):
        return Column(name, NUMBER, series.to_numpy(np.float64, na_value=np.nan))
    return _objects(name, series.tolist(), series.isna().to_numpy())


def _objects(name: str, values: Sequence[Any], absent: NDArray[np.bool_]) -> Column:
    """A column of Python objects, which may be anything."""
    kinds = {type(value) for value, gone in zip(values, absent, strict=True) if not gone}
    if kinds <= {str}:
        table: dict[str, int] = {}
        codes = np.full(len(values), -1)
        codes[~absent] = coded((value for value, gone in zip(values, absent, strict=True) if not gone), table)
        return Column(name, TEXT, codes, tuple(table))
    numbers = all(issubclass(kind, int | float | np.number) for kind in kinds)
    if numbers:
        floats = np.array([np.nan if gone else float(value) for value, gone in zip(values, absent, strict=True)])
        return Column(name, FLAG if kinds <= {bool, np.bool_} else NUMBER, floats)
    if all(issubclass(kind, str | int | float | np.number) for kind in kinds):
        texts = [isinstance(value, str) for value in values]
        usual = 2 * sum(texts) > len(texts)
        odd = next(i for i, text in enumerate(texts) if text != usual and not absent[i])
        return Column(name, MIXED, np.zeros(len(values)), (str(values[odd]),), odd)
    other = next(kind.__name__ for kind in kinds if not issubclass(kind, str | int | float | np.number))
    return Column(name, OTHER, np.zeros(len(values)), (f"objects of the type {other}",))


def _items(train: Any, test: Any, asked: Columns) -> Dataset:
    """torch Datasets, or lists: items (x, y) or (x, y, client)."""
    arrays = _stacked("train", train)
    if test is not None:
        return from_arrays("datasets", arrays | _stacked("test", test), asked.task)
    whole = from_arrays(
        "datasets", arrays | {key.replace("train", "test"): value for key, value in arrays.items()}, asked.task
    )
    if len(whole.train_y) < 2:
        raise UserError("data: 'train' has one item: it needs at least two, one to train and one to test")
    kinds = whole.train_y if whole.train_y.ndim == 1 else np.zeros(len(whole.train_y))
    held = division(kinds, whole.train_clients, asked.test, whole.task in ("classification", "binary"))
    parts = {key: value[~held] for key, value in arrays.items()}
    tested = {key.replace("train", "test"): value[held] for key, value in arrays.items()}
    divided = from_arrays("datasets", parts | tested | _as_whole(whole), asked.task)
    names = tuple(f"train[{i}]" for i in range(len(held)))
    return replace(divided, table_rows=(np.flatnonzero(~held), np.flatnonzero(held)), row_names=names)


def _as_whole(whole: Dataset) -> dict[str, Any]:
    return {} if whole.task == "regression" else {"classes": whole.classes}


def _length(part: str, items: Any) -> int:
    try:
        if hasattr(items, "__getitem__"):
            return len(items)
    except TypeError:
        pass
    raise UserError(
        f"data: '{part}' is a {type(items).__name__} without a length: give a Dataset with __len__ and __getitem__"
    )


def _stacked(part: str, items: Any) -> dict[str, NDArray[Any]]:
    """``x_…``, ``y_…`` and ``clients_…`` of all items."""
    if not _length(part, items):
        raise UserError(f"data: '{part}' has no items: give it some")
    rows: list[tuple[Any, ...]] = []
    for i in range(len(items)):
        try:
            item = items[i]
        except Exception as error:
            raise UserError(f"data: '{part}' failed at item {i} ({type(error).__name__}: {error}): mend it") from error
        if not isinstance(item, tuple | list) or len(item) not in (2, 3) or (rows and len(item) != len(rows[0])):
            raise UserError(f"data: item {i} of '{part}' is not (x, y) or (x, y, client), alike in all items")
        rows.append(tuple(np.asarray(value) for value in item))
    arrays = {}
    for key, values in zip(("x", "y", "clients"), zip(*rows, strict=True), strict=False):
        if len(shapes := {value.shape for value in values}) > 1:
            odd = next(i for i, value in enumerate(values) if value.shape != values[0].shape)
            raise UserError(
                f"data: item {odd} of '{part}' has {key} of shape {values[odd].shape}, and item 0 of "
                f"{values[0].shape}: make all {len(shapes)} shapes alike"
            )
        arrays[f"{key}_{part}"] = np.stack(values)
    assert set(arrays) <= {f"x_{part}", f"y_{part}", *OPTIONAL}
    return arrays
