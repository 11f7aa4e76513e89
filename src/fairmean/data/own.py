"""The user's own data: a .npz file, a folder of .npy files, or a function that makes it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.data import store
from fairmean.data.dataset import Dataset
from fairmean.data.registry import SPECS
from fairmean.errors import UserError
from fairmean.importing import call

REQUIRED = ("x_train", "y_train", "x_test", "y_test")
OPTIONAL = ("clients_train", "clients_test")
_MOST_CLASSES = 1_000_000
IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_own(name: str) -> bool:
    """Whether a data set's name is a path or an import path, rather than a plain name."""
    looks_like_path = name.endswith((".npz", ".npy")) or "/" in name or os.sep in name
    return looks_like_path or bool(IMPORT_PATH.fullmatch(name)) or os.path.exists(os.path.expanduser(name))


def is_function(name: str) -> bool:
    """Whether a data set's name is ``package.module:function``."""
    return name not in SPECS and bool(IMPORT_PATH.fullmatch(name)) and not store.expanded(name).exists()


def load(name: str) -> Dataset:
    """Read and check the user's data."""
    file = store.expanded(name)
    if is_function(name):
        made = call(name, f"data '{name}'")
        if isinstance(made, Dataset):
            return checked(made, name)
        if not isinstance(made, Mapping):
            kind = type(made).__name__
            raise UserError(f"{name} returned {kind}: return a Dataset or a mapping with {', '.join(REQUIRED)}")
        return from_arrays(name, made)
    if file.exists() and not file.is_dir() and file.suffix != ".npz":
        raise UserError(f"data '{name}' is neither a .npz file nor a folder of .npy files: convert it to one")
    before = _stamps(file)
    if file.is_dir():
        arrays = _read_folder(file)
    else:
        arrays = store.read(file, REQUIRED + OPTIONAL, "name a file that np.savez wrote")
    if _stamps(file) != before:
        raise UserError(f"data '{name}' changed while it was read; run again when it is whole")
    return from_arrays(name, arrays)


def _read_folder(folder: Path) -> dict[str, NDArray[Any]]:
    arrays = {}
    for array in REQUIRED + OPTIONAL:
        file = folder / f"{array}.npy"
        if file.exists():
            try:
                with file.open("rb") as stream:
                    arrays[array] = np.lib.format.read_array(stream, allow_pickle=False)
            except Exception as error:
                raise UserError(f"{file} is not a readable .npy ({error}): write it with np.save") from error
    return arrays


def digest(name: str) -> str | None:
    """SHA-256 of the user's file or folder, so that a run is tied to its content; None for a data set known by name.

    A file is read once per process while it stays the same.
    """
    file = store.expanded(name)
    if name in SPECS or not is_own(name) or not file.exists():
        return None
    try:
        return _digest_of_files(_stamps(file))
    except OSError as error:
        raise UserError(f"data '{name}': {error.filename} cannot be read ({error.strerror})") from None


Stamps = tuple[tuple[str, int, int, int], ...]


def _stamps(file: Path) -> Stamps:
    """Path, size, time and inode of each file of a data set: other ones tell that a file has changed."""
    files = sorted(file.glob("*.npy")) if file.is_dir() else [file] if file.exists() else []
    states = [(str(part.resolve()), part.stat()) for part in files]
    return tuple((path, state.st_size, state.st_mtime_ns, state.st_ino) for path, state in states)


@functools.lru_cache(maxsize=64)
def _digest_of_files(stamps: Stamps) -> str:
    sha = hashlib.sha256()
    for path, *_ in stamps:
        sha.update(Path(path).name.encode())
        with open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                sha.update(block)
    return sha.hexdigest()[:16]


def content(data: Dataset) -> str:
    """SHA-256 of everything in a data set that decides results: its arrays, the number of classes, the scaling."""
    sha = hashlib.sha256(repr((data.classes, data.mean, data.std)).encode())
    for array in (data.train_x, data.train_y, data.test_x, data.test_y, data.train_clients, data.test_clients):
        if array is None:
            sha.update(b"none")
        else:
            sha.update(f"{array.dtype.str}{array.shape}".encode())
            sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()[:16]


def checked(made: Dataset, name: str) -> Dataset:
    """A Dataset that the user built, its arrays checked like any others."""
    given = (made.train_x, made.train_y, made.test_x, made.test_y, made.train_clients, made.test_clients)
    arrays = dict(zip(REQUIRED + OPTIONAL, given, strict=True))
    found = from_arrays(name, arrays | {"classes": made.classes})
    return dataclasses.replace(found, name=made.name, mean=made.mean, std=made.std)


def from_arrays(name: str, arrays: Mapping[str, Any]) -> Dataset:
    """A data set of these arrays, all of which are checked."""
    present = {}
    for key in REQUIRED + OPTIONAL:
        if arrays.get(key) is not None:
            try:
                present[key] = np.asarray(arrays[key])
            except (ValueError, TypeError, RuntimeError) as error:
                raise UserError(f"data '{name}': {key} is not an array ({error}): make it one") from error
    if missing := [key for key in REQUIRED if key not in present]:
        raise UserError(f"data '{name}' lacks {', '.join(missing)}: it needs {', '.join(REQUIRED)}")
    train_x = _inputs(name, "x_train", present["x_train"])
    test_x = _inputs(name, "x_test", present["x_test"])
    if train_x.shape[1:] != test_x.shape[1:] or train_x.dtype != test_x.dtype:
        train, test = (f"{x.dtype} {x.shape[1:]}" for x in (train_x, test_x))
        raise UserError(f"data '{name}': a sample of x_train is {train}, of x_test {test}: make them alike")
    train_y = _integers(name, "y_train", present["y_train"], len(train_x))
    test_y = _integers(name, "y_test", present["y_test"], len(test_x))
    clients = {
        key: _integers(name, key, present[key], len(x)) if key in present else None
        for key, x in zip(OPTIONAL, (train_x, test_x), strict=True)
    }
    classes = _classes(name, train_y, test_y, arrays.get("classes"))
    return Dataset(
        name=name,
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        classes=classes,
        train_clients=clients["clients_train"],
        test_clients=clients["clients_test"],
    )


def _classes(name: str, train_y: NDArray[np.int64], test_y: NDArray[np.int64], given: Any) -> int:
    """The number of classes: as given, or one more than the largest label, if most of the classes below it occur.

    One label of 1,000 among three classes is a mistake more often than a problem with 1,001 classes.
    """
    largest = int(max(train_y.max(), test_y.max()))
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or given > _MOST_CLASSES:
            raise UserError(f"data '{name}': classes = {given!r}: must be a whole number, at most {_MOST_CLASSES:,}")
        if given <= largest:
            raise UserError(f"{name}: classes={given}, but there is a label {largest}: raise it")
        return int(given)
    distinct = len(np.union1d(np.unique(train_y), np.unique(test_y)))
    if largest + 1 > 2 * distinct or largest >= _MOST_CLASSES:
        raise UserError(
            f"data '{name}': {'y_train' if train_y.max() == largest else 'y_test'} holds a label {largest:,}, but only "
            f"{distinct} labels occur: number the classes 0 … K−1 without large gaps, or let a function return a "
            "Dataset with classes=K"
        )
    return largest + 1


def _inputs(name: str, key: str, array: NDArray[Any]) -> NDArray[np.uint8] | NDArray[np.float32]:
    """uint8 as it is, floats as finite float32."""
    if array.ndim < 2 or 0 in array.shape:
        raise UserError(f"data '{name}': {key} has shape {array.shape}: it needs samples by features, none empty")
    if array.dtype == np.uint8:
        return np.require(array, np.uint8, ["C", "W"])
    if not np.issubdtype(array.dtype, np.floating):
        raise UserError(f"data '{name}': {key} is {array.dtype}: save it as uint8 (0 to 255) or float32")
    with np.errstate(over="ignore"):
        floats = np.require(array, np.float32, ["C", "W"])
    if bad := int(floats.size - np.isfinite(floats).sum()):
        raise UserError(f"data '{name}': {key} has {bad} values that are not finite in float32: clean them")
    return floats


def _integers(name: str, key: str, array: NDArray[Any], length: int) -> NDArray[np.int64]:
    """Labels or clients: one non-negative integer per sample."""
    if array.shape != (length,):
        x = key.replace("y_", "x_").replace("clients_", "x_")
        raise UserError(f"data '{name}': {key} has shape {array.shape}: it needs ({length},), one for each of {x}")
    if not np.issubdtype(array.dtype, np.integer):
        raise UserError(f"data '{name}': {key} is {array.dtype}: save it as integers, counted from 0")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > np.iinfo(np.int64).max:
        raise UserError(f"data '{name}': {key} holds {low if low < 0 else high}: count from 0")
    return array.astype(np.int64)
