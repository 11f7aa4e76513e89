"""Runs that are judged by an error, that have named clients or samples held out: listed, shown, watched, exported."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil

import pytest

import fairmean
from fairmean.data.tasks import TASKS
from fairmean.experiments.following import Following
from fairmean.experiments.listing import ERRORS, Entry
from fairmean.experiments.metrics import summarise
from fairmean.export.feeding import export
from fairmean.export.mlflow import _allowed
from fairmean.terminal.main import main
from fairmean.terminal.watching import Group, Watched
from fairmean.text import figure
from tests.judged import SITES
from tests.terminal.fake_tracker import Fake

pytestmark = pytest.mark.usefixtures("here")


def test_the_names_of_errors_are_those_of_the_tasks():
    assert {name: task.metric.name for name, task in TASKS.items() if not task.metric.higher} == ERRORS
    assert {task.metric.name for task in TASKS.values() if task.metric.higher} == {"accuracy"}


@pytest.mark.parametrize("name", ["regression", "binary", "held out"])
def test_a_table_with_names_is_followed(judged, name):
    run = judged[name]
    news = list(Following(run.folder).news(whole=True))
    table = run.columns
    assert [one.round for one in news] == sorted(set(table["round"].tolist()))
    last = news[-1]
    there = table["round"] == last.round
    assert last.clients == table["client"][there].tolist() == list(range(5))
    assert last.names == run.client_names
    assert last.values == pytest.approx(table[run.metric.name][there], nan_ok=True)
    wanted = summarise(table[run.metric.name][there], run.regular, run.metric.higher)
    assert last.figures() == pytest.approx({key: wanted[key] for key in ("average", "variance", "worst")})


def test_a_name_over_two_lines_is_followed_as_it_grows(judged, here):
    folder = here / "copy"
    shutil.copytree(judged["regression"].folder, folder)
    names = ["one\nline, two", *Entry(folder).client_names[1:]]
    (folder / "run.json").write_text(json.dumps({"format": 2, "client_names": names}))
    text = (folder / "clients.csv").read_text()
    first = next(csv.reader(io.StringIO(text.splitlines()[1])))[1]
    (folder / "clients.csv").unlink()
    whole = text.replace(f'"{first}"' if "," in first else first, '"one\nline, two"')
    growing = folder / "clients.csv.part"
    table, news = Following(folder), []
    for end in range(0, len(whole) + 37, 37):
        growing.write_text(whole[:end])
        news += table.news()
    news += table.news(whole=True)
    assert [one.round for one in news] == list(range(7))
    assert all(one.names == names for one in news)


def test_a_run_at_work_tells_what_it_is_judged_by(judged, here):
    watched = Watched(judged["regression"].folder)
    watched.look()
    average, worst = (figure(judged["regression"].summary[key], share=False) for key in ("average", "worst"))
    assert f"RMSE, less is better · average {average} · variance " in watched.line({})
    assert watched.line({}).endswith(f" · worst {worst}")
    assert watched.record({})["metric"] == "rmse"
    assert max(watched.figures["worst"]) <= max(judged["regression"].columns["rmse"])
    folder = here / "runs" / "copy" / "abcdef123456"
    shutil.copytree(judged["held out"].folder, folder)
    (folder / "summary.json").unlink()
    group = Group([folder])
    group.look()
    assert "on held-out samples" in group.runs[0].line({})
    assert "RMSE" not in Watched(judged["binary"].folder).line({})


def test_ls_says_the_metric_where_it_is_not_the_accuracy(judged, capsys):
    directory = str(judged["regression"].folder.parent.parent)
    assert main(["ls", "--dir", directory]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[-4:] == ["metric", "avg", "worst", "age"]
    row = next(row for row in rows if row.startswith(judged["regression"].hash[:8]))
    assert f"rmse      {judged['regression'].summary['average']:.4f}" in row
    assert main(["ls", "binary", "--dir", directory]) == 0
    assert "metric" not in capsys.readouterr().out
    assert main(["ls", "regression", "--dir", directory, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["metric"] == "rmse"


def test_the_table_of_a_comparison_tells_small_errors_apart(judged, here):
    data = {"name": judged["regression"].settings["data.name"], "target": "target", "client": "site"}
    found = fairmean.compare(methods=["mean", "fedavg"], attacks=["none"], data=data, train={"rounds": 2, "lr": 0.1})
    row = next(line for line in str(found).splitlines() if line.startswith("fedavg"))
    average, variance, worst = (float(text.rstrip("*")) for text in row.split()[1:])
    metrics = found.cells["fedavg", "none"].metrics
    for value, metric in ((average, "average"), (variance, "variance"), (worst, "worst")):
        assert value == pytest.approx(metrics[metric][0], rel=0.005)


def shown(run, capsys, *words):
    assert main(["show", str(run.folder), *words]) == 0
    return capsys.readouterr().out


def test_show_names_clients_the_worst_first_with_intervals(judged, capsys):
    run = judged["regression"]
    page = shown(run, capsys)
    lines = page.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("client"))
    assert lines[start].split("  ")[-1].strip() == "r2"
    assert "95 % interval" in lines[start]
    assert "on its own targets" in lines[start]
    told = [next(name for name in SITES if line.startswith(name)) for line in lines[start + 1 : start + 6]]
    assert told == sorted(told, key=lambda name: -run.values[run.client_names.index(name)])
    row = next(line for line in lines if line.startswith(SITES[0]))
    low, high = (run.summary["clients"][key][run.client_names.index(SITES[0])] for key in ("low", "high"))
    assert f"{figure(low, share=False)} – {figure(high, share=False)}" in row
    assert "rmse is the root of the mean squared error; less is better" in page


def test_show_of_two_classes_has_their_figures(judged, capsys):
    header = next(line for line in shown(judged["binary"], capsys).splitlines() if line.startswith("client"))
    for name in ("accuracy in %", "balanced_accuracy in %", "sensitivity in %", "specificity in %", "auroc in %"):
        assert name in header
    assert "own labels" not in header  # nobody is poisoned


def test_show_has_the_test_figures_and_says_those_held_out(judged, capsys):
    run = judged["held out"]
    page = shown(run, capsys)
    held_out = run.summary["validation"]
    assert f"on the samples held out from training: average {held_out['average']:.4f}, worst" in page
    rows = {row["client"]: row for row in csv.DictReader(io.StringIO(shown(run, capsys, "--csv")))}
    assert set(rows) == set(SITES)
    for name, value in zip(run.client_names, run.values, strict=True):
        assert float(rows[name]["rmse"]) == pytest.approx(value)
        assert math.isfinite(float(rows[name]["mae"]))


def test_a_tracker_is_told_the_metric_and_the_names(judged, fake):
    run = judged["regression"]
    export([run.folder], "tensorboard")
    told = [one for one in Fake.told[run.hash] if one[0] == "clients"][-1]
    _, _, labels, values = told
    assert labels == [f"{i:02d} {name}" for i, name in enumerate(run.client_names)]
    assert set(values) == {"rmse", "loss", "weight"}
    final = [one for one in Fake.told[run.hash] if one[0] == "round"][-1][2]
    assert final["worst"] == pytest.approx(run.summary["worst"])


def test_mlflow_is_spared_the_letters_that_it_refuses():
    assert _allowed("client 02 <b>Graz</b>/rmse") == "client 02 _b_Graz__b_/rmse"
    assert _allowed("average") == "average"
