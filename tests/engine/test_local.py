"""Local training: every path equals the plain loop, whatever the clients' sizes, steps, momentum and rung."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fairmean
from fairmean.data import load
from fairmean.data.batches import Batches
from fairmean.data.federation import build
from fairmean.engine import Simulator, Training
from fairmean.engine.paths.local_steps import LocalSteps
from fairmean.engine.paths.stacked_steps import StackedSteps
from fairmean.errors import UserError
from fairmean.experiments.config import parse
from fairmean.models import build as build_model
from fairmean.models.dropout import swap_dropout
from fairmean.randomness import are_few, drawn
from fairmean.terminal.main import main
from tests.engine.test_paths import METHODS

RUNGS = ["mean", "fairmean", "loss-rule", "krum", "cwtm", "fedmdfg", "turns", "turns+rfa", "weights+cwtm", "entropy"]
SETTINGS = {
    "plain": {},
    "momentum": {"client_momentum": 0.9},
    "proximal": {"proximal": 0.3},
    "decay": {"weight_decay": 0.05},
    "all": {"client_momentum": 0.5, "proximal": 0.2, "weight_decay": 0.01, "local_lr": 0.03},
}
LENGTHS = {"epochs": {"local_epochs": 2, "batch": 16}, "steps": {"local_steps": 3, "batch": 16}}


@pytest.fixture(scope="module")
def unequal():
    """Six clients with 20 … 180 samples, two of them poisoned anew at every step."""
    data = load("fashion-mnist-mini")
    data = replace(data, train_x=data.train_x[:400], train_y=data.train_y[:400])
    fed = build(data, clients=6, attack="adaptive", poisoned=np.array([4, 5]), rho=0.7, trust=60)
    assert len(set(fed.sizes.tolist())) > 3
    return fed


def narrow(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, classes))


def dropping(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, classes))


NETWORKS = {"stacked": narrow, "loop": dropping}


def simulator_of(fed, name, network, **settings):
    torch.manual_seed(0)
    engine = settings.pop("engine", "fast")
    model = NETWORKS[network](fed.shape, fed.classes)
    swap_dropout(model)
    training = Training(lr=0.05, rounds=3, **settings)
    return Simulator(fed, model, METHODS[name], training, seed=3, dtype=torch.float64, engine=engine)


def agree(fed, name, network, **settings):
    fast, plain = (simulator_of(fed, name, network, engine=e, **settings) for e in ("fast", "reference"))
    for t in range(2):
        ours, theirs = fast.step(t), plain.step(t)
        torch.testing.assert_close(ours.losses, theirs.losses, rtol=1e-9, atol=1e-12)
        if ours.weights is not None:
            torch.testing.assert_close(ours.weights, theirs.weights, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(fast.w, plain.w, rtol=1e-9, atol=1e-11)
    return fast


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("network", NETWORKS)
def test_equals_the_reference_on_the_lowest_rung(unequal, network, length, setting):
    agree(unequal, "fairmean", network, **LENGTHS[length], **SETTINGS[setting])


@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize("network", NETWORKS)
def test_equals_the_reference_on_every_rung(unequal, network, name):
    agree(unequal, name, network, **LENGTHS["epochs"], **SETTINGS["all"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("network", NETWORKS)
def test_equals_the_reference_for_every_method(unequal, network, name):
    agree(unequal, name, network, **LENGTHS["epochs"], **SETTINGS["momentum"])


@pytest.mark.parametrize("network", NETWORKS)
def test_equals_the_reference_with_few_clients_and_whole_epochs(unequal, network):
    agree(unequal, "krum", network, local_epochs=2, batch=64, participation=0.7)
    agree(unequal, "mean", network, local_epochs=3)
    agree(unequal, "mean", network, weight_decay=0.1)


def test_groups_of_clients_do_not_change_the_result(unequal, monkeypatch):
    whole = agree(unequal, "turns", "stacked", **LENGTHS["epochs"])
    monkeypatch.setattr("fairmean.engine.paths.stacked_steps._CPU_GROUP", 2 * whole.w.numel() * 8)
    agree(unequal, "turns", "stacked", **LENGTHS["epochs"])
    agree(unequal, "krum", "stacked", **LENGTHS["epochs"])


def test_which_path_takes_which_model(unequal):
    for name, kind in (("stacked", StackedSteps), ("loop", LocalSteps)):
        simulator = simulator_of(unequal, "mean", name, local_epochs=1, batch=16)
        assert StackedSteps.takes(simulator.net) == (kind is StackedSteps)


def test_frozen_parameters_stay_where_they_are(unequal):
    model = build_model("mlp", unequal.shape, unequal.classes, 1, frozen=["1"])
    training = Training(lr=0.05, local_epochs=1, batch=16, weight_decay=0.1, client_momentum=0.9, proximal=0.1)
    simulator = Simulator(unequal, model, METHODS["mean"], training)
    before = [p.detach().clone() for p in simulator.net.model.parameters()]
    simulator.step(0)
    moved = [not torch.equal(a, b) for a, b in zip(before, simulator.net.model.parameters(), strict=True)]
    assert moved == [False, False, True, True, True, True]


def test_clients_that_are_out_do_not_train(unequal, monkeypatch):
    calls = []
    whole = LocalSteps._finish

    def counted(self, group, *rest):
        calls.extend(group.tolist())
        return whole(self, group, *rest)

    monkeypatch.setattr(LocalSteps, "_finish", counted)
    simulator = simulator_of(unequal, "holiday", "loop", local_epochs=1, batch=16)
    simulator.step(0)
    assert sorted(calls) == list(range(6))
    simulator.step(1)
    assert len(calls) == 6


def test_a_resumed_run_is_bitwise_the_same(unequal):
    settings = {**LENGTHS["epochs"], **SETTINGS["all"], "participation": 0.5}
    whole = simulator_of(unequal, "turns", "stacked", **settings)
    for t in range(3):
        if t == 2:
            kept = whole.snapshot()
        whole.step(t)
    resumed = simulator_of(unequal, "turns", "stacked", **settings)
    resumed.restore(kept, 2)
    resumed.step(2)
    assert torch.equal(resumed.w, whole.w)


def test_an_epoch_has_every_row_once():
    offsets, clients = np.array([0, 20, 25, 80]), np.arange(3)
    batches = Batches(offsets, 16, seed=1, epochs=2)
    assert batches.per_round == 8
    assert batches.steps(clients).tolist() == [4, 2, 8]
    for t in range(2):
        seen = {(e, k): [] for e in range(2) for k in range(3)}
        for j in range(batches.per_round):
            counts = batches.counts(t * 8 + j, clients)
            rows = np.split(batches.rows(t * 8 + j, clients), np.cumsum(counts)[:-1])
            for k, mine in enumerate(rows):
                if len(mine):
                    seen[j // (batches.steps(clients)[k] // 2), k].append(mine)
        for (_, k), parts in seen.items():
            assert sorted(np.concatenate(parts)) == list(range(offsets[k], offsets[k + 1]))
            assert all(len(part) == 16 for part in parts[:-1])
    alone = Batches(offsets, 16, seed=1, epochs=2)
    assert np.array_equal(
        alone.rows(9, np.array([2])), batches.rows(9, clients)[batches.counts(9, clients)[:2].sum() :]
    )


def test_clients_that_share_samples(unequal):
    """Rows by index give what the same rows give when they are copied."""
    rows = torch.from_numpy(np.random.default_rng(0).integers(0, len(unequal.x), len(unequal.x)))
    shared = replace(unequal, places=rows.int(), y=unequal.y[rows])
    copied = replace(unequal, x=unequal.x[rows], y=unequal.y[rows])
    for settings in (LENGTHS["epochs"], {}, {"participation": 0.5}):
        runs = [simulator_of(fed, "krum", "stacked", **settings) for fed in (shared, copied)]
        for run in runs:
            run.step(0)
        assert torch.equal(runs[0].w, runs[1].w)


def test_evaluation_of_some_clients(unequal):
    model = narrow(unequal.shape, unequal.classes)
    every = Simulator(unequal, model, METHODS["mean"], Training()).evaluate()
    some = Simulator(unequal, model, METHODS["mean"], Training(), evaluated=2).evaluate()
    for whole, part in zip(every, some, strict=True):
        known = ~np.isnan(part)
        assert known.sum() == 2
        assert np.array_equal(whole[known], part[known])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"local_epochs": -1}, "train.local_epochs = -1"),
        ({"local_epochs": 2, "local_steps": 3}, "leave out one"),
        ({"local_steps": 2, "client_momentum": 1.0}, "train.client_momentum = 1.0"),
        ({"client_momentum": 0.9}, "set train.local_steps"),
        ({"proximal": 0.1}, "set train.local_steps"),
        ({"weight_decay": -0.1}, "train.weight_decay = -0.1"),
        ({"local_steps": 2, "proximal": -1.0}, "train.proximal = -1.0"),
    ],
)
def test_mistakes_are_told_in_one_line(settings, words):
    with pytest.raises(UserError, match=words) as told:
        parse({"train": settings})
    assert "\n" not in str(told.value)


def test_settings_at_their_defaults_leave_the_identity_of_a_run():
    plain = parse({})
    spelled = parse({"train": {"local_epochs": 0, "client_momentum": 0.0, "weight_decay": 0.0, "proximal": 0.0}})
    assert plain.hash() == spelled.hash()
    assert parse({"train": {"local_epochs": 1}}).hash() != plain.hash()


def test_few_of_many_clients_are_drawn_without_going_over_all():
    clients = drawn(np.random.default_rng(0), 1_000_000, 50)
    assert len(set(clients.tolist())) == 50
    assert (np.diff(clients) > 0).all()
    assert 0 <= clients.min() <= clients.max() < 1_000_000
    again = drawn(np.random.default_rng(0), 1_000_000, 50)
    assert np.array_equal(clients, again)
    some = {"partition": {"clients": 20_000}, "train": {"participation": 0.001}}
    assert are_few(20_000, 20)
    assert parse(some).hash() != parse({**some, "train": {"participation": 0.5}}).hash()


def test_a_run_that_evaluates_some_clients(tmp_path):
    run = fairmean.run(
        method={"name": "mean"},
        train={"rounds": 2, "local_epochs": 1, "batch": 64, "participation": 0.2, "device": "cpu"},
        partition={"clients": 10},
        run={"dir": str(tmp_path), "eval_clients": 3, "eval_every": 1},
    )
    assert (~np.isnan(run.accuracy)).sum() == 3
    assert 0 < run.summary["average"] <= 100
    assert len(set(run.columns["client"].tolist())) < 10
    assert main(["report", str(run.folder), "-o", str(tmp_path / "report.html")]) == 0
