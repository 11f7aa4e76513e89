"""Image files as one array of bytes, all of the same size."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairmean.errors import UserError

_GREY, _COLOUR = ("1", "L", "LA", "La"), ("RGB", "RGBA", "RGBa", "RGBX", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV")


def stacked(name: str, files: Sequence[tuple[str, Path | bytes]]) -> NDArray[np.uint8]:
    """images × height × width, and × 3 where any of them has colours; each image is called something, for errors."""
    stack: NDArray[np.uint8] | None = None
    size: tuple[int, ...] = ()
    for i, (called, source) in enumerate(files):
        image = _decoded(name, called, source)
        if stack is None:
            stack, size = np.empty((len(files), *image.shape), np.uint8), image.shape[:2]
        if image.shape[:2] != size:
            raise UserError(
                f"data '{name}': {called} has {image.shape[1]} × {image.shape[0]} pixels, and {files[0][0]} has "
                f"{size[1]} × {size[0]}: resize them to one size"
            )
        if image.ndim == stack.ndim:  # the first one with colours
            stack = np.repeat(stack[..., None], 3, axis=-1)
        stack[i] = image if image.ndim == stack.ndim - 1 else image[..., None]
    assert stack is not None
    return stack


def _decoded(name: str, called: str, source: Path | bytes) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            mode = image.mode
            if mode in (*_GREY, *_COLOUR):
                return np.asarray(image.convert("L" if mode in _GREY else "RGB"))
    except PermissionError:
        raise UserError(f"data '{name}': {called} cannot be read: look at its rights") from None
    except Exception as error:  # Pillow has a different one for each format
        detail = type(error).__name__ if not str(error) else " ".join(str(error).split())[:100]
        raise UserError(f"data '{name}': {called} is no readable image ({detail}): replace it or remove it") from None
    raise UserError(f"data '{name}': {called} has pixels of the kind {mode}: save it with 8 bits a channel")
