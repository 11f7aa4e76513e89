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


def test_texts_are_numbered_by_their_order(tmp_path):
    texts = {
        "y_train": np.array(["well", "ill", "ill", "well", "10", "9"]),
        "y_test": np.array(["ill", "9", "well"]),
        "clients_train": np.array(["2", "10", "2", "2", "10", "1"]),
        "clients_test": np.array(["1", "2", "10"]),
    }
    own = data.load(as_npz(tmp_path, GOOD | texts))
    assert own.class_names == ("10", "9", "ill", "well")
    assert own.train_y.tolist() == [3, 2, 2, 3, 0, 1]
    assert own.client_names == ("1", "2", "10"), "whole numbers go by their size"
    assert own.train_clients.tolist() == [1, 2, 1, 1, 2, 0]
    assert own.test_clients.tolist() == [0, 1, 2]
    assert (own.task, own.classes) == ("classification", 4)


def test_floats_are_a_regression(tmp_path):
    numbers = {"y_train": np.linspace(0, 1, 6), "y_test": np.zeros(3)}
    own = data.load(as_npz(tmp_path, GOOD | numbers))
    assert (own.task, own.classes, own.train_y.dtype) == ("regression", 1, np.float32)
    whole = data.load(as_npz(tmp_path, GOOD), columns=data.Columns(task="regression"))
    assert (whole.task, whole.train_y.tolist()) == ("regression", [0.0, 1.0, 2.0, 0.0, 1.0, 2.0])
    flags = {"y_train": np.array([True, False] * 3), "y_test": np.array([True] * 3)}
    told = data.load(as_npz(tmp_path, GOOD | flags), columns=data.Columns(task="regression"))
    assert (told.task, told.train_y.dtype, told.classes) == ("regression", np.float32, 1)
    with pytest.raises(UserError, match="y_train is float64: save it as integers"):
        data.load(as_npz(tmp_path, GOOD | numbers), columns=data.Columns(task="classification"))


def test_two_classes_may_be_binary(tmp_path):
    two = GOOD | {"y_train": np.array([True, False] * 3), "y_test": np.array([True] * 3)}
    assert data.load(as_npz(tmp_path, two)).task == "classification"
    assert data.load(as_npz(tmp_path, two), columns=data.Columns(task="binary")).task == "binary"
    with pytest.raises(UserError, match=r"has 4 classes, not two; use data\.task=classification"):
        data.load(as_npz(tmp_path, GOOD), columns=data.Columns(task="binary"))


def test_whole_numbers_are_tokens(tmp_path):
    x = {"x_train": np.arange(24, dtype=np.int32).reshape(6, 4), "x_test": np.zeros((3, 4), np.int32)}
    own = data.load(as_npz(tmp_path, GOOD | x))
    assert (own.task, own.train_x.dtype) == ("classification", np.int64)
    following = {"y_train": x["x_train"] + 1, "y_test": x["x_test"] + 1}
    own = data.load(as_npz(tmp_path, GOOD | x | following))
    assert (own.task, own.classes, own.train_y.shape) == ("next-token", 25, (6, 4))
    for changes, columns, why in (
        (
            {"y_test": np.zeros((3, 5), int)},
            data.Columns(),
            r"y_test has shape \(3, 5\): it needs \(3, 4\), the next tok",
        ),
        ({}, data.Columns(task="binary"), "has rows of targets, which is next-token prediction"),
        ({"y_test": np.full((3, 4), 2**40)}, data.Columns(), "holds a token 1,099,511,627,776"),
        ({"y_test": np.full((3, 4), -1)}, data.Columns(), "y_test holds -1"),
        ({"classes": np.array(24)}, data.Columns(), "classes=24, but there is a token 24"),
    ):
        with pytest.raises(UserError, match=why):
            data.load(as_npz(tmp_path, GOOD | x | following | changes), columns=columns)
    with pytest.raises(UserError, match="has single targets"):
        data.load(as_npz(tmp_path, GOOD | x), columns=data.Columns(task="next-token"))


def test_a_dataset_keeps_what_it_says_of_itself(module):
    module(
        "from dataclasses import replace\n"
        "from fairmean.data import Dataset\n"
        "x, y = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])\n"
        "whose = dict(train_clients=y, test_clients=y, client_names=('a', 'b'))\n"
        "data = Dataset('mine', x, y, x, y, 2, task='binary', class_names=('no', 'yes'), table=True, **whose)\n"
        "def make(): return data\n"
        "def numbers(): return replace(data, train_y=y / 3, test_y=y / 3, task='regression', class_names=None)\n"
        "def nameless(): return replace(data, client_names=('a',))\n"
        "def classless(): return replace(data, class_names=('no', 'yes', 'perhaps'))\n"
        "def forgotten(): return replace(data, train_y=y / 3, test_y=y / 3, task='classification')\n"
    )
    own = data.load("toy_module:make")
    assert (own.task, own.class_names, own.client_names, own.table) == ("binary", ("no", "yes"), ("a", "b"), True)
    assert data.load("toy_module:make", columns=data.Columns(task="classification")).task == "classification"
    numbers = data.load("toy_module:numbers")
    assert (numbers.task, numbers.classes, numbers.class_names) == ("regression", 1, None)
    for name, why in (
        ("nameless", "client 1 has no name"),
        ("classless", "class_names has 3 names, and there are 2 classes"),
        ("forgotten", "y_train is float64: save it as integers"),
    ):
        with pytest.raises(UserError, match=why):
            data.load(f"toy_module:{name}")
