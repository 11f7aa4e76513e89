"""What every verb has: JSON for programs, CSV where it prints a table, and examples that parse."""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from fairmean.terminal import starter
from fairmean.terminal.main import main, whole_parser
from fairmean.text import to_csv
from tests.terminal.made import MadeRun

pytestmark = pytest.mark.usefixtures("here")
ROOT = whole_parser()
VERBS = next(a.choices for a in ROOT._actions if isinstance(a, argparse._SubParsersAction))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_speaks_json_and_shows_examples(verb):
    assert "--json" in VERBS[verb].format_help()
    examples = re.findall(r"^  ((?:[A-Z_]+=\S+ |eval \"\$\()?fairmean .*)$", VERBS[verb].epilog, re.MULTILINE)
    assert examples
    for example in examples:
        assert len(example) <= 118
        command = re.split(r" {2,}| > |\)\"", example)[0].partition("fairmean ")[2]
        ROOT.parse_known_args(shlex.split(command))  # it would end the test with its usage


def test_the_commands_of_the_page_parse():
    page = (Path(__file__).parents[2] / "docs" / "watch.md").read_text(encoding="utf-8")
    commands = re.findall(r"^fairmean (.*?)(?:  .*|)$", page, re.MULTILINE)
    assert len(commands) >= 10
    for command in commands:
        _, more = ROOT.parse_known_args(shlex.split(command))
        assert more == [], command


def table(capsys, *arguments):
    assert main(list(arguments)) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_compare(capsys):
    words = [
        "compare",
        "--methods",
        "mean,fedavg",
        "--attacks",
        "none",
        "train.rounds=2",
        "model.name=linear",
        "train.device=cpu",
    ]
    rows = table(capsys, *words, "--csv")
    assert [row["method"] for row in rows] == ["mean", "fedavg"]
    assert main([*words, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [float(row["worst"]) for row in rows] == [record["worst"] for record in records]
    planned = table(capsys, *words, "--dry-run", "--csv")
    assert [row["folder"] for row in planned] == [record["folder"] for record in records]
    assert main([*words, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1]["method"] == "fedavg"


def test_a_dry_run_as_json(capsys):
    assert main(["run", "--dry-run", "--json", "model.name=linear", "train.device=cpu"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["parameters"] == 7850
    assert len(answer["sizes"]) == 10
    assert answer["settings"]["model.name"] == "linear"
    assert answer["folder"].startswith("runs/run/")


def test_ls_and_show(capsys, here):
    MadeRun(here / "runs" / "made" / "abcdef123456").finish()
    (row,) = table(capsys, "ls", "--csv")
    assert (row["folder"], row["status"], row["train.rounds"]) == ("runs/made/abcdef123456", "finished", "10")
    assert float(row["average"]) == 100.5


def test_ls_and_show_leave_out_what_a_method_has_by_default(capsys, here):
    """The rule with many hyper-parameters made every line of a listing as long as its own."""
    words = ["train.rounds=2", "model.name=linear", "train.device=cpu", "--quiet"]
    for more in (["method.name=mean"], ["method.name=fairmean-recess"], ["method.name=fairmean-recess", "method.z=3"]):
        assert main(["run", *words, *more]) == 0
    capsys.readouterr()
    assert main(["ls"]) == 0
    plain, usual, other = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[5] for line in (plain, usual, other)] == ["·", "z=2", "z=3"]
    assert main(["show", usual.split()[0]]) == 0
    settings = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("settings:"))
    assert "method." not in settings


def test_ls_of_nothing(capsys):
    assert main(["ls", "--csv"]) == 0
    assert capsys.readouterr().out.strip() == ""


def test_show(capsys):
    words = ["train.rounds=2", "model.name=linear", "train.device=cpu"]
    assert main(["run", *words, "--json"]) == 0
    folder = json.loads(capsys.readouterr().out)["folder"]
    rows = table(capsys, "show", folder, "--csv")
    assert [row["client"] for row in rows] == [str(client) for client in range(10)]
    assert float(rows[0]["accuracy"]) >= 0


@pytest.mark.parametrize("what", ["methods", "attacks", "datasets", "scales"])
def test_list(what, capsys):
    rows = table(capsys, "list", what, "--csv")
    assert main(["list", what, "--json"]) == 0
    assert [row["name"] for row in rows] == [row["name"] for row in json.loads(capsys.readouterr().out)]


def test_data(capsys):
    assert "fashion-mnist-mini" in [row["name"] for row in table(capsys, "data", "list", "--csv")]


@pytest.mark.parametrize("words", [["list", "methods", "mean"], ["data", "path", "fashion-mnist-mini"]])
def test_what_is_no_table(words, capsys):
    assert main([*words, "--csv"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "--json" in err


def test_json_or_csv(capsys):
    with pytest.raises(SystemExit) as end:
        main(["ls", "--json", "--csv"])
    assert end.value.code == 2


def test_new(capsys, here):
    assert main(["new", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == tomllib.loads(starter.text())
    assert main(["new", "my.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": "my.toml"}
    assert (here / "my.toml").is_file()


def test_cells():
    rows = [{"a": {"q": 1, "f": 2}, "b": [1, 2], "c": float("nan")}, {"a": None, "d": 'say "x", y'}]
    back = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert back[0] == {"a": "q=1 f=2", "b": "[1, 2]", "c": "", "d": ""}
    assert back[1] == {"a": "", "b": "", "c": "", "d": 'say "x", y'}
