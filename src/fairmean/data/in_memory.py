"""Data that was passed as arrays from Python: kept in this process under a name that says its content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairmean.data import own
from fairmean.data.dataset import Dataset
from fairmean.errors import UserError

PREFIX = "in-memory-"
_KEPT: dict[str, Dataset] = {}


def keep(given: Any) -> str:
    """Check the data, and return the name by which a config knows it.

    It is a ``Dataset``, a mapping with ``x_train``, ``y_train``, ``x_test``, ``y_test`` (and ``clients_train``,
    ``clients_test``, ``classes``), or a tuple of the first four.
    """
    if isinstance(given, tuple | list):
        if len(given) != len(own.REQUIRED):
            raise UserError(f"data: {len(given)} arrays were given; pass ({', '.join(own.REQUIRED)})")
        given = dict(zip(own.REQUIRED, given, strict=True))
    if isinstance(given, Mapping):
        dataset = own.from_arrays("arrays", given)
    elif isinstance(given, Dataset):
        dataset = own.checked(given, given.name)
    else:
        raise UserError(f"data: a {type(given).__name__} is not data; pass arrays by name, such as x_train=…")
    name = PREFIX + own.content(dataset)
    _KEPT[name] = dataset
    return name


def is_kept(name: str) -> bool:
    """Whether the name is of data that was passed as arrays."""
    return name.startswith(PREFIX)


def load(name: str) -> Dataset:
    """The data of that name."""
    if name not in _KEPT:
        raise UserError(
            f"data '{name}' was passed as arrays from Python, in another process; pass the same arrays again"
        )
    return _KEPT[name]
