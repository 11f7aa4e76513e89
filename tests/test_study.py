"""Comparisons: every cell, paired by seed, with confidence intervals that are right."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from fairmean import compose, method
from fairmean.errors import UserError
from fairmean.experiments.comparison_table import comparison
from fairmean.experiments.config import parse
from fairmean.experiments.in_python import by_name
from fairmean.experiments.metrics import METRICS
from fairmean.experiments.statistics import t_quantile
from fairmean.experiments.study import Cell, Comparison, compare, plan, spec
from fairmean.terminal import starter
from fairmean.terminal.main import main

pytestmark = pytest.mark.usefixtures("here")

QUICK = ["train.rounds=3", "model.name=linear", "train.device=cpu"]


@pytest.fixture(scope="session")
def own(own):
    return f"data.name={own}"


def compared(capsys, *arguments, code=0):
    assert main(["compare", *QUICK, *arguments]) == code
    return capsys.readouterr().out


def test_estimate():
    cell = Cell({"average": np.array([80.0, 82.0, 84.0])})
    mean, half = cell.estimate("average")
    assert mean == 82
    assert half == pytest.approx(4.3027 * 2 / math.sqrt(3), rel=1e-3)
    baseline = Cell({"average": np.array([79.0, 81.0, 83.0])})
    assert cell.estimate("average", baseline) == (1.0, 0.0)  # paired: the draws cancel
    mean, half = Cell({"average": np.array([5.0])}).estimate("average")
    assert mean == 5
    assert math.isnan(half)
    assert Cell({"average": np.array([80.0, 82.0, math.nan])}).estimate("average")[0] == 81  # of those that finished


@pytest.mark.parametrize(
    ("text", "section", "tree"),
    [
        ("mean", "method", {"method": {"name": "mean"}}),
        ("qffl:q=2", "method", {"method": {"name": "qffl", "q": 2}}),
        ("fairmean:kappa=4:train.lr=0.05", "method", {"method": {"name": "fairmean", "kappa": 4}, "train.lr": 0.05}),
        (
            "fairmean+fedavg:kappa=4",
            "method",
            {"method": {"name": "fairmean+fedavg", "kappa": 4}},
        ),
        ("pairwise:rho=0.5", "attack", {"attack": {"name": "pairwise", "rho": 0.5}}),
        ("pairwise:clients=[8, 9]", "attack", {"attack": {"name": "pairwise", "clients": [8, 9]}}),
        ("pairwise:pick=random", "attack", {"attack": {"name": "pairwise", "pick": "random"}}),
    ],
)
def test_spec(text, section, tree):
    assert spec(text, section) == tree


@pytest.mark.parametrize("text", ["fairmean:kappa", "fairmean:", "fairmean::kappa=1"])
def test_spec_errors(text):
    with pytest.raises(UserError, match="key=value") as error:
        spec(text, "method")
    assert repr(text) in str(error.value)
    assert "\n" not in str(error.value)


def test_plan_has_every_method_attack_and_seed():
    runs = plan(None, {}, ["mean", "fairmean:kappa=2"], ["none", "pairwise:rho=0.5"], [1, 2, 3])
    assert len(runs) == 12
    assert len({config.hash() for _, _, config in runs}) == 12
    assert {(m, a, c.seed) for m, a, c in runs} == {
        (m, a, s) for m in ("mean", "fairmean κ=2") for a in ("none", "pairwise ρ=0.5") for s in (1, 2, 3)
    }
    for label, attack, config in runs:
        assert config.method.name == label.split()[0]
        assert config.attack.name == attack.split()[0]
        if config.method.name == "fairmean":
            assert config.method.hyper == {"kappa": 2.0, "tau": 1.0}
        assert config.attack.rho == (0.5 if attack.startswith("pairwise") else 1.0)


def test_plan_pairs_by_seed():
    """The same seed: everything but the method is the same, so clients, labels and model are."""
    runs = plan(None, {"train.rounds": 3}, ["mean", "qffl:q=1"], ["pairwise"], [1, 2])
    by_seed: dict[int, list[dict[str, object]]] = {}
    for _, _, config in runs:
        tree = config.to_dict()
        tree.pop("method")
        by_seed.setdefault(config.seed, []).append(tree)
    for same in by_seed.values():
        assert len(same) == 2
        assert same[0] == same[1]


def test_plan_defaults():
    runs = plan(None, {})
    assert {config.method.name for _, _, config in runs} == {
        "mean",
        "fedavg",
        "qffl",
        "fairmean",
        "fairmean-split",
        "fairmean-recess",
    }
    assert {config.attack.name for _, _, config in runs} == {"none", "random_class", "pairwise"}
    assert {config.seed for _, _, config in runs} == {1}
    assert {config.seed for _, _, config in plan(None, {"seed": 4})} == {4}


def usual(**tree):
    return list(dict.fromkeys(config.method.name for _, _, config in plan(None, by_name(tree))))


@pytest.mark.parametrize(
    ("more", "last"),
    [
        ({"partition": {"clients": 4}}, "fairmean-recess"),
        ({"partition": {"clients": 3}, "attack": {"clients": 1}}, "fairmean-split"),  # one in recess, and two are few
        ({"partition": {"clients": 20}, "train": {"participation": 0.1}}, "fairmean-split"),
        ({"partition": {"clients": 20}, "train": {"participation": 0.15}}, "fairmean-recess"),
    ],
)
def test_the_usual_methods_fit_the_number_of_clients(more, last):
    assert usual(**more)[-1] == last


def test_the_usual_methods_fit_the_data():
    random = np.random.default_rng(0)
    x, sites = random.normal(size=(60, 3)).astype(np.float32), np.arange(60) % 5
    for y, last, with_few in (
        (x[:, 0] > 0, "fairmean-recess", "fairmean-split"),
        (x[:, 0], "fairmean-normalised", "fairmean-normalised"),
    ):
        data = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
        for clients, expected in ((sites, last), (sites % 3, with_few)):
            assert usual(data=data | {"clients_train": clients, "clients_test": clients})[-1] == expected


def test_plan_with_a_grid():
    tree = {
        "grid": {
            "methods": ["mean"],
            "attacks": ["none"],
            "seeds": [1, 2],
            "train.lr": [0.1, 0.2],
            "partition.alpha": [0.5],
        }
    }
    runs = plan(tree, {})
    assert [(label, c.seed, c.train.lr) for label, _, c in runs] == [
        ("mean lr=0.1 alpha=0.5", 1, 0.1),
        ("mean lr=0.1 alpha=0.5", 2, 0.1),
        ("mean lr=0.2 alpha=0.5", 1, 0.2),
        ("mean lr=0.2 alpha=0.5", 2, 0.2),
    ]
    assert [c.seed for _, _, c in plan(tree, {}, seeds=[7])] == [7, 7]  # the command line wins


def test_table_has_every_method_and_attack(capsys, own, here):
    methods, attacks = ["mean", "fedavg", "qffl:q=1", "fairmean:kappa=2"], ["none", "pairwise", "random_class"]
    out = compared(capsys, own, "--methods", ",".join(methods), "--attacks", ",".join(attacks))
    lines = out.splitlines()
    assert own.partition("=")[2] in lines[0]
    assert all(attack in lines[1] for attack in attacks)
    assert lines[2].split() == ["method", *["avg", "var", "worst"] * 3]
    assert [line.split("  ")[0] for line in lines[3:7]] == ["mean", "fedavg", "qffl q=1", "fairmean κ=2"]
    assert "*" in "".join(lines[3:7])
    assert "runs/compare/table.csv" in out
    with open("runs/compare/table.csv", newline="") as file:
        records = list(csv.DictReader(file))
    assert len(records) == 12
    for record in records:
        with open(f"{record['folder']}/summary.json") as file:
            summary = json.load(file)
        assert {name: float(record[name]) for name in METRICS} == {name: summary[name] for name in METRICS}


def test_json(capsys, own):
    out = compared(capsys, own, "--methods", "mean,fairmean", "--attacks", "none,pairwise", "--seeds", "1-2", "--json")
    records = json.loads(out)
    assert [(r["method"], r["attack"], r["seed"]) for r in records] == [
        (m, a, s) for m in ("mean", "fairmean") for a in ("none", "pairwise") for s in (1, 2)
    ]
    assert all(r["status"] == "finished" for r in records)
    assert all(math.isfinite(r[name]) for r in records for name in METRICS)


def test_seeds_are_paired(capsys, own):
    names = "mean", "fairmean"
    tree = {"data": {"name": own.partition("=")[2]}, "train": {"rounds": 3}, "model": {"name": "linear"}}
    result = compare(tree, methods=names, attacks=["pairwise"], seeds=[1, 2, 3])
    difference = np.array([0.0, 0.0, 0.0])
    for record in result.records:
        difference[record["seed"] - 1] += record["average"] * (1 if record["method"] == "fairmean" else -1)
    mean, half = result.cells["fairmean", "pairwise"].estimate("average", result.cells["mean", "pairwise"])
    assert mean == pytest.approx(difference.mean())
    assert half == pytest.approx(t_quantile(0.95, 2) * difference.std(ddof=1) / math.sqrt(3))
    text = comparison(result, colour=False)
    assert "over 3 paired seeds" in text
    assert "difference to mean, paired by seed" in text
    assert f"{mean:+.2f}" in text
    for seed in (1, 2, 3):  # and the partitions were really the same
        folders = [r["folder"] for r in result.records if r["seed"] == seed]
        one, other = (np.load(f"{folder}/partition.npz") for folder in folders)
        with one, other:
            assert (one["rows"] == other["rows"]).all()
            assert (one["offsets"] == other["offsets"]).all()


def test_columns_stay_apart(capsys, own):
    out = compared(capsys, own, "--methods", "mean,fedavg", "--attacks", "none,pairwise", "--seeds", "1-2")
    rows = [line for line in out.splitlines() if line.startswith(("mean  ", "fedavg  "))]
    assert [len(row.split()) for row in rows] == [7, 7, 7], out


def comparison_of(values):
    """A comparison of methods whose every metric under one attack is given, by seed; NaN is a run that diverged."""
    cells = {
        (name, "none"): Cell(
            {metric: np.array(each) for metric in METRICS},
            ["diverged" if math.isnan(value) else "finished" for value in each],
        )
        for name, each in values.items()
    }
    seeds = list(range(1, 1 + len(next(iter(values.values())))))
    return Comparison(parse({}), list(values), ["none"], seeds, cells, Path("runs/x"))


def test_the_best_of_each_column_is_marked():
    lines = comparison(comparison_of({"a": [50.0], "b": [60.0]}), colour=False).splitlines()
    assert lines[2].split() == ["a", "50.00", "50.00*", "50.00"]  # the lowest variance
    assert lines[3].split() == ["b", "60.00*", "60.00", "60.00*"]
    assert "\033[1m" in comparison(comparison_of({"a": [50.0], "b": [60.0]}), colour=True)


def test_a_best_value_of_zero_is_marked():
    lines = comparison(comparison_of({"a": [0.0], "b": [60.0]}), colour=False).splitlines()
    assert lines[2].split() == ["a", "0.00", "0.00*", "0.00"]


def test_a_diverged_cell_says_so():
    text = comparison(comparison_of({"mean": [50.0, 60.0], "b": [math.nan, math.nan]}), colour=False)
    assert text.count("diverged") == 6  # three metrics, and three differences to mean
    assert "nan" not in text


def test_a_diverged_seed_is_told_apart_from_its_cell():
    """One seed of three diverged: the others are shown, with their interval and a mark, and never as the best."""
    values = {"mean": [50.0, 60.0, 70.0], "b": [80.0, math.nan, 90.0]}
    text = comparison(comparison_of(values), colour=False)
    lines = text.splitlines()
    half = f"±{t_quantile(0.95, 1) * np.std([80, 90], ddof=1) / math.sqrt(2):.2g}"
    assert lines[4].split() == ["b", *[f"85.00{half}†"] * 3]
    assert lines[3].split()[1].endswith("*")
    assert "† b · none: 1 of 3 seeds diverged; the others are shown" in text
    assert f"+25.00±{t_quantile(0.95, 1) * np.std([30, 20], ddof=1) / math.sqrt(2):.2g}†" in text  # paired: seeds 1, 3
    assert "nan" not in text


def test_a_diverged_run_does_not_stop_the_others(capsys, own, here):
    arguments = [own, "--methods", "mean:train.lr=3e38,mean", "--attacks", "none"]
    out = compared(capsys, *arguments)
    lines = [line.split() for line in out.splitlines() if line.startswith("mean")]
    assert [line.count("diverged") for line in lines] == [3, 0]
    records = json.loads(compared(capsys, *arguments, "--json"))
    assert [record["status"] for record in records] == ["diverged", "finished"]
    with open(here / "runs" / "compare" / "table.csv", newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["diverged", "finished"]


def test_json_of_a_diverged_run_is_json(capsys, own):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    out = compared(capsys, own, "--methods", "mean:train.lr=3e38", "--attacks", "none", "--json")
    json.loads(out, parse_constant=refuse)


def test_dry_run_writes_nothing(capsys, own, here):
    out = compared(capsys, own, "--methods", "mean,fairmean", "--seeds", "1,2", "--dry-run")
    assert len(out.splitlines()) == 2 * 3 * 2
    for word in ("mean · none · seed 1", "fairmean · pairwise · seed 2"):
        assert word in out
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", [[], ["run.name=mine"]], ids=["default", "named"])
def test_dry_run_names_the_folders_that_are_then_made(name, capsys, own, here):
    arguments = [own, "--methods", "mean,fairmean", "--attacks", "none", *name]
    foretold = [line.split()[0] for line in compared(capsys, *arguments, "--dry-run").splitlines()]
    records = json.loads(compared(capsys, *arguments, "--json"))
    assert foretold == [record["folder"] for record in records]


def test_the_name_in_the_config_is_used(capsys, own, here):
    (here / "my.toml").write_text("[run]\nname = 'mine'\n[grid]\nmethods = ['mean']\nattacks = ['none']\n")
    compared(capsys, "my.toml", own)
    assert (here / "runs" / "mine" / "table.csv").exists()


def test_grid_in_a_file(capsys, own, here):
    (here / "my.toml").write_text(
        "[grid]\nmethods = ['mean', 'fairmean:kappa=4']\nattacks = ['none']\nseeds = [1, 2]\n'train.lr' = [0.1, 0.2]\n"
    )
    records = json.loads(compared(capsys, "my.toml", own, "--json"))
    assert len(records) == 8
    assert [r["method"] for r in records[::2]] == [
        "mean lr=0.1",
        "mean lr=0.2",
        "fairmean κ=4 lr=0.1",
        "fairmean κ=4 lr=0.2",
    ]
    assert "fairmean κ=4 lr=0.2" in compared(capsys, "my.toml", own)


def test_a_comparison_is_not_computed_twice(capsys, own, monkeypatch):
    arguments = [own, "--methods", "mean,fairmean", "--attacks", "none,pairwise"]
    first = compared(capsys, *arguments)

    def build(*arguments):
        raise AssertionError("a run is computed again")

    monkeypatch.setattr("fairmean.experiments.run.build_simulator", build)
    assert compared(capsys, *arguments) == first


def test_the_same_comparison_elsewhere_is_the_same(capsys, here):
    """On the embedded data."""
    arguments = ["--methods", "mean,fairmean", "--attacks", "pairwise", "--json"]
    one, other = (json.loads(compared(capsys, *arguments, f"run.dir={place}")) for place in ("a", "b"))
    for record in one + other:
        record.pop("folder")
    assert one == other


def test_the_method_of_a_config_is_compared(here):
    """[method] of a file was left out without a word."""
    (here / "my.toml").write_text("[method]\nname = 'fairmean'\nkappa = 4.0\n")
    labels = list(dict.fromkeys(label for label, _, _ in plan("my.toml", {})))
    assert labels == ["mean", "fedavg", "qffl q=1", "fairmean κ=4", "fairmean-split", "fairmean-recess"]
    configs = {
        label: config for label, _, config in plan("my.toml", {}, methods=["mean", "fairmean", "fairmean:kappa=2"])
    }
    assert configs["fairmean κ=4"].method.hyper["kappa"] == 4.0
    assert configs["fairmean κ=2"].method.hyper["kappa"] == 2.0
    (here / "my.toml").write_text("[method]\nname = 'krum'\nf = 1\n")
    labels = list(dict.fromkeys(label for label, _, _ in plan("my.toml", {})))
    assert labels[-1] == "krum f=1"
    assert len(labels) == 7
    assert [m for m, _, _ in plan("my.toml", {}, ["mean"], ["none"])] == ["mean"]


def test_the_starter_is_compared_as_the_defaults_are(here):
    (here / "my.toml").write_text(starter.text())
    assert [(m, a) for m, a, _ in plan("my.toml", {})] == [(m, a) for m, a, _ in plan(None, {})]


def test_lists_may_be_single_and_methods_objects():
    assert [m for m, _, _ in plan(None, {}, "mean", "none")] == ["mean"]
    assert [m for m, _, _ in plan(None, {}, method("fairmean", kappa=4), "none", 3)] == ["fairmean κ=4 τ=1"]
    assert [m for m, _, _ in plan(None, {}, [compose("fairmean", "cwtm", "nnm", f=1)], "none")] == [
        "fairmean+nnm+cwtm κ=1 τ=1 f=1"
    ]
    for bad in ([3], [None], []):
        with pytest.raises(UserError, match="methods: "):
            plan(None, {}, bad)
    for bad in ("1-3", [1.5], []):
        with pytest.raises(UserError, match="seeds"):
            plan(None, {}, "mean", "none", bad)


def test_a_grid_may_have_sections():
    tree = {"grid": {"train": {"lr": [0.1, 0.2]}, "methods": ["mean"], "attacks": ["none"]}}
    assert [c.train.lr for _, _, c in plan(tree, {})] == [0.1, 0.2]
    assert [c.train.lr for _, _, c in plan(tree, {"grid.train.lr": [0.3]})] == [0.3]
    with pytest.raises(UserError, match=r"grid\.lr: there is no such key; did you mean grid\.train\.lr"):
        plan({"grid": {"lr": [0.1]}}, {})


def test_absurdly_many_runs_are_refused_before_they_are_listed():
    with pytest.raises(UserError, match="runs"):
        plan(None, {}, seeds=range(10**12))
    with pytest.raises(UserError, match="1,800,000 runs"):
        plan(None, {}, seeds=range(100_000))


def test_two_studies_of_one_name_keep_their_tables(capsys, own, here):
    compared(capsys, own, "--methods", "mean", "--attacks", "none")
    first = {file: file.read_text() for file in (here / "runs/compare").glob("table-*.csv")}
    compared(capsys, own, "--methods", "fedavg", "--attacks", "none")
    assert len(first) == 1
    assert all(file.read_text() == text for file, text in first.items())
    assert len(list((here / "runs/compare").glob("table-*.csv"))) == 2
    assert not list((here / "runs/compare").glob("*.tmp")) + list((here / "runs/compare").glob(".*.tmp"))


def test_a_metric_that_a_folder_does_not_hold_is_computed(capsys, own, here):
    """Folders of an earlier version lack metrics that are new."""
    before = compared(capsys, own, "--methods", "mean,fedavg", "--attacks", "none")
    for file in (here / "runs/compare").glob("*/summary.json"):
        kept = json.loads(file.read_text())
        file.write_text(json.dumps({key: value for key, value in kept.items() if key not in ("worst", "gini")}))
    assert compared(capsys, own, "--methods", "mean,fedavg", "--attacks", "none") == before
    assert compared(capsys, own, "--methods", "mean,fedavg", "--attacks", "none", "--together", "2") == before


BROKEN = """
from dataclasses import dataclass
import torch
import fairmean

@fairmean.register("broken", reference="a test")
@dataclass(frozen=True)
class Broken(fairmean.LossRule):
    at: int = 0

    def init(self, n):
        return {"round": torch.zeros(())}

    def __call__(self, round, state):
        if state["round"] >= self.at:
            raise RuntimeError("out of order")
        return round.losses / round.losses.sum(), {"round": state["round"] + 1}
"""


@pytest.mark.usefixtures("forget_modules", "registries")
@pytest.mark.parametrize("together", [[], ["--together", "4"]], ids=["alone", "together"])
@pytest.mark.parametrize("at", [0, 2])
def test_a_comparison_goes_on_without_a_rule_that_fails(together, at, capsys, own, here):
    (here / "broken_rule.py").write_text(BROKEN)
    arguments = [own, "--import", "broken_rule", "--attacks", "none,pairwise", *together]
    assert main(["compare", *QUICK, *arguments, "--methods", f"mean,broken:at={at},fairmean"]) == 1
    out, err = capsys.readouterr()
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["broken"].count("failed") == 6
    assert "failed" not in rows["mean"] + rows["fairmean"]
    assert err.count("\n") == 1
    assert "broken at=" in err
    assert "and 1 more: rule 'broken' (Broken) failed (RuntimeError: out of order, at " in err
    assert "broken_rule.py:" in err
    assert main(["compare", *QUICK, own, "--methods", "mean,fairmean", "--attacks", "none,pairwise"]) == 0
    good = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert [rows[name][1:] for name in ("mean", "fairmean")] == [
        [word.rstrip("*") if word not in rows[name] else word for word in good[name].split()[1:]]
        for name in ("mean", "fairmean")
    ]


@pytest.mark.usefixtures("forget_modules", "registries")
def test_a_comparison_of_which_every_run_fails(capsys, own, here):
    """What failed is said, and a folder that was there before is left."""
    (here / "broken_too.py").write_text(BROKEN)
    (here / "mine").mkdir()
    words = [own, "--import", "broken_too", "--attacks", "none", "--methods", "broken:at=0", "run.dir=mine"]
    assert main(["compare", *QUICK, *words]) == 1
    out, err = capsys.readouterr()
    assert "failed" in out
    assert err.count("\n") == 1
    assert "out of order" in err
    assert (here / "mine").is_dir()


LATE = """
from torch import nn


class Late(nn.Linear):
    passes = 0

    def forward(self, x):
        Late.passes += 1
        if Late.passes > 8:
            raise ValueError("tired")
        return super().forward(x)


def make(shape, classes): return Late(shape[0], classes)
"""


@pytest.mark.usefixtures("forget_modules")
def test_a_model_that_fails_late_beside_others(capsys, own, here):
    (here / "late_model.py").write_text(LATE)
    words = [
        own,
        "--attacks",
        "none",
        "--methods",
        "mean",
        "--together",
        "4",
        'grid.model.name=["linear","late_model:make"]',
    ]
    assert main(["compare", *QUICK[:1], *QUICK[2:], *words]) == 1
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines() if line.startswith("mean ")]
    assert [row.count("failed") for row in rows] == [0, 3]
    assert "model 'late_model:make' fail" in err
    assert "(ValueError: tired, at " in err
