"""Many numbers in little room: whole numbers of 16 bits, compressed, as text that a page can carry."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING = 65535
"""Stands for a figure that there is not: a client without test data, or one that did not take part."""
ABSENT = 65534
"""Stands for a client that this run does not have."""
FINEST, FINE, COARSE = 65_000, 1000, 250


class Packer:
    """Collects arrays one after the other; ``text`` is all of them.

    The low bytes come first and the high bytes after them, since most high bytes are zero and then take no room.
    """

    def __init__(self) -> None:
        self._parts: list[NDArray[np.uint16]] = []
        self._length = 0

    def add(self, values: NDArray[np.uint16]) -> int:
        """Keep an array; returns where it begins."""
        start = self._length
        flat = np.ascontiguousarray(values, dtype=np.uint16).ravel()
        self._parts.append(flat)
        self._length += len(flat)
        return start

    def text(self) -> str:
        """Everything that was kept: base64 of gzip of the two planes of bytes."""
        whole = np.concatenate(self._parts) if self._parts else np.zeros(0, np.uint16)
        planes = (whole & 255).astype(np.uint8).tobytes() + (whole >> 8).astype(np.uint8).tobytes()
        return base64.b64encode(gzip.compress(planes, 9, mtime=0)).decode("ascii")


def unpack(text: str) -> NDArray[np.uint16]:
    """What ``Packer.text`` packed, as one array.

    >>> packer = Packer()
    >>> packer.add(np.array([1, 2, 65535])), unpack(packer.text()).tolist()
    (0, [1, 2, 65535])
    """
    planes = np.frombuffer(gzip.decompress(base64.b64decode(text)), np.uint8)
    count = len(planes) // 2
    low, high = planes[:count].astype(np.uint16), planes[count:].astype(np.uint16)
    return low + high * np.uint16(256)


def hundredths(percent: NDArray[np.float64]) -> NDArray[np.uint16]:
    """Percentages with two decimals; NaN is ``MISSING``."""
    known = np.isfinite(percent)
    clipped = np.clip(np.where(known, percent, 0.0), 0.0, 100.0)
    return np.where(known, np.rint(clipped * 100), MISSING).astype(np.uint16)


def scaled(values: NDArray[np.float64], levels: int) -> tuple[NDArray[np.uint16], dict[str, Any]]:
    """Values as steps 0 … ``levels`` from the lowest to the highest, and what turns them back; NaN is ``MISSING``."""
    known = np.isfinite(values)
    low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0.0, 0.0)
    width = (high - low) or 1.0
    steps = np.rint((np.where(known, values, low) - low) / width * levels)
    return np.where(known, steps, MISSING).astype(np.uint16), {"low": low, "step": width / levels}


def back(numbers: NDArray[np.uint16], where: dict[str, Any], count: int) -> NDArray[np.float64]:
    """Numbers that ``hundredths`` or ``scaled`` packed; NaN where there is none."""
    steps = numbers[where["at"] : where["at"] + count].astype(np.float64)
    return np.where(steps >= ABSENT, np.nan, where["low"] + steps * where["step"])


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """At most ``most`` of the places 0 … count−1, evenly spread, the first and the last among them.

    >>> evenly(7, 3).tolist()
    [0, 3, 6]
    """
    if count <= most:
        return np.arange(count)
    return np.unique(np.rint(np.linspace(0, count - 1, max(most, 2))).astype(np.int64))
