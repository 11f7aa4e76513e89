"""The user's own data: a file, a folder, or a function that makes it; which reader it needs, and its digest."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.data import folders, huggingface, store, tables
from fairmean.data.arrays import OPTIONAL, REQUIRED, checked, from_arrays
from fairmean.data.dataset import UNNAMED, Columns, Dataset
from fairmean.data.registry import SPECS
from fairmean.errors import UserError
from fairmean.importing import call

FORMS = "a .npz, .csv, .tsv or .parquet file, or a folder of images, of .npy files or of a Hugging Face data set"
IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_own(name: str) -> bool:
    """Whether a data set's name is a path or an import path, rather than a plain name."""
    looks_like_path = name.lower().endswith((".npz", ".npy", *tables.SUFFIXES)) or "/" in name or os.sep in name
    return looks_like_path or bool(IMPORT_PATH.fullmatch(name)) or os.path.exists(os.path.expanduser(name))


def is_function(name: str) -> bool:
    """Whether a data set's name is ``package.module:function``."""
    return name not in SPECS and bool(IMPORT_PATH.fullmatch(name)) and not store.expanded(name).exists()


def load(name: str, columns: Columns = UNNAMED) -> Dataset:
    """Read and check the user's data; ``columns`` says what is what where it is no array yet."""
    if is_function(name):
        no_columns(name, "function that returns arrays, which have no columns", columns)
        made = call(name, f"data '{name}'")
        if isinstance(made, Dataset):
            return checked(made, name, columns.task)
        if not isinstance(made, Mapping):
            kind = type(made).__name__
            raise UserError(f"{name} returned {kind}: return a Dataset or a mapping with {', '.join(REQUIRED)}")
        return from_arrays(name, made, columns.task)
    file = store.expanded(name)
    before = _stamps(file)
    dataset = _read(name, file, columns)
    if _stamps(file) != before:
        raise UserError(f"data '{name}' changed while it was read; run again when it is whole")
    return dataset


def form(file: Path) -> str:
    """What a file or a folder is: 'arrays', 'table', 'images' or 'huggingface'."""
    if not file.is_dir():
        return "table" if file.suffix.lower() in tables.SUFFIXES else "arrays"
    if huggingface.is_saved(file):
        return "huggingface"
    if any(file.glob("*.npy")) or not folders.has_images(file):
        return "arrays"
    return "images"


def _read(name: str, file: Path, columns: Columns) -> Dataset:
    match form(file):
        case "table":
            return tables.load(name, file, columns)
        case "images":
            no_columns(name, "folder of images, whose folders say what is what", columns)
            return folders.load(name, file, columns)
        case "huggingface":
            return huggingface.load(name, file, columns)
    if file.exists() and not file.is_dir() and file.suffix != ".npz":
        raise UserError(f"data '{name}' is not {FORMS}: convert it to one of these")
    no_columns(name, "file of arrays, which has no columns", columns)
    if file.is_dir():
        return from_arrays(name, _read_folder(file), columns.task)
    arrays: dict[str, Any] = store.read(file, (*REQUIRED, *OPTIONAL, "classes"), "name a file that np.savez wrote")
    if "classes" in arrays and arrays["classes"].ndim == 0:
        arrays["classes"] = arrays["classes"].item()
    else:
        arrays.pop("classes", None)
    return from_arrays(name, arrays, columns.task)


def no_columns(name: str, what: str, columns: Columns) -> None:
    """A setting that would be ignored is a mistake."""
    for key in ("target", "client", "split"):
        if getattr(columns, key) is not None:
            raise UserError(f"data.{key} = '{getattr(columns, key)}': '{name}' is a {what}; leave it out")


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


Stamps = tuple[tuple[str, str, int, int, int], ...]


def _stamps(file: Path) -> Stamps:
    """Path, name, size, time and inode of each file of a data set: other ones tell that a file has changed."""
    parts = [(part.resolve(), label) for part, label in _files(file)]
    states = [(str(path), label or path.name, path.stat()) for path, label in parts]
    return tuple((path, label, state.st_size, state.st_mtime_ns, state.st_ino) for path, label, state in states)


def _files(file: Path) -> list[tuple[Path, str]]:
    """The files of a data set; in a tree of folders, with the names that they have in it."""
    if not file.is_dir():
        return [(file, "")] if file.exists() else []
    kind = form(file)
    if kind == "arrays":
        return [(part, "") for part in sorted(file.glob("*.npy"))]
    files = folders.images(file) if kind == "images" else huggingface.files(file)
    return [(part, part.relative_to(file).as_posix()) for part in files]


@functools.lru_cache(maxsize=64)
def _digest_of_files(stamps: Stamps) -> str:
    sha = hashlib.sha256()
    for path, label, *_ in stamps:
        sha.update(label.encode())
        with open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                sha.update(block)
    return sha.hexdigest()[:16]


def content(data: Dataset) -> str:
    """SHA-256 of everything in a data set that decides results: its arrays, the number of classes, the scaling."""
    more = (data.task, data.client_names, data.class_names, data.table, data.target_spread)
    usual = ("classification", None, None, False, 1.0)
    sha = hashlib.sha256(repr((data.classes, data.mean, data.std, *(more if more != usual else ()))).encode())
    for array in (data.train_x, data.train_y, data.test_x, data.test_y, data.train_clients, data.test_clients):
        if array is None:
            sha.update(b"none")
        else:
            sha.update(f"{array.dtype.str}{array.shape}".encode())
            sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()[:16]
