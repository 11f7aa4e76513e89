"""Objects of other libraries, passed from Python: DataFrames, and torch Datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fairmean.data import Columns, in_memory
from fairmean.errors import UserError
from fairmean.experiments.in_python import by_name

N = 24


@pytest.fixture
def frame():
    pandas = pytest.importorskip("pandas")
    i = np.arange(N)
    return pandas.DataFrame(
        {
            "age": 20.5 + i,
            "count": pandas.array([int(value) for value in i % 5], dtype="Int64"),
            "smoker": i % 2 == 0,
            "colour": [("red", "green", "blue")[k % 3] for k in i],
            "code": pandas.Categorical([(3, 8, 10)[k % 3] for k in i]),
            "site": [("north", "south")[k // 6 % 2] for k in i],
            "outcome": [("ill", "well")[k // 2 % 2] for k in i],
        }
    )


def kept(given, columns=Columns()):  # noqa: B008 (it cannot change)
    return in_memory.load(in_memory.keep(given, columns))


ASKED = Columns("outcome", "site")


def test_a_frame(frame):
    dataset = kept({"frame": frame}, ASKED)
    assert dataset.train_x.shape == (20, 3 + 3 + 3)
    assert (dataset.task, dataset.class_names, dataset.client_names) == ("binary", ("ill", "well"), ("north", "south"))
    x = np.concatenate([dataset.train_x, dataset.test_x])
    x = x[np.argsort(x[:, 0])]
    assert x[:, 1].tolist() == (np.arange(N) % 5).tolist()
    assert x[:, 2].tolist() == (np.arange(N) % 2 == 0).tolist()
    assert x[:, 6:].tolist() == np.eye(3)[np.arange(N) % 3].tolist(), "categories that are numbers, by their size"
    assert kept(frame, ASKED).train_x.shape == dataset.train_x.shape


def test_a_frame_is_as_its_file(frame, tmp_path):
    from fairmean import data

    frame = frame.drop(columns="code")
    frame.to_csv(tmp_path / "t.csv", index=False)
    stored, passed = data.load(str(tmp_path / "t.csv"), columns=ASKED), kept({"frame": frame}, ASKED)
    assert np.array_equal(stored.train_x, passed.train_x)
    assert np.array_equal(stored.test_clients, passed.test_clients)


def test_texts_that_look_missing_are_texts_where_the_frame_says_so(frame):
    dataset = kept({"frame": frame.assign(outcome=["NA", "none"] * 12)}, ASKED)
    assert dataset.class_names == ("NA", "none")


def test_two_frames(frame):
    dataset = kept({"train": frame[:18], "test": frame[18:]}, ASKED)
    assert dataset.test_x[:, 0].tolist() == (20.5 + np.arange(18, N)).tolist()
    assert len(kept({"train": frame}, ASKED).test_y) == 4


def test_settings_in_python(frame):
    settings = by_name({"data": {"frame": frame, "target": "outcome", "client": "site", "test": 0.5, "scale": "none"}})
    name = settings["data"].pop("name")
    assert settings["data"] == {"target": "outcome", "client": "site", "test": 0.5, "scale": "none"}
    assert len(in_memory.load(name).test_y) == N // 2
    assert by_name({"data": {"frame": frame, "target": "age"}})["data"]["name"] != name
    assert by_name({"data": {"name": "cifar10", "test": 0.5}})["data"] == {"name": "cifar10", "test": 0.5}
    with pytest.raises(UserError, match=r"unknown data\.task 'regresion': did you mean 'regression'"):
        by_name({"data": {"frame": frame, "target": "age", "task": "regresion"}})


def test_wrong_frames(frame):
    pandas = pytest.importorskip("pandas")
    for change, why in (
        ({"age": None}, "column 'age' lacks a value in 24 of 24 rows"),
        ({"age": [1.0, None] * 12}, "column 'age' lacks a value in 12 of 24 rows, first in row 2"),
        ({"colour": ["red", None] * 12}, "column 'colour' lacks a value in 12 of 24 rows, first in row 2"),
        ({"colour": [1, 2, 3, "x"] * 6}, r"column 'colour' holds both numbers and texts \(row 4 has 'x'\)"),
        ({"colour": [{}] * 24}, "column 'colour' holds objects of the type dict, which is no input"),
        ({"colour": [1j] * 24}, "column 'colour' holds values of the type complex128"),
        ({"age": pandas.date_range("2020", periods=24)}, r"column 'age' holds dates \(such as 2020-01-01"),
        ({"site": [None, *["a"] * 23]}, "the client column 'site' lacks a value in 1 of 24 rows"),
    ):
        with pytest.raises(UserError, match=why):
            kept({"frame": frame.assign(**change)}, ASKED)
    for given, asked, why in (
        ({"frame": frame}, Columns("outcom"), "'frame' has no such column; did you mean 'outcome'"),
        ({"frame": frame}, Columns(), "name the column that is to be predicted with data.target"),
        ({"frame": frame[:0]}, ASKED, "'frame' has no rows"),
        ({"frame": [1, 2]}, ASKED, "'frame' is a list: give a pandas DataFrame"),
        ({"frame": frame, "train": frame}, ASKED, "give one 'frame', or 'train'"),
        ({"frame": frame, "test": frame}, ASKED, "'test' goes with 'train', and not with 'frame'"),
        ({"train": frame, "test": frame.drop(columns="age")}, ASKED, "DataFrames with the same columns"),
        ({"frame": frame, "x_train": [1]}, ASKED, "'x_train' does not go with 'frame'"),
        ({"frame": pandas.concat([frame, frame["age"]], axis=1)}, ASKED, "two columns are called 'age'"),
    ):
        with pytest.raises(UserError, match=why):
            kept(given, asked)


class Items(torch.utils.data.Dataset[Any]):
    """A map-style Dataset of items that are given."""

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def items(n, y=lambda i: i % 3, *more):
    return Items(*((torch.full((1, 2, 2), float(i)), y(i), *(value(i) for value in more)) for i in range(n)))


def test_torch_datasets():
    dataset = kept({"train": items(12), "test": items(6)})
    assert dataset.train_x.shape == (12, 1, 2, 2)
    assert dataset.train_x.dtype == np.float32
    assert (dataset.task, dataset.test_y.tolist()) == ("classification", [0, 1, 2, 0, 1, 2])
    named = kept({"train": items(12, lambda i: torch.tensor(i % 2), lambda i: "ab"[i // 6])}, Columns(task="binary"))
    assert (named.task, named.client_names) == ("binary", ("a", "b"))
    assert np.bincount(named.test_clients).tolist() == [1, 1]
    numbers = kept({"train": items(12, lambda i: i / 7), "test": items(2, lambda i: i / 7)})
    assert (numbers.task, numbers.train_y.dtype) == ("regression", np.float32)
    tensors = torch.utils.data.TensorDataset(torch.arange(20).reshape(10, 2), torch.arange(10) % 2)
    tokens = kept({"train": tensors, "test": torch.utils.data.Subset(tensors, range(4))})
    assert tokens.train_x.dtype == np.int64
    assert kept({"train": tensors}, Columns(test=0.5)).test_x.shape == (5, 2)


def test_torch_datasets_of_images():
    image = pytest.importorskip("PIL.Image")
    pictures = Items(*((image.new("RGB", (4, 3), (i, 0, 0)), i % 2) for i in range(8)))
    dataset = kept({"train": pictures, "test": pictures})
    assert dataset.train_x.shape == (8, 3, 4, 3)
    assert dataset.train_x.dtype == np.uint8


def test_wrong_torch_datasets():
    class Broken(Items):
        def __getitem__(self, i):
            return {}["k"] if i == 2 else super().__getitem__(i)

    class Endless(torch.utils.data.IterableDataset[Any]):
        def __iter__(self):
            return iter([])

    x = torch.zeros(2)
    for train, asked, why in (
        (Broken(*[(x, 0)] * 4), Columns(), r"'train' failed at item 2 \(KeyError: 'k'\)"),
        (Endless(), Columns(), "'train' is a Endless without a length: give a Dataset"),
        (Items(), Columns(), "'train' has no items"),
        (Items(x, x), Columns(), r"item 0 of 'train' is not \(x, y\)"),
        (Items((x, 0), (x, 0, 1)), Columns(), r"item 1 of 'train' is not \(x, y\) or \(x, y, client\), alike"),
        (Items((x, 0), (torch.zeros(3), 0)), Columns(), r"item 1 of 'train' has x of shape \(3,\)"),
        (Items((x, 0)), Columns(), "'train' has one item"),
        (Items((x, 0), (x, 1)), Columns("y"), "'target' names a column of a DataFrame, and 'train' is a Items"),
    ):
        with pytest.raises(UserError, match=why):
            kept({"train": train}, asked)
