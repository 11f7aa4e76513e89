"""Data that was passed as objects from Python: kept in this process under a name that says its content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairmean.data import frames, own
from fairmean.data.arrays import OPTIONAL, REQUIRED, checked, from_arrays
from fairmean.data.dataset import UNNAMED, Columns, Dataset
from fairmean.data.tasks import task
from fairmean.errors import UserError

PREFIX = "in-memory-"
OBJECTS = (*REQUIRED, *OPTIONAL, "classes", *frames.FRAMES)
"""The keys of ``data={…}`` whose values are data, and no settings."""
_KEPT: dict[str, Dataset] = {}


def keep(passed: Any, columns: Columns = UNNAMED) -> str:
    """Check the data, and return the name by which a config knows it.

    It is a ``Dataset``; a mapping with ``x_train``, ``y_train``, ``x_test``, ``y_test`` (and ``clients_train``,
    ``clients_test``, ``classes``), or a tuple of the first four; a pandas DataFrame, or a mapping with it as ``frame``;
    or a mapping with ``train`` and ``test``, which are DataFrames or torch Datasets. ``columns`` says what is what.
    """
    if columns.task != "auto":
        task(columns.task)  # which must be there
    if frames.is_frame(passed):
        passed = {"frame": passed}
    if isinstance(passed, tuple | list):
        if len(passed) != len(REQUIRED):
            raise UserError(f"data: {len(passed)} arrays were given; pass ({', '.join(REQUIRED)})")
        passed = dict(zip(REQUIRED, passed, strict=True))
    if isinstance(passed, Mapping):
        dataset = _from_mapping(passed, columns)
    elif isinstance(passed, Dataset):
        dataset = checked(passed, passed.name, columns.task)
    else:
        raise UserError(f"data: a {type(passed).__name__} is not data; pass arrays by name, such as x_train=…")
    name = PREFIX + own.content(dataset)
    _KEPT[name] = dataset
    return name


def _from_mapping(passed: Mapping[str, Any], columns: Columns) -> Dataset:
    objects = [key for key in frames.FRAMES if key in passed]
    if not objects:
        own.no_columns("data", "set of arrays, which have no columns", columns)
        return from_arrays("arrays", passed, columns.task)
    if others := [key for key in passed if key not in objects]:
        raise UserError(f"data: '{others[0]}' does not go with '{objects[0]}': pass one or the other")
    return frames.load(passed, columns)


def is_kept(name: str) -> bool:
    """Whether the name is of data that was passed as objects."""
    return name.startswith(PREFIX)


def load(name: str) -> Dataset:
    """The data of that name."""
    if name not in _KEPT:
        raise UserError(
            f"data '{name}' was passed as arrays from Python, in another process; pass the same arrays again"
        )
    return _KEPT[name]
