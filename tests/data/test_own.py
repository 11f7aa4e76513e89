"""The user's own data: three ways in, and one line for every way it can be wrong."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fairmean import data
from fairmean.data import Dataset
from fairmean.errors import UserError

GOOD: dict[str, NDArray[Any]] = {
    "x_train": np.arange(24, dtype=np.float64).reshape(6, 4) / 10,
    "y_train": np.array([0, 1, 2, 0, 1, 2], np.int32),
    "x_test": np.zeros((3, 4)),
    "y_test": np.array([0, 1, 3], np.uint8),
}
CLIENTS = {"clients_train": np.array([0, 0, 1, 1, 2, 2]), "clients_test": np.array([0, 1, 2])}


def as_npz(tmp_path, arrays):
    np.savez(tmp_path / "own.npz", **arrays)
    return str(tmp_path / "own.npz")


def as_folder(tmp_path, arrays):
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return str(tmp_path)


@pytest.fixture
def module(here, forget_modules):
    """Write a module into the current folder; it is forgotten afterwards."""

    def write(source):
        (here / "toy_module.py").write_text(f"import numpy as np\n{source}")
        sys.modules.pop("toy_module", None)

    return write


@pytest.mark.parametrize("form", [as_npz, as_folder])
def test_files(tmp_path, form):
    own = data.load(form(tmp_path, GOOD | CLIENTS))
    assert own.train_x.dtype == own.test_x.dtype == np.float32
    assert own.train_y.dtype == own.test_y.dtype == np.int64
    assert own.classes == 4
    assert np.array_equal(own.train_x, GOOD["x_train"].astype(np.float32))
    assert np.array_equal(own.test_y, GOOD["y_test"])
    assert own.train_clients is not None
    assert own.test_clients is not None
    assert own.train_clients.tolist() == [0, 0, 1, 1, 2, 2]
    assert (own.mean, own.std) == ((0.0,), (1.0,))


def test_uint8_stays_and_clients_are_optional(tmp_path):
    images = {"x_train": np.ones((6, 2, 2), np.uint8), "x_test": np.ones((3, 2, 2), np.uint8)}
    own = data.load(as_npz(tmp_path, GOOD | images))
    assert own.train_x.dtype == np.uint8
    assert own.train_clients is None


MAPPING = "def make():\n    return dict(x_train=np.eye(3), y_train=[0, 1, 2], x_test=np.eye(3), y_test=[0, 1, 2])\n"


def test_function_in_the_current_folder(module):
    module(MAPPING)
    path = list(sys.path)
    own = data.load("toy_module:make")
    assert own.classes == 3
    assert own.name == "toy_module:make"
    assert sys.path == path


def test_function_returning_a_dataset(module):
    module(
        "from fairmean.data import Dataset\n"
        "x = np.zeros((2, 2, 2, 3), np.uint8); x.flags.writeable = False\n"
        "y = np.array([0, 1])\n"
        "def make(classes=5): return Dataset('mine', x, y, x, y, classes, (0.5,), (0.2,))\n"
        "def few(): return make(1)\n"
    )
    own = data.load("toy_module:make")
    assert isinstance(own, Dataset)
    assert (own.name, own.classes, own.mean, own.std) == ("mine", 5, (0.5,), (0.2,))
    assert own.train_x.flags.writeable
    with pytest.raises(UserError, match="classes=1, but there is a label 1"):
        data.load("toy_module:few")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"y_test": None, "x_test": None}, "lacks x_test, y_test"),
        (
            {"y_train": np.zeros(5, int)},
            r"y_train has shape \(5,\): it needs \(6,\), one for each of x_train",
        ),
        ({"y_train": np.zeros((6, 1), int)}, r"y_train has shape \(6, 1\)"),
        ({"y_train": np.zeros(6)}, "y_train holds numbers, and y_test classes: make them alike"),
        ({"y_train": np.zeros(6, complex)}, "y_train is complex128: save classes as integers"),
        ({"y_train": np.array([0, 1, 2, 0, 1, 2**40])}, "y_train holds a label 1,099,511,627,776, but only 5 labels"),
        ({"y_train": np.array(list("abcabc"))}, "y_train holds texts, and y_test classes"),
        ({"y_train": np.array([0, 1, np.nan, 0, 0, 0]), "y_test": np.zeros(3)}, "y_train has 1 values that are not"),
        ({"y_train": np.zeros((6, 2), int)}, r"y_train has shape \(6, 2\): it needs \(6,\)"),
        ({"y_train": np.array([0, 1, -1, 0, 0, 0])}, "y_train holds -1: count from 0"),
        ({"y_test": np.array([0, 1, 2**63], np.uint64)}, "y_test holds 9223372036854775808"),
        ({"x_test": np.array([[0, 1, np.nan, np.inf]] * 3)}, "x_test has 6 values that are not finite"),
        ({"x_test": np.full((3, 4), 1e300)}, "x_test has 12 values that are not finite in float32"),
        (
            {"x_train": np.zeros((6, 4), np.int64)},
            r"x_train is int64 \(4,\), of x_test float32 \(4,\): make them alike",
        ),
        ({"x_train": np.zeros((6, 2, 2), np.int64)}, "x_train is int64: save it as uint8"),
        ({"x_train": np.full((6, 4), -3)}, "x_train is int64 and holds -3: whole numbers are tokens"),
        ({"x_train": np.full((6, 4), 2**40)}, "x_train is int64 and holds 1,099,511,627,776: whole numbers are tokens"),
        ({"x_train": np.zeros((6, 4), complex)}, "x_train is complex128"),
        ({"x_train": np.zeros(6)}, r"x_train has shape \(6,\)"),
        ({"x_train": np.zeros((0, 4)), "y_train": np.zeros(0, int)}, r"x_train has shape \(0, 4\)"),
        ({"x_test": np.zeros((3, 5))}, r"x_train is float32 \(4,\), of x_test float32 \(5,\)"),
        ({"x_test": np.zeros((3, 4), np.uint8)}, "make them alike"),
        ({"clients_train": np.zeros(5, int)}, "clients_train has shape"),
        ({"clients_test": np.array(["a", "b", "c"])}, "has clients_test, but no clients_train"),
        (
            {"clients_test": np.array(["a", "b", "c"]), "clients_train": np.array(["a", "b", "b", "b", "a", "a"])},
            "client 'c' is in clients_test, not in clients_train",
        ),
        (
            {"clients_test": np.array(["a", "b", "c"]), "clients_train": np.zeros(6, int)},
            "names in one, numbers in the other",
        ),
        ({"clients_test": np.zeros(3)}, "clients_test is float64: save it as integers"),
    ],
)
@pytest.mark.parametrize("form", [as_npz, as_folder])
def test_wrong_arrays(tmp_path, form, changes, why):
    arrays = {name: array for name, array in (GOOD | changes).items() if array is not None}
    with pytest.raises(UserError, match=why) as caught:
        data.load(form(tmp_path, arrays))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", [as_npz, as_folder])
def test_pickled_arrays_are_refused(tmp_path, form):
    with pytest.raises(UserError, match="is not a readable"):
        data.load(form(tmp_path, GOOD | {"x_train": np.array([{}, {}], object)}))


def test_wrong_files(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.npz is not there"):
        data.load(str(tmp_path / "nothing.npz"))
    (tmp_path / "table.xlsx").write_text("1,2")
    with pytest.raises(UserError, match=r"table\.xlsx' is not a \.npz, \.csv, \.tsv or \.parquet file, or a folder"):
        data.load(str(tmp_path / "table.xlsx"))
    with pytest.raises(UserError, match=r"data\.target = 'y': '.*\.npz' is a file of arrays, which has no columns"):
        data.load(str(tmp_path / "noise.npz"), columns=data.Columns("y"))
    (tmp_path / "noise.npz").write_text("noise")
    with pytest.raises(UserError, match=r"noise\.npz is not a readable \.npz"):
        data.load(str(tmp_path / "noise.npz"))
    with pytest.raises(UserError, match="lacks x_train, y_train, x_test, y_test"):
        data.load(str(tmp_path))
    with pytest.raises(UserError, match=r"data\.path 'x' does not go with your own data"):
        data.load(str(tmp_path / "noise.npz"), path="x")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_package.sub:make", "there is no module 'no_such_package': check its name"),
        ("toy_module:absent", "'toy_module' has no function 'absent'"),
        ("toy_module:number", "'toy_module' has no function 'number'"),
        ("toy_module:none", "returned NoneType: return a Dataset or a mapping"),
        ("toy_module:raises", r"toy_module:raises\(\) failed \(KeyError: 'k', at .*toy_module\.py:4\)"),
        ("toy_module:ragged", "x_train is not an array"),
    ],
)
def test_wrong_functions(module, name, why):
    module(
        "number = 3\n"
        "def none(): return None\n"
        "def raises(): return {}['k']\n"
        "def ragged(): return dict(x_train=[[1.0], [1.0, 2.0]])\n"
    )
    with pytest.raises(UserError, match=why):
        data.load(name)


@pytest.mark.parametrize("source", ["import no_such_package", "1 / 0", "def ("])
def test_a_module_that_does_not_import(module, source):
    module(source)
    with pytest.raises(UserError, match="importing toy_module failed"):
        data.load("toy_module:make")
