"""A data set in memory: train and test arrays, and how pixels become inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Columns(NamedTuple):
    """How to read a table, or what else is no array yet: which column is what.

    ``target`` is predicted, ``client`` says whose row it is, ``split`` whether it is for 'train' or 'test'; without
    that column, each client's rows are divided, ``test`` being the fraction for testing. ``task`` 'auto': what the
    target looks like.
    """

    target: str | None = None
    client: str | None = None
    split: str | None = None
    task: str = "auto"
    test: float = 0.2


UNNAMED = Columns()


@dataclass(frozen=True)
class Dataset:
    """Arrays with samples along axis 0.

    uint8 inputs become (x/255 − mean)/std, images with a channel axis (the last) channel by channel, channels then
    first; float inputs are used as they are, and int64 inputs are tokens. ``*_clients``, where given, say which client
    owns a sample, and ``client_names`` what clients are called.

    ``task`` says what is predicted (``fairmean.data.tasks``). Targets are int64 classes 0 … ``classes`` − 1, with their
    ``class_names`` where they have any; for regression float32 numbers, and ``classes`` is 1; for next-token prediction
    int64 tokens, shaped like the inputs, out of ``classes`` different ones. ``table`` says that the inputs are columns
    of a table, which are scaled unless that is not wanted. A target was ``target_middle`` + ``target_spread`` times
    as large before it was scaled. ``table_rows``, where rows were divided into training and test samples, are the rows,
    counted from 0, that became one and the other, and ``row_names`` what they are called if not by their numbers.
    """

    name: str
    train_x: NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int64]
    train_y: NDArray[np.int64] | NDArray[np.float32]
    test_x: NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int64]
    test_y: NDArray[np.int64] | NDArray[np.float32]
    classes: int
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    train_clients: NDArray[np.int64] | None = None
    test_clients: NDArray[np.int64] | None = None
    task: str = "classification"
    client_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    table: bool = False
    target_spread: float = 1.0
    target_middle: float = 0.0
    table_rows: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    row_names: tuple[str, ...] | None = None
