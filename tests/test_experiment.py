"""One run, one folder: its files, its numbers, divergence, no side effects."""

from __future__ import annotations

import csv
import json
import math
import random
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fairmean
from fairmean.errors import Diverged, UserError
from fairmean.experiments import recorder, session
from fairmean.experiments import run as experiment
from fairmean.experiments.config import parse
from fairmean.experiments.events import Progress
from fairmean.experiments.metrics import METRICS, summarise
from fairmean.terminal.main import main

pytestmark = pytest.mark.usefixtures("here")

QUICK = {"train": {"rounds": 5, "device": "cpu"}, "model": {"name": "linear"}}
FILES = {"run.json", "config.toml", "environment.json", "partition.npz", "clients.csv", "summary.json", "checkpoint.pt"}
COLUMNS = ["round", "client", "regular", "loss", "weight", "accuracy", "own_accuracy"]


def run(*arguments, **settings):
    return experiment.run(*arguments, **settings)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A run that the tests below only look at."""
    return run(QUICK, **{"run.dir": str(tmp_path_factory.mktemp("runs"))})


def rows(result):
    with open(result.table, newline="") as file:
        return list(csv.DictReader(file))


def own_data(path, test_classes=4):
    """A tiny data set; classes that only the training data has leave clients without test data."""
    draw = np.random.default_rng(0)
    np.savez(
        path,
        x_train=draw.normal(size=(240, 6)).astype(np.float32),
        y_train=np.arange(240) % 4,
        x_test=draw.normal(size=(80, 6)).astype(np.float32),
        y_test=np.arange(80) % test_classes,
    )
    return str(path)


def test_the_public_run_is_this_one(here):
    public: Any = fairmean
    done = public.run(QUICK, seed=3, train={"rounds": 2}, **{"method.kappa": 2.0})
    assert done.config.seed == 3
    assert done.config.train.rounds == 2
    assert done.config.model.name == "linear"
    assert done.config.method.hyper["kappa"] == 2.0


def test_run_takes_a_file(here):
    (here / "my.toml").write_text("[model]\nname = 'linear'\n[train]\nrounds = 2\n")
    assert run("my.toml").config == run(here / "my.toml").config


def test_folder(result):
    assert {path.name for path in result.folder.iterdir()} - {"lock"} == FILES
    assert result.folder.name == result.config.hash()
    assert result.folder.parent.name == "run"


def test_result(result):
    assert result.summary["status"] == "finished"
    assert result.summary == json.loads((result.folder / "summary.json").read_text())
    assert result.accuracy.shape == result.regular.shape == (10,)
    assert ((result.accuracy >= 0) & (result.accuracy <= 100)).all()
    assert result.regular.tolist() == [True] * 8 + [False] * 2
    assert result.table == result.folder / "clients.csv"
    assert result.summary["without_test_data"] == 0


def test_metrics_are_those_of_the_accuracies(result):
    recomputed = summarise(result.accuracy, result.regular)
    assert set(recomputed) == set(METRICS) == {"average", "variance", "worst", "worst_tenth", "jain", "gini"}
    assert {name: result.summary[name] for name in METRICS} == recomputed
    regular = result.accuracy[:8]
    assert result.summary["average"] == pytest.approx(sum(regular) / 8)
    assert result.summary["variance"] == pytest.approx(sum((a - sum(regular) / 8) ** 2 for a in regular) / 8)
    assert result.summary["worst"] == result.summary["worst_tenth"] == min(regular)
    poisoned = result.summary["poisoned"]
    assert poisoned["clean_average"] == pytest.approx(result.accuracy[8:].mean())
    assert poisoned["own_average"] == pytest.approx(np.mean(result.summary["own_accuracy"][8:]))
    assert result.summary["own_accuracy"][:8] == result.summary["accuracy"][:8]


def test_dispersion_is_that_of_the_regular_training_losses(result):
    final = [row for row in rows(result) if row["round"] == "5" and row["regular"] == "1"]
    losses = torch.tensor([float(row["loss"]) for row in final], dtype=torch.float64)
    assert result.summary["loss_dispersion"] == pytest.approx(fairmean.dispersion(losses, 1.0).item(), rel=1e-12)


def test_table(result):
    table = rows(result)
    assert list(table[0]) == COLUMNS
    assert [(int(row["round"]), int(row["client"])) for row in table] == [(t, i) for t in range(6) for i in range(10)]
    for row in table:
        assert row["regular"] == str(int(int(row["client"]) < 8))
        assert math.isfinite(float(row["loss"]))
        assert (row["weight"] == "") == (row["round"] == "5")  # no step is taken from the last model
        assert 0 <= float(row["accuracy"]) <= 100  # five rounds: every one is evaluated
        if row["weight"]:
            assert 1 / 10 <= float(row["weight"]) <= 2 / 10  # a/n with 1 ≤ a ≤ 1 + κ
    assert [float(row["accuracy"]) for row in table[-10:]] == result.summary["accuracy"]
    assert [float(row["own_accuracy"]) for row in table[-10:]] == result.summary["own_accuracy"]
    assert {row["client"] for row in table if row["accuracy"] != row["own_accuracy"]} == {"8", "9"}


def test_the_table_loads_in_one_line(result):
    table = np.genfromtxt(result.table, delimiter=",", names=True)
    assert table.dtype.names == tuple(COLUMNS)
    assert len(table) == 60
    assert np.isnan(table["weight"]).sum() == 10
    first, last = (table["loss"][(table["round"] == t) & (table["regular"] == 1)].mean() for t in (0, 5))
    assert last < first


def test_evaluation_every_so_often(here):
    table = rows(run(QUICK, **{"run.eval_every": 2}))
    evaluated = {int(row["round"]) for row in table if row["accuracy"]}
    assert evaluated == {0, 2, 4, 5}
    assert {int(row["round"]) for row in table} == set(range(6))


def test_partial_participation_in_the_table(here):
    table = rows(run(QUICK, **{"train.participation": 0.3}))
    for t in range(6):
        evaluated = [int(row["client"]) for row in table if row["round"] == str(t) and row["accuracy"]]
        assert evaluated == list(range(10))  # an evaluation covers everyone
        assert sum(1 for row in table if row["round"] == str(t) and row["loss"]) == 3


def test_partition_has_every_training_sample_once(result):
    with np.load(result.folder / "partition.npz") as partition:
        assert sorted(partition["rows"]) == list(range(6000))
        assert sorted(partition["test_rows"]) == list(range(1000))
        for offsets, total in (("offsets", 6000), ("test_offsets", 1000)):
            assert partition[offsets][0] == 0
            assert partition[offsets][-1] == total
            assert (np.diff(partition[offsets]) > 0).all()
        assert partition["regular"].tolist() == result.regular.tolist()


def test_config_parses_back(result):
    config = parse(tomllib.loads((result.folder / "config.toml").read_text()))
    assert config == result.config
    assert config.hash() == result.config.hash() == result.folder.name
    assert config.train.device == "cpu"
    assert config.partition.seed == config.seed  # what was left open is filled in


def test_environment(result):
    environment = json.loads((result.folder / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["numpy"] == np.__version__
    assert environment["fairmean"] == fairmean.__version__
    assert environment["threads"] >= 1
    assert environment["rounds_timed"] == 5
    assert environment["seconds"] >= 0


def test_checkpoint(result):
    checkpoint = torch.load(result.folder / "checkpoint.pt", weights_only=True)
    assert checkpoint["round"] == 5
    assert checkpoint["w"].shape == (7850,)
    assert checkpoint["w"].isfinite().all()


def test_a_finished_run_is_not_computed_twice(result, monkeypatch):
    def build(*arguments):
        raise AssertionError("the run is computed again")

    monkeypatch.setattr(experiment, "build_simulator", build)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in result.folder.iterdir()}
    again = run(QUICK, **{"run.dir": result.config.run.dir})
    assert again.summary == result.summary
    assert again.folder == result.folder
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in result.folder.iterdir()} == before
    with pytest.raises(AssertionError, match="computed again"):
        run(QUICK, seed=2, **{"run.dir": result.config.run.dir})


def test_the_same_config_twice_is_bitwise_the_same(result, here):
    again = run(QUICK, **{"run.dir": "elsewhere", "run.name": "again"})
    assert again.folder != result.folder
    assert again.folder.name == result.folder.name
    for name in ("clients.csv", "summary.json"):
        assert (again.folder / name).read_bytes() == (result.folder / name).read_bytes(), name
    one, other = (torch.load(r.folder / "checkpoint.pt", weights_only=True)["w"] for r in (again, result))
    assert one.equal(other)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attack.name": "random", "attack.pick": "random", "partition.name": "iid"},
        {"train.batch": 8, "train.local_steps": 2, "train.participation": 0.5, "attack.name": "furthest"},
        {"partition.name": "shards", "attack.name": "random_class", "train.batch": 16},
    ],
    ids=["default", "random", "local", "shards"],
)
def test_global_generators_are_untouched(settings, here):
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    states = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()
    run(QUICK, **settings)
    assert torch.get_rng_state().equal(states[0])
    np.testing.assert_equal(np.random.get_state(legacy=False), states[1])
    assert random.getstate() == states[2]


def test_global_generators_do_not_matter(result, here):
    torch.manual_seed(123)
    np.random.seed(123)
    again = run(QUICK, **{"run.dir": "elsewhere"})
    assert again.table.read_bytes() == result.table.read_bytes()


def test_another_seed_is_another_run(result, here):
    other = run(QUICK, seed=2)
    assert other.accuracy.tolist() != result.accuracy.tolist()


def test_report_is_told_every_round(here):
    told: list[Progress] = []
    run(QUICK, report=told.append)
    assert [p.round for p in told] == [1, 2, 3, 4, 5]
    assert {p.rounds for p in told} == {5}
    assert all(p.rounds_per_second > 0 for p in told)
    assert set(told[-1].metrics) == set(METRICS)


def test_no_attack(here):
    done = run(QUICK, **{"attack.name": "none"})
    assert done.regular.all()
    assert done.summary["poisoned"] is None
    assert done.summary["accuracy"] == done.summary["own_accuracy"]


def test_own_data_is_part_of_the_identity(here):
    name = own_data(here / "own.npz")
    first = run(QUICK, **{"data.name": name})
    assert first.config.data.sha256
    own_data(here / "own.npz", test_classes=3)
    second = run(QUICK, **{"data.name": name})
    assert second.folder != first.folder
    with pytest.raises(UserError, match=r"data\.sha256"):
        run(QUICK, **{"data.name": name, "data.sha256": first.config.data.sha256})


def strict_json(text):
    """JSON as everybody reads it: NaN and Infinity are Python's own."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_client_without_test_data(here):
    name = own_data(here / "own.npz", test_classes=1)
    done = run(QUICK, **{"data.name": name, "partition.name": "shards", "partition.shards_per_client": 1})
    assert 0 < done.summary["without_test_data"] == np.isnan(done.accuracy).sum() < 10
    assert main(["run", str(done.folder / "config.toml")]) == 0


def test_a_summary_is_json_also_without_test_data(here):
    name = own_data(here / "own.npz", test_classes=1)
    done = run(QUICK, **{"data.name": name, "partition.name": "shards", "partition.shards_per_client": 1})
    strict_json((done.folder / "summary.json").read_text())


# Divergence

DIVERGING = ["run", "train.rounds=20", "model.name=linear", "train.lr=1e37", "train.device=cpu"]
"""Finite at first, then the logits overflow."""


def diverge(capsys, *settings):
    code = main([*DIVERGING, *settings])
    out, err = capsys.readouterr()
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.fixture(params=[False, True], ids=["no checkpoint", "checkpoints"])
def checkpoints(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(session, "CHECKPOINT_SECONDS", -1.0)
    return request.param


def test_divergence(checkpoints, capsys, here, monkeypatch):
    err = diverge(capsys)
    assert "step-size bound" in err or "step size" in err
    assert "1/L_Φ" in err
    assert "train.lr = 1e+37" in err
    (folder,) = (here / "runs" / "run").iterdir()
    summary = strict_json((folder / "summary.json").read_text())
    assert summary["status"] == "diverged"
    assert f"round {summary['round']}" in err
    checkpoint = folder / "checkpoint.pt"
    if checkpoints:
        assert checkpoint.exists()
    if checkpoint.exists():
        kept = torch.load(checkpoint, weights_only=True)
        assert kept["w"].isfinite().all()
        assert kept["round"] <= summary["round"]
    with open(folder / "clients.csv", newline="") as file:
        table = list(csv.DictReader(file))
    finite = {int(row["round"]) for row in table if math.isfinite(float(row["loss"]))}
    assert finite >= set(range(summary["round"]))
    assert not (folder / "clients.csv.part").exists()

    def build(*arguments):
        raise AssertionError("the run is computed again")

    monkeypatch.setattr(experiment, "build_simulator", build)
    assert diverge(capsys) == err


def test_divergence_does_not_depend_on_when_checkpoints_are_written(capsys, here, monkeypatch):
    summaries = []
    for seconds in (-1.0, 1e9):
        monkeypatch.setattr(session, "CHECKPOINT_SECONDS", seconds)
        diverge(capsys, f"run.name=s{seconds:g}")
        (file,) = (here / "runs" / f"s{seconds:g}").glob("*/summary.json")
        summaries.append(file.read_text())
    assert summaries[0] == summaries[1]


def test_a_promised_checkpoint_is_there(checkpoints, capsys, here):
    err = diverge(capsys)
    (folder,) = (here / "runs" / "run").iterdir()
    if "checkpoint is kept" in err:
        assert (folder / "checkpoint.pt").exists()


def test_divergence_in_the_last_round(capsys, here):
    err = diverge(capsys, "train.rounds=1", "train.lr=3e38")
    assert "round 1:" in err


def test_divergence_in_the_library(here):
    with pytest.raises(Diverged, match="1/L_Φ"):
        run({"train": {"rounds": 30, "lr": 1e37}, "model": {"name": "linear"}})


@pytest.mark.parametrize("name", ["fedmgda+", "fairmoo", "fedmdfg", "fedlf", "adafed", "krum", "lfighter", "bant"])
def test_every_kind_of_rule_diverges_politely(name, own, tmp_path):
    """A hopeless step size ends in Diverged, whatever a rule does with numbers that are not finite."""
    with pytest.raises(Diverged, match="step-size bound"):
        fairmean.run(
            data={"name": own},
            model={"name": "mlp"},
            method={"name": name},
            train={"rounds": 30, "lr": 1e30},
            run={"dir": str(tmp_path)},
        )


def test_a_finished_run_without_a_regular_participant_can_be_shown_again(tmp_path, capsys):
    """Few participants: the last round may have had poisoned ones alone; the dispersion is over all regular clients."""
    words = ["run", "model.name=linear", "train.rounds=2", "train.participation=0.1", f"run.dir={tmp_path}"]
    for seed in range(12):
        for _ in range(2):
            assert main([*words, f"seed={seed}"]) == 0
    assert "nan" not in capsys.readouterr().out


def test_an_edited_model_is_another_run(tmp_path, forget_modules):
    source = "from torch import nn\ndef make(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(784, {}))\n"
    folders = set()
    for width in ("classes", "classes + 0"):
        (tmp_path / "edited_model.py").write_text(source.format(width))
        result = fairmean.run(model={"name": "edited_model:make"}, train={"rounds": 1})
        folders.add(result.folder)
    assert len(folders) == 2


@pytest.mark.parametrize("name", ["bant", "fedmdfg", "centered-clipping"])
def test_states_are_kept_in_checkpoints(name, tmp_path, monkeypatch):
    """Stopped after three rounds and run again, a rule with memory ends as if never stopped."""
    config = {"model": {"name": "linear"}, "method": {"name": name}, "train": {"rounds": 7, "participation": 0.6}}
    whole = fairmean.run(config, run={"dir": str(tmp_path / "whole")})

    def stop(progress):
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fairmean.run(config, report=stop, run={"dir": str(tmp_path / "parts")})
    parts = fairmean.run(config, run={"dir": str(tmp_path / "parts")})
    one, other = (torch.load(result.folder / "checkpoint.pt", weights_only=True) for result in (whole, parts))
    assert torch.equal(one["w"], other["w"])
    assert all(torch.equal(one["state"][key], other["state"][key]) for key in one["state"])
    assert whole.table.read_bytes() == parts.table.read_bytes()


def test_a_trust_set_is_held_out_for_everyone_in_a_comparison(tmp_path):
    result = fairmean.compare(
        methods=["mean", "bant"],
        attacks=["none"],
        model={"name": "linear"},
        train={"rounds": 1},
        run={"dir": str(tmp_path)},
    )
    tests = [np.load(Path(record["folder"]) / "partition.npz")["test_rows"] for record in result.records]
    assert len(tests[0]) == 900
    assert (tests[0] == tests[1]).all()


# Small federations, odd models, odd data


@pytest.mark.parametrize("clients", [1, 2])
def test_a_small_federation_without_an_attack(clients, own, capsys):
    """Who is poisoned was asked although nobody is."""
    settings = [f"data.name={own}", f"partition.clients={clients}", "attack.name=none", "train.rounds=1"]
    assert main(["run", "model.name=linear", *settings]) == 0
    assert "none poisoned" in capsys.readouterr().out


def test_none_stands_for_an_optional_setting():
    config = parse({"train": {"local_lr": None}, "partition": {"seed": None}, "attack": {"fraction": None}})
    assert config == parse({})
    with pytest.raises(UserError, match=r"train\.lr = None"):
        parse({"train": {"lr": None}})


def test_no_client_has_test_data(here):
    """Test classes that nobody trains on."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 4)).astype(np.float32)
    np.savez("own.npz", x_train=x, y_train=np.arange(60) % 2, x_test=x[:9], y_test=np.full(9, 2))
    done = run(QUICK, data={"name": "own.npz"}, partition={"clients": 3, "name": "iid"}, attack={"name": "none"})
    assert np.isnan(done.accuracy).all()
    assert done.summary["without_test_data"] == 3
    assert main(["compare", "data.name=own.npz", "partition.clients=3", "partition.name=iid", "model.name=linear",
                 "train.rounds=1", "--methods", "mean", "--attacks", "none"]) == 0  # fmt: skip


@pytest.mark.parametrize("train", [{"batch": 8}, {"participation": 0.3}, {"batch": 8, "participation": 0.3}], ids=str)
def test_dispersion_is_over_all_regular_clients_and_samples(train, own):
    """It was of the last round's participants, on their batch: 0 where one took part."""
    done = run(QUICK, data={"name": own}, train={"rounds": 3, "device": "cpu"} | train)
    simulator = experiment.build_simulator(done.config)
    simulator.w.copy_(torch.load(done.folder / "checkpoint.pt", weights_only=True)["w"])
    fed = simulator.federation
    with torch.no_grad():
        each = torch.nn.functional.cross_entropy(simulator.net.model(fed.x), fed.y, reduction="none").double()
    losses = torch.stack([each[a:b].mean() for a, b in pairwise(fed.offsets.tolist())])[torch.from_numpy(fed.regular)]
    assert done.summary["loss_dispersion"] == pytest.approx(fairmean.dispersion(losses).item(), rel=1e-5)


DROPPING = """
import torch
from torch import nn
from torch.nn import functional as F


class Attending(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.attention = nn.MultiheadAttention(inputs, 1, dropout={p}, batch_first=True)
        self.out = nn.Linear(inputs, classes)

    def forward(self, x):
        return self.out(self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0])


class Functional(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.out = nn.Linear(inputs, classes)

    def forward(self, x):
        return self.out(F.dropout(x, {p}, self.training))


def attending(shape, classes): return Attending(shape[0], classes)
def functional(shape, classes): return Functional(shape[0], classes)
"""


@pytest.mark.usefixtures("forget_modules")
@pytest.mark.parametrize(("name", "who"), [("attending", "MultiheadAttention"), ("functional", "in a forward")])
def test_a_model_that_draws_from_the_global_generator_is_refused(name, who, own, here):
    for p in (0.5, 0.0):
        (here / "dropping.py").write_text(DROPPING.replace("{p}", str(p)))
        settings = {"data": {"name": own}, "model": {"name": f"dropping:{name}"}, "train": {"rounds": 1}}
        if p:
            with pytest.raises(UserError, match=rf"dropping:{name}.*global generator.*{who}"):
                run(settings)
            assert not (here / "runs").exists()
        else:
            run(settings)


@pytest.mark.usefixtures("forget_modules")
def test_a_part_of_a_model_that_is_kept_in_eval_stays_so(own, here):
    """Evaluation used to switch it on."""
    (here / "half_frozen.py").write_text(
        "from torch import nn\n\n\ndef make(shape, classes):\n"
        "    model = nn.Sequential(nn.Linear(shape[0], 8), nn.Sequential(nn.Dropout(0.5)), nn.Linear(8, classes))\n"
        "    model[1].eval()\n    return model\n"
    )
    config = parse(QUICK | {"data": {"name": own}, "model": {"name": "half_frozen:make"}})
    simulator = experiment.build_simulator(config)
    assert not simulator.net.model[1].training
    simulator.evaluate()
    assert [module.training for module in simulator.net.model] == [True, False, True]
    assert not simulator.net.model[1][0].training


def test_what_theory_does_not_cover_is_refused_before_anything_is_written(capsys, here):
    assert main(["run", "theory=true", "train.local_steps=2", "model.name=linear"]) == 2
    assert "train.local_steps = 2" in capsys.readouterr().err
    assert not (here / "runs").exists()


def test_divergence_is_noticed_in_its_round_also_where_rows_are_left_out(own, monkeypatch):
    """With very many rows, only evaluated rounds are written; the others are looked at all the same."""
    settings = {
        "data": {"name": own},
        "model": {"name": "mlp"},
        "train": {"rounds": 60, "lr": 1e8},
        "run": {"eval_every": 50},
    }
    rounds = []
    for most in (2_000_000, 1):
        monkeypatch.setattr(recorder, "_TABLE_ROWS", most)
        with pytest.raises(Diverged) as error:
            run(settings, **{"run.name": f"most{most}"})
        rounds.append(re.search(r"round (\d+)", str(error.value)).group(1))
    assert rounds[0] == rounds[1]
    assert 0 < int(rounds[0]) < 49


NOT_FINITE = """
from torch import nn
import torch


class Bad(nn.Linear):
    def forward(self, x):
        return super().forward(x) * float("nan")


def make(shape, classes): return Bad(shape[0], classes)
"""


@pytest.mark.usefixtures("forget_modules")
def test_a_model_that_gives_nan_is_told_apart_from_a_long_step(own, here):
    (here / "nan_model.py").write_text(NOT_FINITE)
    with pytest.raises(Diverged, match="before any step was taken: the model 'nan_model:make' gives NaN") as error:
        run(QUICK, data={"name": own}, model={"name": "nan_model:make"})
    assert "too large" not in str(error.value)
    assert "checkpoint" not in str(error.value)


def test_an_edited_config_is_put_back(own, here):
    done = run(QUICK, data={"name": own})
    file = done.folder / "config.toml"
    text = file.read_text()
    for changed in (text.replace("lr = 0.1", "lr = 0.7"), "garbage", ""):
        file.write_text(changed)
        with pytest.warns(UserWarning, match="written anew"):
            run(QUICK, data={"name": own})
        assert file.read_text() == text


TOKENS = """
import torch
from torch import nn


class Bag(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.table, self.out = nn.Embedding(10, 4), nn.Linear(4, classes)

    def forward(self, x):
        return self.out(self.table(x.long()).mean(1))


def make(shape, classes): return Bag(classes)
"""


@pytest.mark.usefixtures("forget_modules")
def test_a_model_is_tried_on_the_data_it_is_for(here):
    """Token ids in floats: made-up numbers would be no ids."""
    (here / "tokens.py").write_text(TOKENS)
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 10, size=(60, 5)).astype(np.float32), np.arange(60) % 2
    np.savez("tokens.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    run(
        QUICK,
        data={"name": "tokens.npz"},
        model={"name": "tokens:make"},
        partition={"clients": 3, "name": "iid"},
        attack={"name": "none"},
    )


def test_a_place_where_no_folder_can_be_made(own, capsys):
    """It was tried for ever."""
    assert main(["run", f"data.name={own}", "model.name=linear", "train.rounds=1", "run.dir=/proc/none"]) == 2
    assert "/proc/none" in capsys.readouterr().err


GREEDY = """
from dataclasses import dataclass
import fairmean


@fairmean.register("greedy", reference="a test")
@dataclass(frozen=True)
class Greedy(fairmean.LossRule):
    def weights(self, round):
        int(round.losses.sum())
        return round.losses * 1e300
"""


@pytest.mark.usefixtures("forget_modules", "registries")
@pytest.mark.parametrize("together", [[], ["--together", "3"]], ids=["alone", "together"])
def test_a_rule_is_not_blamed_for_losses_that_are_not_finite(together, own, here, capsys):
    """It made the model diverge, and then could not take NaN: the run diverged."""
    (here / "greedy_rule.py").write_text(GREEDY)
    words = ["compare", "--import", "greedy_rule", "--methods", "greedy,mean", "--attacks", "none", "--json", *together]
    assert main([*words, f"data.name={own}", "model.name=linear", "train.rounds=4"]) == 0
    assert [record["status"] for record in json.loads(capsys.readouterr().out)] == ["diverged", "finished"]
    assert (
        main([word for word in words if word != "--json"] + [f"data.name={own}", "model.name=linear", "train.rounds=4"])
        == 0
    )
    assert "1 of 2 runs diverged: use a smaller train.lr" in capsys.readouterr().out
