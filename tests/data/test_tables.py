"""Tables: what a column is, what becomes of it, and one line for every way a table can be wrong."""

from __future__ import annotations

import csv
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairmean import data
from fairmean.data import Columns, own, tables
from fairmean.errors import UserError

HEADER = "age,colour,smoker,big,site,outcome"
LINES = [
    f"{20 + i}.5,{('red', 'green', 'blue')[i % 3]},{('no', 'yes')[i % 2]},{('true', 'False')[i % 2]},"
    f"{('north', 'south')[i // 6 % 2]},{('ill', 'well')[(i // 2) % 2]}"
    for i in range(24)
]
ASKED = Columns("outcome", "site")


@pytest.fixture
def table(tmp_path):
    """Write a table; returns its path."""

    def write(header=HEADER, lines=LINES, name="table.csv"):
        file = tmp_path / name
        file.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
        return str(file)

    return write


def column(values, name="c", rows=24):
    """A table with one further column, which has these values in turn."""
    return f"{HEADER},{name}", [f"{line},{values[i % len(values)]}" for i, line in enumerate(LINES[:rows])]


def together(dataset):
    """Inputs and targets of all rows, sorted by the first input."""
    x, y = np.concatenate([dataset.train_x, dataset.test_x]), np.concatenate([dataset.train_y, dataset.test_y])
    order = np.argsort(x[:, 0])
    return x[order], y[order]


def test_columns_become_inputs(table):
    dataset = data.load(table(), columns=ASKED)
    x, y = together(dataset)
    i = np.arange(24)
    assert x.dtype == np.float32
    assert x[:, 0].tolist() == (20.5 + i).tolist()
    assert x[:, 1:4].tolist() == np.eye(3)[np.array([2, 1, 0])[i % 3]].tolist(), "blue, green, red"
    assert x[:, 4].tolist() == (i % 2).tolist(), "of two categories, whether it is the second"
    assert x[:, 5].tolist() == ((i + 1) % 2).tolist(), "true and false are 1 and 0"
    assert x.shape == (24, 6)
    assert y.tolist() == ((i // 2) % 2).tolist()
    assert (dataset.task, dataset.classes, dataset.class_names) == ("binary", 2, ("ill", "well"))
    assert dataset.client_names == ("north", "south")
    assert dataset.table
    assert np.bincount(dataset.train_clients).tolist() == [10, 10]
    assert np.bincount(dataset.test_clients).tolist() == [2, 2]


def test_separators_quotes_and_marks(table, tmp_path):
    plain = data.load(table(), columns=ASKED)
    others = {
        "semicolon.csv": "\n".join(line.replace(",", ";") for line in (HEADER, *LINES)).encode(),
        "tab.tsv": "\n".join(line.replace(",", "\t") for line in (HEADER, *LINES)).encode(),
        "windows.csv": b"\xef\xbb\xbf" + "\r\n".join((HEADER, *LINES, "", "")).encode(),
        "quoted.csv": "\n".join('"' + line.replace(",", '","') + '"' for line in (HEADER, *LINES)).encode(),
        "spaces.csv": "\n".join(line.replace(",", " , ") for line in (HEADER, *LINES)).encode(),
        "counted.csv": "\n".join([f",{HEADER}", *(f"{i},{line}" for i, line in enumerate(LINES))]).encode(),
    }
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
        same = data.load(str(tmp_path / name), columns=ASKED)
        assert np.array_equal(same.train_x, plain.train_x), name
        assert np.array_equal(same.test_y, plain.test_y), name
        assert same.client_names == plain.client_names


def test_pieces_make_one_column(table, monkeypatch):
    """Numbers first, and texts only in a later piece; texts first, and a missing value later."""
    monkeypatch.setattr(tables, "_ROWS_AT_ONCE", 5)
    plain = data.load(table(), columns=ASKED)
    assert together(plain)[0][:, 0].tolist() == (20.5 + np.arange(24)).tolist()
    header, lines = column(["1", "2"])
    lines[20] += "x"
    with pytest.raises(UserError, match=r"column 'c' holds both numbers and texts \(row 21 has '1x'\)"):
        data.load(table(header, lines), columns=ASKED)
    header, lines = column(["7"])
    lines[5:] = [line[:-1] + "odd" for line in lines[5:]]
    x = together(data.load(table(header, lines), columns=ASKED))[0]
    assert x[:, 6].tolist() == [0.0] * 5 + [1.0] * 19


def test_a_column_that_says_what_is_for_testing(table):
    header, lines = column(["train", "train", "train", "test"], "part")
    dataset = data.load(table(header, lines), columns=ASKED._replace(split="part"))
    assert sorted(dataset.test_x[:, 0]) == [20.5 + i for i in range(3, 24, 4)]
    assert dataset.train_x.shape == (18, 6)


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["0", "1"], "binary", ("0", "1")),
        (["1.0", "2.0", "3.0"], "classification", ("1", "2", "3")),
        (["10", "9", "-1"], "classification", ("-1", "9", "10")),
        (["a", "b", "c"], "classification", ("a", "b", "c")),
        (["True", "FALSE"], "binary", ("false", "true")),
        (["0.5", "1.5"], "regression", None),
        ([str(i) for i in range(24)], "regression", None),
        ([str(i) for i in range(13)], "regression", None),
        ([str(i) for i in range(12)], "classification", tuple(str(i) for i in range(12))),
    ],
)
def test_what_the_target_looks_like(table, values, task, classes):
    file = table(*column(values))
    dataset = data.load(file, columns=Columns("c", "site"))
    assert (dataset.task, dataset.class_names) == (task, classes)
    assert dataset.train_y.dtype == (np.float32 if task == "regression" else np.int64)
    again = data.load(file, columns=Columns("c", "site", task=task))
    assert np.array_equal(again.train_y, dataset.train_y)
    assert np.array_equal(again.test_x, dataset.test_x)
    assert again.class_names == classes


def test_the_task_may_be_asked_for(table):
    file = table(*column(["0", "1"]))
    assert data.load(file, columns=Columns("c", task="classification")).task == "classification"
    numbers = data.load(file, columns=Columns("c", task="regression"))
    assert (numbers.task, numbers.classes, numbers.train_y.dtype) == ("regression", 1, np.float32)
    assert numbers.train_clients is None


WRONG = {
    "no target": (HEADER, LINES, Columns(), "is a table: name the column .* its columns are age, colour, smoker"),
    "no such target": (HEADER, LINES, Columns("outcom"), "data.target = 'outcom': .* did you mean 'outcome'?"),
    "no such client": (HEADER, LINES, Columns("outcome", "q"), "data.client = 'q': .* its columns are age, "),
    "no such split": (HEADER, LINES, Columns("outcome", split="sit"), "data.split = 'sit': .* did you mean 'site'?"),
    "two roles": (HEADER, LINES, Columns("site", "site"), "data.target and data.client are both 'site'"),
    "missing": (*column(["1", "", "NA"]), ASKED, "column 'c' lacks a value in 16 of 24 rows, first in row 2: fill"),
    "missing text": (*column(["a", "b", "n/a"]), ASKED, "column 'c' lacks a value in 8 of 24 rows, first in row 3"),
    "missing target": (*column(["a", "?"]), Columns("c"), "the target column 'c' lacks a value in 12 of 24 rows"),
    "mixed": (*column(["1", "2", "x"]), ASKED, r"column 'c' holds both numbers and texts \(row 3 has 'x'\): write"),
    "mixed target": (*column(["1", "2", "x"]), Columns("c"), "the target column 'c' holds both numbers and texts"),
    "dates": (*column(["2020-01-01", "2021-12-31"]), ASKED, r"column 'c' holds dates \(such as 2020-01-01\): write"),
    "other dates": (*column(["1.5.2020", "31.12.2021 12:00"]), ASKED, "column 'c' holds dates"),
    "infinite": (*column(["1", "inf"]), ASKED, "column 'c' holds 12 values that are not finite in float32, first in r"),
    "too large": (*column(["1", "1e39"]), ASKED, "not finite in float32, first in row 2"),
    "names": (*column([f"n{i}" for i in range(24)]), ASKED, "column 'c' holds 24 different texts in 24 rows, such as"),
    "commas": (*column([f'"{i},5"' for i in range(24)]), ASKED, "too many for categories: write numbers with a decim"),
    "free text": (*column([f"it was {i}" for i in range(24)]), Columns("c"), "which is free text and no class: name a"),
    "huge label": (*column(["0", "1", str(2**40)]), Columns("c"), "holds 1,099,511,627,776 in row 3, among 3 differ"),
    "same target": (*column(["1"]), Columns("c"), "the target 'c' is the same in all rows"),
    "not binary": (*column(["1", "2", "3"]), Columns("c", task="binary"), "has 3 classes, not two; use data.task=cla"),
    "not whole": (*column(["1.5", "2"]), Columns("c", task="classification"), "numbers that are not whole, which are"),
    "no numbers": (*column(["a", "b"]), Columns("c", task="regression"), "holds texts such as 'a', and a regression"),
    "tokens": (*column(["1", "2"]), Columns("c", task="next-token"), "is a column of single values"),
    "ragged": (HEADER, [*LINES[:3], "1,2", *LINES], ASKED, "row 4 has 2 cells, and there are 6 columns"),
    "twice": (f"{HEADER},age", [f"{line},1" for line in LINES], ASKED, "two columns are called 'age'"),
    "nameless": (f"{HEADER},", [f"{line},1" for line in LINES], ASKED, "column 7 has no name"),
    "nameless first": (f",{HEADER}", [f"x,{line}" for line in LINES], ASKED, "the first column has no name"),
    "no header": (LINES[0].replace("red", "1"), LINES, ASKED, "data.target = 'outcome'"),
    "numbers alone": ("1,2,3", ["1,2,3"], Columns("2"), "its first line holds numbers, where the names"),
    "empty": ("", [], ASKED, "is empty: its first line must name the columns"),
    "no rows": (HEADER, [], ASKED, "has a line of names and no rows"),
    "nothing to learn from": ("a,outcome", ["1,x", "1,y", "1,x"], ASKED._replace(client=None), "has no column to pred"),
    "open quote": (HEADER, [*LINES[:2], '"1,2'], ASKED, "is not a readable table"),
    "one row each": (*column([str(i) for i in range(24)]), ASKED._replace(client="c"), "names another client in every"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_tables(table, case):
    header, lines, asked, why = WRONG[case]
    with pytest.raises(UserError, match=why) as caught:
        data.load(table(header, lines), columns=asked)
    assert "\n" not in str(caught.value)


CELLS = st.sampled_from(
    [
        "",
        "0",
        "1",
        "2",
        "-3.5",
        "1e39",
        "inf",
        "nan",
        "NA",
        "a",
        "b",
        "true",
        "False",
        "2020-01-01",
        "x,y",
        '"',
        "ä\n",
        "1_0",
    ]
)
TABLES = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1, max_size=12)
)


@given(TABLES, st.booleans(), st.sampled_from(["auto", "classification", "binary", "regression", "next-token"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_a_table(tmp_path, rows, quoted, task):
    """It is a data set without gaps, or one line says why not."""
    file = tmp_path / "t.csv"
    with file.open("w", newline="", encoding="utf-8") as stream:
        quoting = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
        csv.writer(stream, quoting=quoting).writerows([[f"c{i}" for i in range(len(rows[0]))], *rows])
    client = "c1" if len(rows[0]) > 2 else None
    try:
        dataset = data.load(str(file), columns=Columns("c0", client, task=task))
    except UserError as error:
        refusal = str(error)
    else:
        refusal = ""
    assert "\n" not in refusal
    if refusal:
        return
    assert np.isfinite(dataset.train_x).all()
    assert np.isfinite(dataset.test_x).all()
    assert len(dataset.train_y) + len(dataset.test_y) <= len(rows)
    assert task in ("auto", dataset.task)


def test_too_many_inputs_name_the_widest_column(table, monkeypatch):
    monkeypatch.setattr(tables, "_MOST_CELLS", 24 * 9)
    data.load(table(), columns=ASKED)
    with pytest.raises(UserError, match="24 rows with 12 inputs are too many; column 'c' alone makes 6, one for each"):
        data.load(table(*column([f"c{i}" for i in range(6)])), columns=ASKED)


def test_wrong_files(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.csv is not there: check the path"):
        data.load(str(tmp_path / "nothing.csv"), columns=ASKED)
    (tmp_path / "latin.csv").write_bytes("größe,y\n1,2\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin\.csv' is not text in UTF-8 .*: save it as UTF-8"):
        data.load(str(tmp_path / "latin.csv"), columns=Columns("y"))


def test_a_column_with_one_value_has_no_input(table):
    assert data.load(table(*column(["7"])), columns=ASKED).train_x.shape[1] == 6


def test_identity_follows_the_content(table):
    file = table()
    first = own.digest(file)
    assert first is not None
    assert own.digest(table(name="copy.csv")) != first, "its name is a part of it, as with arrays"
    table(lines=[*LINES[:-1], LINES[-1].replace("43.5", "44.5")])
    os.utime(file, ns=(1, 1))
    assert own.digest(file) not in (None, first)


def test_a_file_that_changes_while_it_is_read(table, monkeypatch):
    file, read = table(), tables.read

    def slowly(*words):
        contents = read(*words)
        table(lines=LINES * 2)
        return contents

    monkeypatch.setattr(tables, "read", slowly)
    with pytest.raises(UserError, match="changed while it was read"):
        data.load(file, columns=ASKED)


def test_parquet_is_as_csv(table, tmp_path):
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(table())
    frame["kind"] = pandas.Categorical(["three" if i % 4 == 0 else "eight" for i in range(24)])
    frame["kind text"] = ["8" if i % 4 == 0 else "3" for i in range(24)]
    frame["single"] = 1
    frame.to_parquet(tmp_path / "table.parquet")
    stored, plain = data.load(str(tmp_path / "table.parquet"), columns=ASKED), data.load(table(), columns=ASKED)
    assert np.array_equal(stored.train_x[:, :6], plain.train_x)
    assert np.array_equal(stored.test_y, plain.test_y)
    assert (stored.class_names, stored.client_names) == (plain.class_names, plain.client_names)
    assert stored.train_x.shape[1] == 8
    assert np.array_equal(stored.train_x[:, 6], stored.train_x[:, 7])
    assert own.digest(str(tmp_path / "table.parquet"))


def test_wrong_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    file = tmp_path / "t.parquet"
    y = ["a", "b"] * 4
    for values, why in (
        ([1.0, None, 2, 3, 4, 5, 6, 7], "column 'c' lacks a value in 1 of 8 rows, first in row 2"),
        (pandas.date_range("2020", periods=8), "column 'c' holds dates"),
        ([[1, 2]] * 8, "column 'c' holds values of the type list"),
        ([True, None] * 4, "column 'c' lacks a value in 4 of 8 rows"),
        (["u", None, "v", "w"] * 2, "column 'c' lacks a value in 2 of 8 rows"),
    ):
        pandas.DataFrame({"x": range(8), "y": y, "c": values}).to_parquet(file)
        with pytest.raises(UserError, match=why):
            data.load(str(file), columns=Columns("y"))
    file.write_bytes(b"PAR1 noise")
    with pytest.raises(UserError, match=r"t\.parquet is not readable \(.*\): write it anew"):
        data.load(str(file), columns=Columns("y"))


def test_parquet_without_its_reader(tmp_path, monkeypatch):
    import sys

    (tmp_path / "t.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match="is read by the package pyarrow, which is not installed: pip install pyarrow"):
        data.load(str(tmp_path / "t.parquet"), columns=Columns("y"))
