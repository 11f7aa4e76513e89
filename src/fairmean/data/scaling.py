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

SCALES = ("none", "standard")
_LARGE, _SMALL = 3.0, 0.03  # root mean squares of all inputs beyond which training goes badly with usual step sizes


def standardised(data: Dataset) -> Dataset:
    """Every feature as (x − mean)/spread over all clients' training samples; a feature that never varies becomes 0.

    Mean and spread follow from sums that clients can compute for themselves: n, Σx and Σx².
    """
    if data.train_x.dtype == np.uint8:
        raise UserError(f"data.scale = 'standard': the inputs of '{data.name}' are bytes, which are scaled already")
    train = data.train_x.reshape(len(data.train_x), -1).astype(np.float64)
    mean = train.mean(0)
    spread = np.sqrt(((train - mean) ** 2).mean(0))
    spread[spread <= 1e-12 * np.maximum(1, np.abs(mean))] = np.inf

    def scaled(x: NDArray[Any]) -> NDArray[np.float32]:
        return np.asarray((x.reshape(len(x), -1) - mean) / spread, dtype=np.float32).reshape(x.shape)

    return dataclasses.replace(data, train_x=scaled(data.train_x), test_x=scaled(data.test_x))


def unscaled(data: Dataset, own_model: bool = False) -> str:
    """A sentence about inputs that look as if nobody had scaled them, with the remedy; '' if they look fine.

    Whole numbers may be tokens or categories, which a model of the user's own looks up.
    """
    if data.train_x.dtype == np.uint8 or (own_model and not np.mod(data.train_x, 1).any()):
        return ""
    size = float(np.sqrt(np.mean(np.square(data.train_x, dtype=np.float64))))
    if _SMALL <= size <= _LARGE or size == 0:
        return ""
    low, high = float(data.train_x.min()), float(data.train_x.max())
    return (
        f"the inputs of '{data.name}' lie between {low:.3g} and {high:.3g} (root mean square {size:.3g}), and training "
        "works best around 1: data.scale=standard scales every feature"
    )
