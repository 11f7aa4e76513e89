"""A folder of images: ``class/…`` or ``client/class/…``, in ``train/`` and ``test/`` where these are there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from fairmean.data.column import sorted_names
from fairmean.data.dataset import Columns, Dataset
from fairmean.data.division import Owners, dataset_of
from fairmean.data.images import stacked
from fairmean.data.targets import Target
from fairmean.errors import UserError

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_MOST_DEPTH = 5


def load(name: str, folder: Path, asked: Columns) -> Dataset:
    """The data set in a folder of images."""
    files = images(folder)
    places = [file.relative_to(folder).parts[:-1] for file in files]
    tops = {place[0] if place else "" for place in places}
    test = None
    if tops == {"train", "test"}:
        test = np.array([place[0] == "test" for place in places])
        places = [place[1:] for place in places]
    elif "train" in tops and len(tops) > 1:
        other = min(tops - {"train", "test"})
        raise UserError(
            f"data '{name}' has a folder 'train' and a folder '{other}' beside it: only 'train' and 'test' can stand "
            "there; data.validation holds out a part of the training samples"
        )
    depth = len(places[0])
    for file, place in zip(files, places, strict=True):
        if len(place) != depth or depth not in (1, 2):
            first, odd = (part.relative_to(folder).as_posix() for part in (files[0], file))
            beside = f", and {odd}" if odd != first else ""
            raise UserError(
                f"data '{name}' holds {first}{beside}: every image must lie in class/ or in client/class/, all alike"
            )
    if asked.task not in ("auto", "classification", "binary"):
        raise UserError(f"data.task = '{asked.task}': '{name}' is a folder of images of classes")
    y, classes = _names([place[-1] for place in places])
    if len(classes) == 1:
        raise UserError(f"data '{name}' has one class, '{classes[0]}': it needs a folder for each of several classes")
    task = asked.task if asked.task != "auto" else "binary" if len(classes) == 2 else "classification"
    if task == "binary" and len(classes) != 2:
        raise UserError(f"data.task = 'binary': '{name}' has {len(classes)} classes; use data.task=classification")
    owned = Owners(*_names([place[0] for place in places])) if depth == 2 else None
    names = tuple(file.relative_to(folder).as_posix() for file in files)
    x = stacked(name, list(zip(names, files, strict=True)))
    found = dataset_of(name, x, Target(task, y, len(classes), classes), owned, test, asked.test)
    return replace(found, row_names=names)


def _names(words: list[str]) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], tuple[str, ...]]:
    names, places = np.unique(words, return_inverse=True)
    ids, ordered = sorted_names(places, [str(name) for name in names])
    return ids.reshape(-1), ordered


def images(folder: Path) -> list[Path]:
    """The images below a folder, in order; hidden files and folders are none."""
    return sorted(_walk(folder))


def has_images(folder: Path) -> bool:
    """Whether there is an image anywhere below a folder."""
    return next(_walk(folder), None) is not None


def _walk(folder: Path) -> Iterator[Path]:
    for place, below, files in os.walk(folder):
        at = Path(place)
        deep = len(at.relative_to(folder).parts) >= _MOST_DEPTH
        below[:] = [] if deep else sorted(part for part in below if not part.startswith("."))
        for file in files:
            if file.lower().endswith(_SUFFIXES) and not file.startswith("."):
                yield at / file
