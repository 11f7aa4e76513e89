"""A data set of Hugging Face's ``datasets`` that ``save_to_disk`` has written, read with pyarrow alone.

Its columns are numbers and texts, as in a table; or one of them has images, or token or number lists of one length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairmean.data import arrow, tables
from fairmean.data.arrays import from_arrays
from fairmean.data.column import IMAGE, LIST, NUMBER, TEXT, Column
from fairmean.data.dataset import Columns, Dataset
from fairmean.data.division import dataset_of, marked, owners
from fairmean.data.images import stacked
from fairmean.data.targets import Target, target_of
from fairmean.errors import UserError

_TOKENS = "input_ids"


class Saved(NamedTuple):
    """What a folder holds: one Arrow table, which of its rows are for testing, and what its columns are."""

    table: Any
    test: NDArray[np.bool_] | None
    features: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def is_saved(folder: Path) -> bool:
    """Whether ``save_to_disk`` has written the folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def files(folder: Path) -> list[Path]:
    """The files that decide what is read."""
    return sorted(file for kind in ("*.arrow", "state.json", "dataset_dict.json") for file in folder.rglob(kind))


def load(name: str, folder: Path, asked: Columns) -> Dataset:
    """The data set in such a folder."""
    saved = read(name, folder)
    tables.check_names(name, saved.table.column_names, asked)
    asked = replace_target(saved, asked)
    key = _input(name, saved, asked)
    if key is None:
        return tables.dataset(as_table(name, saved, asked), asked, saved.test)
    test = marked(name, arrow.column(asked.split, saved.table[asked.split])) if asked.split else saved.test
    owned = owners(name, _column(saved, asked.client)) if asked.client else None
    x = _images(name, saved, key) if _is_image(saved, key) else lists(name, key, saved.table[key])
    x, target = _target(name, saved, asked, key, x)
    return dataset_of(name, x, target, owned, test, asked.test)


def read(name: str, folder: Path) -> Saved:
    """The table of all splits that are used: 'train' and 'test', or what there is."""
    arrow.library(f"data '{name}'")
    import pyarrow

    if not (folder / "dataset_dict.json").is_file():
        table = _split(name, folder)
        return Saved(table, None, _features(table))
    splits = _json(name, folder / "dataset_dict.json").get("splits", [])
    if "train" not in splits:
        raise UserError(f"data '{name}' has the parts {', '.join(splits) or 'none'}: it needs one called 'train'")
    train = _split(name, folder / "train")
    left = [split for split in splits if split not in ("train", "test")]
    notes = tuple(f"The part '{split}' is not used." for split in left)
    if "test" not in splits:
        return Saved(train, None, _features(train), notes)
    test = _split(name, folder / "test")
    if test.schema.names != train.schema.names or test.schema.types != train.schema.types:
        raise UserError(f"data '{name}': its parts 'train' and 'test' have different columns: make them alike")
    rows = np.repeat([False, True], [train.num_rows, test.num_rows])
    return Saved(pyarrow.concat_tables([train, test]), rows, _features(train), notes)


def as_table(name: str, saved: Saved, asked: Columns) -> tables.Table:
    """Its columns as those of any table; numbers that stand for class names are these names."""
    columns = {key: _named(saved, column) for key, column in arrow.columns(name, saved.table).items()}
    for key in columns:
        if _is_wide(saved, key):
            columns[key] = replace(columns[key], kind=IMAGE if _is_image(saved, key) else LIST)
    return tables.Table(name, columns, saved.notes, _input(name, saved, asked))


def replace_target(saved: Saved, asked: Columns) -> Columns:
    """The one column of class labels is the target where none is named."""
    labels = [key for key, feature in saved.features.items() if _type(feature) == "ClassLabel"]
    if asked.target is None and len(labels) == 1 and labels[0] not in (asked.client, asked.split):
        return asked._replace(target=labels[0])
    return asked


def lists(name: str, key: str, values: Any) -> NDArray[np.int64] | NDArray[np.float32]:
    """A column of lists of one length: whole numbers are tokens, and others are inputs as they are."""
    import pyarrow.compute as compute
    import pyarrow.types as types

    lengths = compute.list_value_length(values).to_numpy(zero_copy_only=False)
    if values.null_count or len(odd := np.flatnonzero(lengths != lengths[0])):
        row = int(np.isnan(lengths).argmax()) if values.null_count else int(odd[0])
        length = "no list" if values.null_count else f"{int(lengths[row])} values"
        raise UserError(
            f"data '{name}': column '{key}' has {length} in row {row + 1:,}, and {lengths[0]:g} in the first: pad or "
            "cut all lists to one length"
        )
    flat = compute.list_flatten(values)
    if flat.null_count:
        raise UserError(f"data '{name}': column '{key}' lacks values inside its lists: fill them in")
    array = np.asarray(flat.to_numpy()).reshape(len(values), -1)
    return array.astype(np.int64) if types.is_integer(values.type.value_type) else array.astype(np.float32)


def _target(name: str, saved: Saved, asked: Columns, key: str, x: NDArray[Any]) -> tuple[NDArray[Any], Target]:
    """Inputs and targets; without a target column, every token is predicted from those before it."""
    if asked.target is None:
        if x.dtype != np.int64 or asked.task not in ("auto", "next-token"):
            raise UserError(
                f"data '{name}': name the column that is to be predicted with data.target=…; its columns are "
                f"{tables.listed(saved.table.column_names)}"
            )
        if x.shape[1] < 2:
            raise UserError(f"data '{name}': column '{key}' has one token a row: next-token prediction needs two")
        x, y = x[:, :-1], x[:, 1:]
        return _checked(name, x, y, asked.task)
    if _is_list(saved.table[asked.target].type):
        return _checked(name, x, lists(name, asked.target, saved.table[asked.target]), asked.task)
    _check_inputs(name, x)
    return x, target_of(name, _column(saved, asked.target), asked.task)


def _checked(name: str, x: NDArray[Any], y: NDArray[Any], task: str) -> tuple[NDArray[Any], Target]:
    """Rows of targets, checked as arrays are."""
    whole = from_arrays(name, {"x_train": x, "y_train": y, "x_test": x[:1], "y_test": y[:1]}, task)
    return whole.train_x, Target(whole.task, whole.train_y, whole.classes)


def _check_inputs(name: str, x: NDArray[Any]) -> None:
    y = np.zeros(len(x), np.int64)
    from_arrays(name, {"x_train": x, "y_train": y, "x_test": x[:1], "y_test": y[:1]})


def _input(name: str, saved: Saved, asked: Columns) -> str | None:
    """The column of images or lists that is the input; None where there is no such column, as in a plain table."""
    others = (asked.target, asked.client, asked.split)
    wide = [key for key in saved.table.column_names if key not in others and _is_wide(saved, key)]
    if _TOKENS in wide:
        return _TOKENS
    if len(wide) > 1:
        raise UserError(
            f"data '{name}' has several columns of images or lists ({', '.join(wide)}): keep one, with "
            "remove_columns, before it is saved"
        )
    return wide[0] if wide else None


def _images(name: str, saved: Saved, key: str) -> NDArray[np.uint8]:
    values = saved.table[key].to_pylist()
    sources: list[tuple[str, Path | bytes]] = []
    for row, value in enumerate(values):
        source = (value or {}).get("bytes") or Path((value or {}).get("path") or "")
        if source == Path():
            raise UserError(f"data '{name}': column '{key}' has no image in row {row + 1:,}: leave that row out")
        sources.append((f"the image in row {row + 1:,}", source))
    return stacked(name, sources)


def _column(saved: Saved, key: str) -> Column:
    return _named(saved, arrow.column(key, saved.table[key]))


def _named(saved: Saved, column: Column) -> Column:
    """Numbers that stand for classes, by the names of these."""
    feature = saved.features.get(column.name) or {}
    if column.kind != NUMBER or _type(feature) != "ClassLabel" or not feature.get("names"):
        return column
    names = tuple(map(str, feature["names"]))
    codes = np.where(column.values >= 0, column.values, -1)  # NaN, and −1 for a label that is not known
    if codes.max() >= len(names):
        return column
    return replace(column, kind=TEXT, values=codes.astype(np.int64), texts=names, declared=True)


def _is_wide(saved: Saved, key: str) -> bool:
    return _is_image(saved, key) or _is_list(saved.table[key].type)


def _is_image(saved: Saved, key: str) -> bool:
    return _type(saved.features.get(key)) == "Image"


def _is_list(kind: Any) -> bool:
    import pyarrow.types as types

    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)))


def _type(feature: Any) -> str | None:
    return feature.get("_type") if isinstance(feature, Mapping) else None


def _split(name: str, folder: Path) -> Any:
    """The table of one split, from all its files."""
    import pyarrow

    state = _json(name, folder / "state.json")
    parts = []
    for file in [folder / str(entry["filename"]) for entry in state.get("_data_files", [])]:
        try:
            with file.open("rb") as stream:
                parts.append(pyarrow.ipc.open_stream(stream).read_all())
        except FileNotFoundError:
            raise UserError(f"data '{name}': {file.name} is not there: save the data set anew") from None
        except pyarrow.ArrowException as error:
            raise arrow.unreadable(name, file, error) from None
    if not parts or not sum(part.num_rows for part in parts):
        raise UserError(f"data '{name}': {folder.name} has no rows: save the data set anew")
    return pyarrow.concat_tables(parts)


def _features(table: Any) -> Mapping[str, Any]:
    """What ``datasets`` knows of the columns beyond their types."""
    stored = (table.schema.metadata or {}).get(b"huggingface")
    try:
        features = json.loads(stored)["info"]["features"] if stored else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, Mapping) else {}


def _json(name: str, file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"data '{name}': {file.name} cannot be read ({error}): save the data set anew") from None
    return content if isinstance(content, Mapping) else {}
