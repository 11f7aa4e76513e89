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


def keep(given: Any, columns: Columns = UNNAMED) -> str:
    """Check the data, and return the name by which a config knows it.

    It is a ``Dataset``; a mapping with ``x_train``, ``y_train``, ``x_test``, ``y_test`` (and ``clients_train``,
    ``clients_test``, ``classes``), or a tuple of the first four; a pandas DataFrame, or a mapping with it as ``frame``;
    or a mapping with ``train`` and ``test``, which are DataFrames or torch Datasets. ``columns`` says what is what.
    """
    if columns.task != "auto":
        task(columns.task)  # which must be there
    if frames.is_frame(given):
        given = {"frame": given}
    if isinstance(given, tuple | list):
        if len(given) != len(REQUIRED):
            raise UserError(f"data: {len(given)} arrays were given; pass ({', '.join(REQUIRED)})")
        given = dict(zip(REQUIRED, given, strict=True))
    if isinstance(given, Mapping):
        dataset = _from_mapping(given, columns)
    elif isinstance(given, Dataset):
        dataset = checked(given, given.name, columns.task)
    else:
        raise UserError(f"data: a {type(given).__name__} is not data; pass arrays by name, such as x_train=…")
    name = PREFIX + own.content(dataset)
    _KEPT[name] = dataset
    return name


def _from_mapping(given: Mapping[str, Any], columns: Columns) -> Dataset:
    objects = [key for key in frames.FRAMES if key in given]
    if not objects:
        return from_arrays("arrays", given, columns.task)
    if others := [key for key in given if key not in objects]:
        raise UserError(f"data: '{others[0]}' does not go with '{objects[0]}': pass one or the other")
    return frames.load(given, columns)


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
