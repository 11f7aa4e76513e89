"""Rows into training and test data: every client is tested where it can be, and every class can be learned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmean.data.column import TEXT, Column, coded, without_missing
from fairmean.data.division import Owners, dataset_of, division, marked, owners
from fairmean.data.targets import Target
from fairmean.errors import UserError

rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=2, max_size=60)


def texts(name, values):
    table: dict[str, int] = {}
    return without_missing(Column(name, TEXT, coded(values, table), tuple(table)))


def numbered(values):
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


@given(rows, st.floats(0.01, 0.9))
def test_division(pairs, fraction):
    kinds, ids = (numbered(column) for column in zip(*pairs, strict=True))
    test = division(kinds, ids, fraction, classes=True)
    assert set(kinds[test]) <= set(kinds[~test]), "a class that is tested can be learned"
    for client in range(ids.max() + 1):
        has = ids == client
        assert (~test[has]).any(), "every client trains"
        trained = np.bincount(kinds[~test])
        if has.sum() > 1 and not test[has].any():  # only where each of its rows is the last of its class
            assert (trained[kinds[has]] == 1).all()
    assert np.array_equal(test, division(kinds, ids, fraction, classes=True)), "the same rows, the same division"


@given(st.lists(st.integers(0, 3), min_size=20, max_size=200), st.sampled_from([0.1, 0.2, 0.5]))
def test_a_class_has_its_share_of_the_test_rows(kinds, fraction):
    kinds = numbered(kinds)
    test = division(kinds, None, fraction, classes=True)
    assert abs(test.sum() - fraction * len(kinds)) <= 1
    share = test.sum() / len(kinds)
    for kind in range(kinds.max() + 1):
        assert abs(test[kinds == kind].sum() - share * (kinds == kind).sum()) <= 2


def test_numbers_are_divided_along_their_order():
    y = np.random.default_rng(0).exponential(size=1000)
    test = division(y, None, 0.2, classes=False)
    assert test.sum() == 200
    for low, high in ((0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1)):
        part = (y >= np.quantile(y, low)) & (y <= np.quantile(y, high))
        assert abs(test[part].sum() - 50) <= 2


def test_owners():
    assert owners("t", texts("site", ["b", "a", "b"])).names == ("a", "b")
    by_size = owners("t", texts("site", ["10", "9", "10"]))
    assert by_size.names == ("9", "10")
    assert by_size.ids.tolist() == [1, 0, 1]
    assert owners("t", texts("site", ["1.0", "2.0", "1.0"])).names == ("1", "2")
    with pytest.raises(UserError, match="the client column 'site' lacks a value in 1 of 3 rows, first in row 2"):
        owners("t", texts("site", ["a", "", "b"]))
    with pytest.raises(UserError, match="client column 'site' names another client in every row"):
        owners("t", texts("site", ["a", "b", "c"]))


def test_marked():
    assert marked("t", texts("part", ["Train", "test", "train"])).tolist() == [False, True, False]
    with pytest.raises(UserError, match="the split column 'part' has 'tests' in row 3: write 'test'"):
        marked("t", texts("part", ["train", "test", "tests"]))
    with pytest.raises(UserError, match="has '0' in row 2: its values must be 'train' and 'test'"):
        marked("t", texts("part", ["train", "0", "train"]))
    with pytest.raises(UserError, match="the split column 'part' lacks a value"):
        marked("t", texts("part", ["train", ""]))


def test_a_division_that_came_with_the_data():
    x, y = np.zeros((4, 1), np.float32), Target("binary", np.array([0, 0, 0, 1]), 2, ("no", "yes"))
    at_end = np.array([False, False, True, True])
    with pytest.raises(UserError, match="no row for training has the class 'yes'"):
        dataset_of("t", x, y, test=at_end)
    known = y._replace(values=np.array([0, 1, 0, 1]))
    assert dataset_of("t", x, known, test=at_end).test_y.tolist() == [0, 1]
    with pytest.raises(UserError, match="client 'south' has no rows for training: give it some"):
        dataset_of("t", x, known, Owners(np.array([0, 0, 0, 1]), ("north", "south")), test=at_end)
    for every, what in ((True, "training"), (False, "testing")):
        with pytest.raises(UserError, match=f"has no rows for {what}"):
            dataset_of("t", x, known, test=np.full(4, every))
    with pytest.raises(UserError, match="every client has a single row"):
        dataset_of("t", x, known, Owners(np.arange(4), ("a", "b", "c", "d")))
    with pytest.raises(UserError, match="has 1 rows: it needs at least two"):
        dataset_of("t", x[:1], known._replace(values=np.array([0])))
