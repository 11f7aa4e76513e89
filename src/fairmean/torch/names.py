"""Columns of names, as people have them: lists, NumPy arrays, tensors, columns of a data frame."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from fairmean.errors import UserError


def column(values: Any, who: str) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """The distinct names in order, and the place of each sample's name among them."""
    array = as_array(values, who)
    if array.ndim != 1 or not len(array):
        raise UserError(f"{who}: one name or number for each sample is needed, got shape {array.shape}")
    try:
        names, owner = np.unique(array, return_inverse=True)
    except TypeError:  # names of several kinds have no order
        raise UserError(f"{who}: names must all be text or all be numbers") from None
    return names.tolist(), owner


def as_array(values: Any, who: str) -> np.ndarray[Any, Any]:
    """An array without missing values; text is an array of objects or of text, numbers are integers."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    elif hasattr(values, "to_numpy"):
        values = values.to_numpy()
    try:
        array = np.asarray(values)
    except ValueError:
        raise UserError(f"{who}: one name or number for each sample is needed; the entries differ in length") from None
    missing = np.zeros(0, dtype=bool)
    if array.dtype == object:
        missing = np.array([_is_missing(entry) for entry in array.ravel()])
    elif array.dtype.kind == "f":
        missing = np.isnan(array).ravel()
    if missing.any():
        raise UserError(f"{who}: sample {int(missing.argmax())} has no name; give it one, or leave it out")
    if array.dtype.kind == "f" and (array == np.round(array)).all():
        array = array.astype(np.int64)
    return array


def _is_missing(entry: Any) -> bool:
    """None, NaN, and pandas' NA, of which nothing is true."""
    try:
        return entry is None or bool(entry != entry)
    except TypeError:
        return True
