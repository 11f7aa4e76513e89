"""Data sets by name, from the user's files or from a function, always checked before they are used."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairmean.data import in_memory, own, store
from fairmean.data.dataset import Dataset
from fairmean.data.formats import Arrays
from fairmean.data.registry import SPECS, Spec
from fairmean.data.sources import Progress, acquire
from fairmean.errors import UserError, unknown

__all__ = ["Dataset", "describe", "get", "load", "path"]

Named = str | Path | None


def load(name: str, path: Named = None, download: bool = True, progress: Progress | None = None) -> Dataset:
    """The data set: from ``path`` if given, else the cache, else wherever it can be had.

    ``name`` is a known name, a .npz file, a folder of .npy files or ``package.module:function``.
    """
    if in_memory.is_kept(name):
        return in_memory.load(name)
    if name not in SPECS and own.is_own(name):
        if path is not None:
            raise UserError(f"data.path '{path}' does not go with your own data '{name}': leave it out")
        return own.load(name)
    spec = _spec(name)
    if path is not None:
        arrays = _read(name, Path(path))
    elif spec.embedded or store.cached(name).exists():
        arrays = _stored(name)
    else:
        arrays = _fill_cache(name, path, download, progress)
    return Dataset(
        name=name,
        train_x=arrays["x_train"],
        train_y=arrays["y_train"].astype(np.int64),
        test_x=arrays["x_test"],
        test_y=arrays["y_test"].astype(np.int64),
        classes=spec.classes,
        mean=spec.mean,
        std=spec.std,
    )


def get(name: str, path: Named = None, download: bool = True, progress: Progress | None = None) -> Path:
    """Put the data set into the cache, unless it is there and whole; returns its file."""
    file = _place(name)
    if path is None and file.exists():
        try:
            _stored(name)
            return file
        except UserError as error:
            if _spec(name).embedded:
                raise
            (progress or _quiet)(f"{error}; getting it again")
    _fill_cache(name, path, download, progress)
    return file


def path(name: str) -> Path:
    """The file that holds a named data set on this machine."""
    file = _place(name)
    if not file.exists():
        raise UserError(f"{name} is not downloaded ({file} is not there): run 'fairmean data get {name}'")
    return file


def describe() -> list[dict[str, Any]]:
    """One row for each named data set."""
    return [
        {
            "name": name,
            "train": spec.contents["x_train"].shape[0],
            "test": spec.contents["x_test"].shape[0],
            "shape": spec.contents["x_train"].shape[1:],
            "classes": spec.classes,
            "where": _where(name, spec),
            "licence": spec.licence,
        }
        for name, spec in SPECS.items()
    ]


def _where(name: str, spec: Spec) -> str:
    if spec.embedded:
        return "embedded"
    return str(store.cached(name)) if store.cached(name).exists() else "not downloaded"


def _spec(name: str) -> Spec:
    if name not in SPECS:
        raise unknown("data set", name, SPECS)
    return SPECS[name]


def _place(name: str) -> Path:
    return _spec(name).embedded or store.cached(name)


def _stored(name: str) -> Arrays:
    remedy = "install fairmean again" if _spec(name).embedded else f"run 'fairmean data get {name}' to replace it"
    return store.load(_place(name), _spec(name).contents, remedy)


def _read(name: str, place: Path) -> Arrays:
    """Decode a data set's original files and verify them."""
    spec = _spec(name)
    if spec.decode is None:
        raise UserError(f"{name} comes with fairmean and data.path is '{place}': leave data.path out")
    arrays = spec.decode(store.expanded(place))
    store.verify(arrays, spec.contents, place, "get it again, or name another")
    return arrays


def _fill_cache(name: str, path: Named, download: bool, progress: Progress | None) -> Arrays:
    progress = progress or _quiet
    read = partial(_read, name)
    if path is not None:
        arrays = read(Path(path))
        store.ensure_folder()
    else:
        store.ensure_folder()
        arrays = acquire(name, _spec(name).sources, read, download, progress)
    file = store.cached(name)
    store.save(file, arrays)
    progress(f"{name}: verified and stored in {file}")
    return arrays


def _quiet(line: str) -> None:
    pass
