"""Mistakes that a review found, each of which gave a wrong result or a traceback."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import fairmean
from fairmean import UserError
from fairmean.data.dataset import Dataset
from fairmean.data.tasks import TASKS
from fairmean.engine.scoring import details, figures
from fairmean.terminal.main import main
from fairmean.torch.groups import _chance

pytestmark = pytest.mark.usefixtures("here")

TRAIN = {"rounds": 2, "device": "cpu"}


def frame(names, rows=120):
    pandas = pytest.importorskip("pandas")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 2))
    site = np.array(names, dtype=object)[np.arange(rows) % len(names)]
    return pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "site": site, "y": np.where(x[:, 0] > 0, "yes", "no")})


def table(names, **more):
    return {"frame": frame(names), "target": "y", "client": "site"} | more


def test_a_number_in_attack_clients_is_what_the_client_is_called(here, capsys):
    frame(["1", "2", "3", "4"]).to_csv("t.csv", index=False)
    words = ["data.name=t.csv", "data.target=y", "data.client=site", "train.rounds=2", "train.device=cpu"]
    assert main(["run", *words, "attack.name=pairwise", "attack.clients=[3]"]) == 0
    assert "clients 3 poisoned" in capsys.readouterr().out
    (run,) = fairmean.runs()
    assert [name for name, regular in zip(run.client_names, run.regular, strict=True) if not regular] == ["3"]


def test_settings_of_an_attack_want_its_name():
    with pytest.raises(UserError, match=r"attack\.clients: no attack is named"):
        fairmean.run(data=table(["a", "b", "c"]), attack={"clients": ["a"]}, train=TRAIN)


def test_data_that_has_changed_is_not_evaluated_on(here):
    frame(["a", "b"]).to_csv("t.csv", index=False)
    run = fairmean.run(data={"name": "t.csv", "target": "y", "client": "site"}, train=TRAIN)
    assert fairmean.load(run.folder).evaluate().tolist() == run.values.tolist()
    other = frame(["a", "b"])
    other["y"] = other["y"].map({"yes": "no", "no": "yes"})
    other.to_csv("t.csv", index=False)
    with pytest.raises(UserError, match="has changed since the run"):
        fairmean.load(run.folder).evaluate()


def test_a_model_is_evaluated_without_dropout_and_left_as_it_was(own):
    run = fairmean.run(data={"name": own}, train=TRAIN)
    network = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Dropout(0.5)).train()
    assert run.evaluate(network).tolist() == run.evaluate(network).tolist()
    assert network.training
    assert network[1].training


def test_nothing_can_be_held_out_of_a_few_samples():
    with pytest.raises(UserError, match="no client has so many samples"):
        fairmean.run(data=table(["a", "b", "c"], validation=0.005), train=TRAIN | {"keep": "best"})


def test_a_run_that_is_interrupted_when_it_is_about_to_stop(own):
    settings = {
        "data": {"name": own, "validation": 0.2},
        "attack": {"name": "none"},
        "model": {"name": "linear"},
        "train": {"rounds": 40, "lr": 3.0, "patience": 2, "device": "cpu"},
    }
    whole = fairmean.run(**settings, run={"dir": "whole", "eval_every": 1})
    stopped = whole.summary["rounds"]
    assert stopped < 40

    def stop(progress):
        if progress.round == stopped:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fairmean.run(**settings, run={"eval_every": 1}, report=stop)
    assert fairmean.run(**settings, run={"eval_every": 1}).summary == whole.summary


def test_errors_of_one_client_do_not_drown_those_of_the_next():
    found = figures(TASKS["regression"], np.array([1e18] * 3 + [1e-2] * 4), np.array([0, 3, 3, 7]), 1.0)
    np.testing.assert_allclose(found[[0, 2]], [1e9, 0.1])
    assert np.isnan(found[1])


def test_targets_that_are_all_equal_have_no_explained_share():
    draw = np.random.default_rng(0)
    for _ in range(100):
        y = torch.from_numpy(np.concatenate([draw.normal(size=9), np.full(7, draw.normal())]))
        shown = details(TASKS["regression"], torch.zeros(16, 1), y, np.array([0, 9, 16]), 1, 1.0)
        assert np.isnan(shown["r2"][1])
        assert shown["r2"][0] == pytest.approx(1 - (y[:9] ** 2).mean().item() / y[:9].numpy().var())


@pytest.mark.parametrize("key", ["target", "client"])
def test_columns_of_data_that_has_none(key, own):
    for data in ({}, {"name": own}, {"x_train": np.zeros((4, 2), np.float32), "y_train": np.arange(4) % 2,
                                     "x_test": np.zeros((4, 2), np.float32), "y_test": np.arange(4) % 2}):  # fmt: skip
        with pytest.raises(UserError, match=f"data.{key} = 'site'"):
            fairmean.run(data={**data, key: "site"}, attack={"name": "none"}, train=TRAIN)


@pytest.mark.parametrize("name", ["Bonn,, DE", "x,\ny", 'say "hi"', "a\rb", ",,"])
def test_names_that_a_table_must_quote(name, capsys):
    run = fairmean.run(data=table([name, "other"]), train=TRAIN)
    again = fairmean.load(run.folder)
    assert name in again.client_names
    assert len(again.columns["client"]) == 6
    assert np.isnan(again.columns["weight"][-2:]).all()
    assert main(["show", run.hash]) == 0


@pytest.mark.parametrize("names", [("A", "B", "C"), ("A",)])
def test_client_names_must_fit_the_clients(names):
    x, y, owner = np.zeros((20, 2), np.float32), np.arange(20) % 2, np.arange(20) % 2
    for clients in (None, owner):
        data = Dataset("d", x, y, x, y, 2, train_clients=clients, test_clients=clients, client_names=names)
        with pytest.raises(UserError, match=r"client_names|has no name"):
            fairmean.run(data=data, attack={"name": "none"}, train=TRAIN)


def test_what_arrays_are_taken_for_is_said():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 2)).astype(np.float32), np.arange(40) % 2
    small = {"attack": {"name": "none"}, "partition": {"name": "iid", "clients": 2}, "train": TRAIN}
    with pytest.warns(UserWarning, match="so a regression, though few whole numbers"):
        fairmean.run(data=(x, y.astype(np.float32), x, y.astype(np.float32)), **small)
    features = np.stack([draw.integers(0, 90, 40), draw.integers(0, 2, 40), draw.integers(0, 4, 40)], 1)
    with pytest.warns(UserWarning, match="taken for tokens"):
        fairmean.run(data=(features, y, features, y), **small)


def test_the_chance_of_a_small_group_in_a_small_batch():
    sizes = torch.tensor([200.0, 100_000.0])
    chance = _chance(sizes, 200_000, 32)
    assert chance.dtype == sizes.dtype
    torch.testing.assert_close(chance, torch.tensor([1 - (1 - 0.001) ** 32, 1.0]), rtol=1e-3, atol=1e-4)


def test_a_damaged_run_does_not_hide_the_others(own, capsys):
    good, bad = (fairmean.run(data={"name": own}, seed=seed, train=TRAIN) for seed in (1, 2))
    (bad.folder / "config.toml").write_text("seed = [")
    assert main(["ls"]) == 2
    out, err = capsys.readouterr()
    assert good.hash[:8] in out
    assert str(bad.folder) in err


def test_a_search_keeps_early_stopping(own):
    train = {"rounds": 9, "patience": 1, "lr": 1.0, "device": "cpu"}
    fairmean.tune(methods="mean", seeds=[1001], data={"name": own}, model={"name": "linear"}, train=train, budget=6)
    assert any(run.summary.get("rounds", 9) < run.config.train.rounds for run in fairmean.runs())


def test_samples_are_not_divided_twice():
    with pytest.raises(UserError, match=r"partition\.name = 'dirichlet': data\.client says already"):
        fairmean.run(data=table(["a", "b"]), partition={"name": "dirichlet"}, train=TRAIN)


@pytest.mark.parametrize("target", ["yes or no", "number", "three"])
def test_the_config_that_is_stored_is_that_of_the_run(here, capsys, target):
    """Also where the data decides the objective, which has hyper-parameters of its own."""
    data = frame(["a", "b", "c", "d"])
    if target != "yes or no":
        data["y"] = data["a"] if target == "number" else np.where(data["a"] > 0.5, "x", data["y"])
    data.to_csv("t.csv", index=False)
    words = ["data.name=t.csv", "data.target=y", "data.client=site", "train.rounds=2", "train.device=cpu"]
    assert main(["run", *words]) == 0
    (run,) = fairmean.runs()
    assert run.config.hash() == run.folder.name
    assert main(["run", str(run.folder / "config.toml")]) == 0
    assert len(fairmean.runs()) == 1
    assert "not the config of this run" not in capsys.readouterr().err


def test_a_client_is_poisoned_once(capsys):
    assert main(["run", "attack.clients=[9,9]"]) == 2
    assert "9 is there twice" in capsys.readouterr().err


OWN = """
import torch
import fairmean
from dataclasses import dataclass
from fairmean.rules import LossRule, Objective, Scale, register, register_objective, register_scale

@register("chance", reference="a test")
@dataclass(frozen=True)
class Chance(LossRule):
    def __call__(self, round, state):
        return torch.softmax(torch.rand(len(round.losses)).to(round.losses), 0), state

@register("doubled", reference="a test")
@dataclass(frozen=True)
class Doubled(LossRule):
    def __call__(self, round, state):
        return round.losses.mul_(2), state

@register("misspelt", reference="a test")
@dataclass(frozen=True)
class Misspelt(LossRule):
    def __call__(self, round, state):
        return round.loses, state

@register_scale("dice")
@dataclass(frozen=True)
class Dice(Scale):
    def __call__(self, losses, means, context):
        return torch.rand_like(losses)

@register_objective("flat")
@dataclass(frozen=True)
class Flat(Objective):
    def losses(self, logits, y, context):
        return logits.sum()

@register_objective("negative")
@dataclass(frozen=True)
class Negative(Objective):
    def losses(self, logits, y, context):
        return torch.nn.functional.cross_entropy(logits, y.long(), reduction="none")
    def weights(self, logits, y, context):
        return -torch.ones(len(y))
"""


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["method.name=chance"], "rule 'chance' (Chance) draws random numbers from torch's global generator"),
        (["method.name=dice+mean"], "scale 'dice+mean' (Dice) draws random numbers"),
        (["method.name=doubled"], "changed round.losses in place"),
        (["method.name=misspelt"], "did you mean round.losses?"),
        (["method.name=mean", "method.objective=flat"], "objective 'flat' (Flat) returned a tensor of shape ()"),
        (["method.name=mean", "method.objective=negative"], "weights of samples that are not finite and at least 0"),
    ],
)
def test_what_somebody_elses_code_does_wrong_is_named(here, settings, says):
    (here / "somebodys.py").write_text(OWN)
    words = ["run", "--import", "somebodys", *settings, "train.rounds=2", "train.device=cpu"]
    done = subprocess.run(  # not in this process, which would know these parts from then on
        [sys.executable, "-m", "fairmean", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert says in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--methods", "mean:train.rounds=3,mean", "--attacks", "none"], "3 or 2 rounds"),
        (["--methods", "mean", "--attacks", "none", "grid.partition.alpha=[0.5,10]"], "Dirichlet 0.5 or 10"),
        (["--methods", "mean,mean:partition.clients=5", "--attacks", "pairwise"], "10 or 5 clients"),
        (["--methods", "mean", "--attacks", "pairwise,pairwise:clients=[0,1]"], "poisoned as the columns say"),
        (
            ["--methods", "mean", "--attacks", "pairwise"],
            "Dirichlet 0.5 · clients 8, 9 poisoned · 2 rounds",
        ),
    ],
)
def test_the_line_above_a_table_is_true_of_all_its_runs(capsys, words, says):
    assert main(["compare", *words, "train.rounds=2", "train.device=cpu"]) == 0
    assert says in capsys.readouterr().out
