"""A data set in memory: train and test arrays, and how pixels become inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dataset:
    """Arrays with samples along axis 0.

    uint8 inputs become (x/255 − mean)/std, images with a channel axis (the last) channel by channel, channels then
    first; float inputs are used as they are. ``*_clients``, where given, say which client owns a sample.
    """

    name: str
    train_x: NDArray[np.uint8] | NDArray[np.float32]
    train_y: NDArray[np.int64]
    test_x: NDArray[np.uint8] | NDArray[np.float32]
    test_y: NDArray[np.int64]
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    train_clients: NDArray[np.int64] | None = None
    test_clients: NDArray[np.int64] | None = None
