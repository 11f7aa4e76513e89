"""Tiny files in the formats that the real data sets come in."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from fairmean.data.formats import CIFAR_BATCHES, FASHION_FILES, SHEET_LABELS, Arrays
from fairmean.data.registry import Spec
from fairmean.data.store import Content, digest


def idx_bytes(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2 and its NumPy wrote: byte strings, 0 and 1 for booleans, numpy.core."""

    write: Any
    memoize: Any
    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def save_string(self, obj):
        raw = obj.encode() if isinstance(obj, str) else obj
        self.write(b"T" + struct.pack("<i", len(raw)) + raw)
        self.memoize(obj)

    def save_bool(self, obj):
        self.write(b"K" + bytes([obj]))

    def save_global(self, obj, name=None):
        module = "numpy.core.multiarray" if obj.__name__ == "_reconstruct" else obj.__module__
        self.write(f"c{module}\n{obj.__name__}\n".encode())

    dispatch[str] = dispatch[bytes] = save_string
    dispatch[bool] = save_bool


def cifar_pickle_bytes(images, labels, python2=True):
    rows = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), -1)
    batch = {b"data": rows, b"labels": labels.tolist(), b"batch_label": b"some batch"}
    out = io.BytesIO()
    (Python2Pickler if python2 else pickle.Pickler)(out, protocol=2).dump(batch)
    return out.getvalue()


def sheet_bytes(images):
    out = io.BytesIO()
    Image.fromarray(images.reshape(len(images), -1, 3)).save(out, "PNG")
    return out.getvalue()


def tiny(image, train=10, test=4) -> Arrays:
    rng = np.random.default_rng(3)
    x = {f"x_{part}": rng.integers(0, 256, (n, *image), np.uint8) for part, n in (("train", train), ("test", test))}
    y = {f"y_{part}": rng.integers(0, 10, n, np.uint8) for part, n in (("train", train), ("test", test))}
    return {**x, **y}


def spec(arrays, decode, *sources):
    contents = {name: Content(array.shape, digest(array)) for name, array in arrays.items()}
    return Spec(contents, "none", decode=decode, sources=sources)


def write_fashion(folder: Path, arrays, zipped=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in FASHION_FILES.items():
        raw = idx_bytes(arrays[name])
        (folder / (f"{file}.gz" if zipped else file)).write_bytes(gzip.compress(raw) if zipped else raw)
    return folder


def cifar_files(arrays, sheets):
    """Name to bytes, of the pickles or of the sheets, the training part in five batches."""
    files = {}
    for part, names in CIFAR_BATCHES.items():
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        for name, xs, ys in zip(names, np.split(x, len(names)), np.split(y, len(names)), strict=True):
            files[f"{name}.png" if sheets else name] = sheet_bytes(xs) if sheets else cifar_pickle_bytes(xs, ys)
        if sheets:
            files[SHEET_LABELS[part]] = json.dumps(y.tolist()).encode()
    return files


def write_files(folder: Path, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_tar(file: Path, inner, files):
    with tarfile.open(file, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{inner}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file
