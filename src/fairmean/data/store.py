"""The cache: one .npz per data set, verified by content, replaced whole or not at all."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.data.formats import Arrays
from fairmean.errors import UserError


@dataclass(frozen=True)
class Content:
    """What a uint8 array must be: its shape, and the SHA-256 of its bytes in C order."""

    shape: tuple[int, ...]
    sha256: str


def folder() -> Path:
    """FAIRMEAN_DATA if set, else ``fairmean`` in the user's cache folder."""
    if chosen := os.environ.get("FAIRMEAN_DATA"):
        return expanded(chosen)
    return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "fairmean"


def expanded(name: str | Path) -> Path:
    """The path, with ~ replaced by a home folder."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise UserError(f"'{name}': there is no such home folder; write the whole path") from None


def cached(name: str) -> Path:
    """Where the cache keeps a data set, there or not."""
    return folder() / f"{name}.npz"


def digest(array: NDArray[np.uint8]) -> str:
    """SHA-256 of the values in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def verify(arrays: Arrays, contents: Mapping[str, Content], origin: Path, remedy: str) -> None:
    """Raise unless every array is exactly what was published."""
    for name, content in contents.items():
        array = arrays[name]
        if array.dtype != np.uint8 or array.shape != content.shape:
            found = f"{array.dtype} of shape {array.shape}, not uint8 of shape {content.shape}"
        elif (sha := digest(array)) != content.sha256:
            found = f"SHA-256 {sha[:12]}…, not {content.sha256[:12]}…"
        else:
            continue
        raise UserError(f"{origin} does not match the published content ({name}: {found}): {remedy}")


def read(file: Path, names: Collection[str], remedy: str) -> dict[str, NDArray[Any]]:
    """Those of the named arrays that a .npz holds."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names if name in arrays.files}
    except FileNotFoundError:
        raise UserError(f"{file} is not there: {remedy}") from None
    except Exception as error:  # zip, NumPy and the file system each have their own
        detail = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"{file} is not a readable .npz ({detail}): {remedy}") from error


def load(file: Path, contents: Mapping[str, Content], remedy: str) -> Arrays:
    """The verified arrays of a stored data set."""
    arrays = read(file, contents, remedy)
    if missing := sorted(contents.keys() - arrays.keys()):
        raise UserError(f"{file} does not match the published content ({missing[0]} is missing): {remedy}")
    verify(arrays, contents, file, remedy)
    return arrays


def ensure_folder() -> None:
    """Make the cache folder, before anything is downloaded for it."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder(), error) from error


def save(file: Path, arrays: Arrays, compress: bool = False) -> None:
    """Write a .npz beside its final place and rename it when whole."""
    part = file.with_name(f".{file.name}.{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as stream:
            write: Callable[..., None] = np.savez_compressed if compress else np.savez
            write(stream, **arrays)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    except OSError as error:
        raise _unwritable(file, error) from error
    finally:
        part.unlink(missing_ok=True)


def _unwritable(place: Path, error: OSError) -> UserError:
    reason = error.strerror or str(error)
    return UserError(f"cannot write {place} ({reason}): set FAIRMEAN_DATA to a folder with room that is yours")
