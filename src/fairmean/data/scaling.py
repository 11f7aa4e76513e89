"""Inputs of the user's own that are no bytes: whether they are scaled, and how to scale them.

Gradient steps fit inputs whose features are around 0 ± 1. (Images of bytes are brought there when they are read.)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.data.dataset import Dataset
from fairmean.errors import UserError

SCALES = ("auto", "none", "standard")
_LARGE, _SMALL = 3.0, 0.03  # root mean squares of all inputs beyond which training goes badly with usual step sizes


def scaled(scale: str, data: Dataset) -> bool:
    """Whether the inputs are to be scaled: tables are unless nobody wants it, other data only if somebody does."""
    return scale == "standard" or (scale == "auto" and data.table)


def standardised(data: Dataset) -> Dataset:
    """Every feature as (x − mean)/spread over all clients' training samples; a feature that never varies becomes 0.

    Mean and spread follow from sums that clients can compute for themselves: n, Σx and Σx². The target of a regression
    is scaled likewise, and the data set says by how much, so that errors can be told in the target's own unit.
    """
    if data.train_x.dtype == np.uint8:
        raise UserError(f"data.scale = 'standard': the inputs of '{data.name}' are bytes, which are scaled already")
    if data.train_x.dtype == np.int64:
        raise UserError(f"data.scale = 'standard': the inputs of '{data.name}' are tokens, which are only names")
    train = data.train_x.reshape(len(data.train_x), -1).astype(np.float64)
    mean = train.mean(0)
    spread = np.sqrt(((train - mean) ** 2).mean(0))
    spread[spread <= 1e-12 * np.maximum(1, np.abs(mean))] = np.inf

    def apply(x: NDArray[Any]) -> NDArray[np.float32]:
        return np.asarray((x.reshape(len(x), -1) - mean) / spread, dtype=np.float32).reshape(x.shape)

    inputs = dataclasses.replace(data, train_x=apply(data.train_x), test_x=apply(data.test_x))
    if data.task != "regression":
        return inputs
    middle, width = float(data.train_y.mean(dtype=np.float64)), float(data.train_y.std(dtype=np.float64)) or 1.0
    train_y, test_y = (((y - middle) / width).astype(np.float32) for y in (data.train_y, data.test_y))
    return dataclasses.replace(inputs, train_y=train_y, test_y=test_y, target_spread=width, target_middle=middle)


def unscaled(data: Dataset, own_model: bool = False) -> str:
    """A sentence about inputs that look as if nobody had scaled them, with the remedy; '' if they look fine.

    Whole numbers may be tokens or categories, which a model of the user's own looks up.
    """
    if data.train_x.dtype in (np.uint8, np.int64) or (own_model and not np.mod(data.train_x, 1).any()):
        return ""
    size = float(np.sqrt(np.mean(np.square(data.train_x, dtype=np.float64))))
    if _SMALL <= size <= _LARGE or size == 0:
        return ""
    low, high = float(data.train_x.min()), float(data.train_x.max())
    return (
        f"the inputs of '{data.name}' lie between {low:.3g} and {high:.3g} (root mean square {size:.3g}), and training "
        "works best around 1: data.scale=standard scales every feature"
    )
