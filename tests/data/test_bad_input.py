"""Data that is wrong: one line that names it and the remedy, exit code 2, nothing left behind; and what is allowed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from fairmean.terminal.main import main

ROWS = [
    (f"{i}.5", ("north", "south")[i % 2], ("ill", "well")[i // 2 % 2], "test" if i > 15 else "train") for i in range(20)
]
ASKED = ["data.target=outcome", "data.client=site"]


def table(folder, change=lambda rows: None, header="age,site,outcome,part"):
    """Write a small table; ``change`` spoils its rows."""
    rows = [list(row) for row in ROWS]
    change(rows)
    (folder / "t.csv").write_text("\n".join([header, *(",".join(row) for row in rows)]))
    return "t.csv"


def cell(row, column, value):
    def change(rows):
        rows[row][column] = value

    return change


def free_text(rows):
    for i, row in enumerate(rows):
        row[2] = f"the patient said {i}"


def labels(rows):
    for i, row in enumerate(rows):
        row[2] = str(i % 3)
    rows[7][2] = str(2**40)


def image_folder(folder):
    for kind in ("ill", "well"):
        (folder / "images" / kind).mkdir(parents=True)
        for i in range(4):
            Image.new("L", (4, 4), i).save(folder / "images" / kind / f"{i}.png")
    (folder / "images" / "well" / "2.png").write_bytes(b"\x89PNG\r\n\x1a\n, but then noise")
    return "images"


def tokens(folder, largest=5):
    x = np.arange(24).reshape(8, 3) % largest
    np.savez(folder / "t.npz", x_train=x, y_train=x, x_test=x, y_test=x, classes=4)
    return "t.npz"


def huge_label(folder):
    x = np.zeros((6, 2), np.float32)
    np.savez(folder / "t.npz", x_train=x, y_train=[0, 1, 2, 0, 1, 2**40], x_test=x, y_test=[0] * 6)
    return "t.npz"


BAD = {
    "mixed types in a column": (
        lambda folder: table(folder, cell(6, 0, "old")), ASKED,
        "column 'age' holds both numbers and texts (row 7 has 'old')", "write numbers alone",
    ),
    "a missing value": (
        lambda folder: table(folder, cell(6, 0, "")), ASKED, "column 'age' lacks a value in 1 of 20 rows", "row 7",
    ),
    "a class seen in test only": (
        lambda folder: table(folder, cell(18, 2, "unwell")), [*ASKED, "data.split=part"],
        "no row for training has the class 'unwell'", "cannot be learned",
    ),
    "target column missing": (
        table, ["data.target=outcomes"], "data.target = 'outcomes'", "did you mean 'outcome'?", "age, site, outcome",
    ),
    "a target of free text": (
        lambda folder: table(folder, free_text), ASKED, "'outcome' holds 20 different texts in 20 rows", "free text",
    ),
    "a label of 2^40 in a table": (
        lambda folder: table(folder, labels), ASKED, "'outcome' holds 1,099,511,627,776 in row 8", "regression",
    ),
    "a label of 2^40 in arrays": (huge_label, [], "y_train holds a label 1,099,511,627,776", "number the classes"),
    "a broken image": (image_folder, [], "well/2.png is no readable image", "replace it or remove it"),
    "tokens beyond the vocabulary": (tokens, [], "classes=4, but there is a token 4", "raise it"),
    "a client without rows for training": (
        lambda folder: table(folder, cell(18, 1, "west")), [*ASKED, "data.split=part"],
        "client 'west' has no rows for training", "give it some",
    ),
    "a split that is neither": (
        lambda folder: table(folder, cell(3, 3, "valid")), [*ASKED, "data.split=part"], "has 'valid' in row 4",
    ),
    "a file that is not there": (lambda folder: "nothing.csv", ASKED, "nothing.csv is not there"),
    "a fraction that is none": (table, [*ASKED, "data.test=1.5"], "data.test = 1.5"),
}  # fmt: skip


@pytest.mark.parametrize("verb", ["run", "show"])
@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_one_line(case, verb, here, capsys):
    make, settings, *says = BAD[case]
    name = make(here)
    before = sorted(here.rglob("*"))
    words = ["run", f"data.name={name}", "train.rounds=1"] if verb == "run" else ["data", "show", name]
    assert main([*words, *settings]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("fairmean: ")
    assert err.count("\n") == 1
    for words in says:
        assert words in err, err
    assert out == "" or verb == "show"  # which lists the columns first, with all that is wrong with them
    assert sorted(here.rglob("*")) == before


def test_show_lists_all_that_is_wrong(here, capsys):
    def change(rows):
        for i, row in enumerate(rows):
            row[0] = f"2020-01-{i + 1:02d}"
        rows[3][2] = ""

    name = table(here, change)
    assert main(["data", "show", name]) == 0
    page = capsys.readouterr().out
    assert "! Column 'age' holds dates (such as 2020-01-01): write numbers instead" in page
    assert "! Column 'outcome' lacks a value in 1 of 20 rows, first in row 4" in page
    assert page.endswith("next: fairmean data show t.csv data.target=COLUMN data.client=COLUMN\n")


def test_a_client_with_one_sample_trains_and_is_not_tested(here, capsys):
    name = table(here, cell(5, 1, "west"))
    assert main(["data", "show", name, *ASKED, "data.task=binary"]) == 0
    assert "One client has no sample for testing, and so no figures: west." in capsys.readouterr().out
    assert main(["data", "show", name, *ASKED, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["clients"][2] == {"name": "west", "train": 1, "test": 0, "classes": [1, 0]}


def test_show_with_many_clients_and_classes(here, capsys):
    lines = [f"{i},s{i % 100},k{i // 2 % 50}" for i in range(2000)]
    (here / "t.csv").write_text("\n".join(["x,site,kind", *lines]))
    assert main(["data", "show", "t.csv", "data.target=kind", "data.client=site"]) == 0
    page = capsys.readouterr().out
    assert "100 clients" in page
    assert "… 80 more" in page
    assert "… 10 more" in page
    assert max(map(len, page.splitlines())) < 160


def test_show_of_other_data(here, own, capsys):
    assert main(["data", "show", own]) == 0
    assert "300 samples are for training, and 100 for testing." in capsys.readouterr().out
    assert main(["data", "show", "fashion-mnist-mini", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["train"], facts["clients"], facts["columns"], len(facts["classes"])) == (6000, None, None, 10)
    for words, why in (
        (["show"], "data show: name a data set"),
        (["show", own, "train.lr=1"], "'train': only settings that begin with data."),
        (["show", own, "data.tget=1"], "unknown key in [data] 'tget': did you mean 'target'?"),
        (["show", own, "extra"], "'extra' is no setting"),
        (["path", "cifar10", "data.target=y"], "'data.target=y' belongs to 'fairmean data show'"),
        (["show", "fashion-mnst"], "did you mean 'fashion-mnist"),
    ):
        assert main(["data", *words]) == 2
        assert why in capsys.readouterr().err


def test_a_table_that_is_taken_for_a_config(here, capsys):
    assert main(["run", table(here)]) == 2
    assert "to use it as data, write data.name=t.csv" in capsys.readouterr().err
