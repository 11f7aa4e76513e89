"""Five real tables that nobody here made, from the packages that bring them, as CSV files with a client column."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest

import fairmean
from fairmean import data
from fairmean.data import Columns
from fairmean.terminal.main import main


@dataclass(frozen=True)
class Real:
    """A table, and what must be found in it."""

    target: str
    client: str
    task: str
    rows: int
    inputs: int
    classes: tuple[str, ...] | None
    clients: tuple[str, ...]


TABLES = {
    "digits": Real(
        "target", "site", "classification", 1797, 61, tuple("0123456789"), ("east", "north", "south", "west")
    ),
    "breast_cancer": Real(
        "diagnosis", "site", "binary", 569, 30, ("benign", "malignant"), ("east", "north", "south", "west")
    ),
    "wine": Real(
        "target", "site", "classification", 178, 13, ("class_0", "class_1", "class_2"),
        ("east", "north", "south", "west"),
    ),
    "diabetes": Real("target", "sex", "regression", 442, 9, None, ("-0.044641636506989144", "0.05068011873981862")),
    "fair": Real("affairs", "occupation", "regression", 6366, 7, None, tuple("123456")),
}  # fmt: skip


def written(name, folder):
    """Write the table as a CSV file into a folder; returns the file and the settings with which it is read."""
    if name == "fair":
        frame = pytest.importorskip("statsmodels.api").datasets.fair.load_pandas().data
    else:
        bunch = getattr(pytest.importorskip("sklearn.datasets"), f"load_{name}")(as_frame=True)
        frame = bunch.frame
        if name in ("breast_cancer", "wine"):
            frame["target"] = bunch.target_names[frame["target"]]
        if name == "breast_cancer":
            frame = frame.rename(columns={"target": "diagnosis"})
        if name != "diabetes":  # a site has more of some rows than of others
            draw = np.random.default_rng(1).choice(4, len(frame), p=[0.4, 0.3, 0.2, 0.1])
            frame["site"] = np.array(["north", "south", "east", "west"])[draw]
    file = folder / f"{name}.csv"
    frame.to_csv(file, index=False)
    real = TABLES[name]
    return str(file), [f"data.target={real.target}", f"data.client={real.client}"]


@pytest.mark.parametrize("name", TABLES)
def test_a_real_table_is_read(name, tmp_path, capsys):
    file, settings = written(name, tmp_path)
    real = TABLES[name]
    dataset = data.load(file, columns=Columns(real.target, real.client))
    assert (dataset.task, dataset.class_names, dataset.client_names) == (real.task, real.classes, real.clients)
    assert len(dataset.train_y) + len(dataset.test_y) == real.rows
    assert dataset.train_x.shape[1] == dataset.test_x.shape[1] == real.inputs
    assert abs(len(dataset.test_y) / real.rows - 0.2) < 0.01
    assert dataset.table
    assert set(dataset.test_clients.tolist()) == set(range(len(real.clients)))

    assert main(["data", "show", file, *settings]) == 0
    page = capsys.readouterr().out
    assert f"data.task={real.task}" in page
    for called in (*real.clients, *(real.classes or ()), real.target):
        assert called[:20] in page
    assert main(["data", "show", file, *settings, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["train"] + facts["test"] == real.rows
    assert [client["name"] for client in facts["clients"]] == list(real.clients)
    assert sum(client["train"] for client in facts["clients"]) == facts["train"]
    assert sum(column.get("inputs", 0) for column in facts["columns"]) == real.inputs


USEFUL = {"digits": 80, "breast_cancer": 85, "wine": 80}  # accuracies in % that a constant prediction does not reach


@pytest.mark.parametrize("name", TABLES)
def test_a_real_table_is_compared_under_attack_by_one_command(name, here, capsys):
    file, settings = written(name, here)
    real = TABLES[name]
    words = [f"data.name={file}", *settings, "attack.clients=1", "train.rounds=25", "train.lr=0.2", "train.device=cpu"]
    assert main(["compare", *words, "--methods", "mean,fairmean", "--seeds", "1,2", "--report", "report.html"]) == 0
    page = capsys.readouterr().out
    metric = "rmse" if real.task == "regression" else "accuracy in %"
    assert metric in page
    assert "labels as given" in page
    assert "diverged" not in page
    assert (here / "report.html").stat().st_size > 10_000
    attacks = {"regression": ("sign", "permutation"), "binary": ("pairwise", "pairwise ρ=0.5")}
    assert all(attack in page for attack in ("none", *attacks.get(real.task, ("random_class", "pairwise"))))
    assert f"clients {real.clients[-1]} poisoned" in page

    clean = [run for run in fairmean.runs() if run.config.attack.name == "none" and run.config.seed == 1]
    assert len(clean) == 2
    for run in clean:
        assert run.client_names == list(real.clients)
        assert run.table.read_text().splitlines()[1].split(",")[1] == real.clients[0]
        assert run.metric.name in run.table.read_text().splitlines()[0]
        if real.task == "regression":
            targets = data.load(file, columns=Columns(real.target, real.client)).test_y
            assert run.summary["average"] < 1.1 * targets.std()
            assert set(run.summary["clients"]) >= {"mae", "r2", "low", "high"}
            assert run.summary["worst"] == max(run.values)
        else:
            assert run.summary["average"] > USEFUL[name]
            low, high = (np.array(run.summary["clients"][key]) for key in ("low", "high"))
            assert ((low <= run.values) & (run.values <= high)).all()
        if real.task == "binary":
            assert min(run.summary["clients"]["auroc"]) > 80


def test_poisoned_clients_can_be_named(here, capsys):
    file, settings = written("wine", here)
    words = ["run", f"data.name={file}", *settings, "attack.name=pairwise", "train.rounds=2", "train.device=cpu"]
    assert main([*words, "attack.clients=south"]) == 0
    assert "clients south poisoned" in capsys.readouterr().out
    (run,) = fairmean.runs()
    assert [name for name, regular in zip(run.client_names, run.regular, strict=True) if not regular] == ["south"]
    assert main([*words, "attack.clients=[south,nowhere]"]) == 2
    assert "unknown client in attack.clients 'nowhere'" in capsys.readouterr().err


def test_a_table_is_not_poisoned_unasked(here, capsys):
    file, settings = written("wine", here)
    assert main(["run", f"data.name={file}", *settings, "train.rounds=2", "train.device=cpu"]) == 0
    page = capsys.readouterr().out
    assert "labels as given, none poisoned on purpose" in page
    assert "north " in page
