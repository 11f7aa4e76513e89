"""Who takes part: rates, spells and probabilities as promised, on every path and after a resumption."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from fairmean import method, run
from fairmean.engine import Simulator, Training
from fairmean.engine.participation import MODELS, Presence, inclusion_by_size, participation
from fairmean.errors import UserError
from fairmean.experiments.config import parse
from fairmean.experiments.sections import PRESENCES
from fairmean.models import build as build_model
from fairmean.randomness import generator
from tests.engine.test_paths import NARROW, federation, images  # noqa: F401 - fixtures
from tests.test_distributed import federation as tiny_federation

SIZES = np.array([10, 20, 30, 40, 50, 60, 70, 80, 90, 400])


def nobody(clients):
    raise AssertionError("losses are only asked for where they decide")


def table(present, rounds):
    """Rounds × clients: who was there."""
    there = np.zeros((rounds, present.n), dtype=bool)
    for t in range(rounds):
        there[t, present(t, nobody)] = True
    return there


def spells(column):
    """Lengths of the whole runs of True; the first and the last may be cut off, and are left out."""
    changes = np.flatnonzero(np.diff(column.astype(int)))
    return [b - a for a, b in pairwise(changes) if column[b]]


def test_names():
    assert tuple(MODELS) == PRESENCES


def test_uniform_draws_are_what_they_were():
    present = participation(Presence(), 0.3, SIZES, 5)
    for t in range(20):
        before = np.sort(generator(5, "participation", t).permutation(10)[:3])
        assert present(t, nobody).tolist() == before.tolist()
    everyone = participation(Presence(), 1.0, SIZES, 5)
    assert everyone(3, nobody).tolist() == list(range(10))
    assert not everyone.partial


@pytest.mark.parametrize(("rate", "spell"), [(0.3, 8.0), (0.5, 2.0), (0.8, 4.0), (0.1, 1.0)])
def test_availability_has_its_rate_and_its_spells(rate, spell):
    there = table(participation(Presence("markov", spell=spell), rate, np.ones(300, dtype=np.int64), 1), 1500)
    deviation = np.sqrt(rate * (1 - rate) * (2 * spell * (1 - rate) + 1) / there.size)  # spells are not independent
    assert there.mean() == pytest.approx(rate, abs=5 * deviation)
    present = np.concatenate([spells(client) for client in there.T])
    absent = np.concatenate([spells(~client) for client in there.T])
    assert present.mean() == pytest.approx(spell, rel=0.05)
    assert absent.mean() == pytest.approx(spell * (1 - rate) / rate, rel=0.05)
    if spell > 1:  # geometric: the deviation of a spell is √(s (s − 1))
        assert present.std() == pytest.approx(np.sqrt(spell * (spell - 1)), rel=0.08)


def test_availability_is_the_same_in_the_first_round_and_of_every_client_for_itself():
    there = table(participation(Presence("markov", spell=20), 0.4, np.ones(5000, dtype=np.int64), 2), 3)
    for row in there:
        assert row.mean() == pytest.approx(0.4, abs=0.03)
    assert participation(Presence("markov"), 1.0, SIZES, 2)(7, nobody).tolist() == list(range(10))


def test_rates_spread():
    present = participation(Presence("markov", spread=0.2), 0.3, np.ones(20000, dtype=np.int64), 1)
    assert present.rates.mean() == pytest.approx(0.3, abs=0.01)
    assert present.rates.var() == pytest.approx(0.2 * 0.3 * 0.7, rel=0.05)
    few = participation(Presence("markov", spread=0.2, spell=3), 0.5, np.ones(30, dtype=np.int64), 1)
    often = table(few, 4000).mean(0)
    assert np.abs(often - few.rates).max() < 0.12
    assert np.corrcoef(often, few.rates)[0, 1] > 0.99


def test_availability_does_not_depend_on_the_order_of_questions():
    one, other = (participation(Presence("markov", spell=5), 0.4, SIZES, 3) for _ in range(2))
    forwards = [one(t, nobody).tolist() for t in range(40)]
    assert [other(t, nobody).tolist() for t in (39, 12, 13, 0, 39)] == [forwards[t] for t in (39, 12, 13, 0, 39)]


@pytest.mark.parametrize("count", [1, 3, 8, 10])
def test_by_size(count):
    present = participation(Presence("size"), count / 10, SIZES, 1)
    wanted = inclusion_by_size(SIZES, count)
    assert wanted.sum() == pytest.approx(count)
    assert wanted.max() <= 1
    free = wanted < 1
    if free.any():
        assert np.ptp(wanted[free] / SIZES[free]) < 1e-12
    drawn = [present(t, nobody) for t in range(4000)]
    assert {len(clients) for clients in drawn} == {count}
    often = np.bincount(np.concatenate(drawn), minlength=10) / 4000
    np.testing.assert_allclose(often, wanted, atol=0.035)


def test_power_of_choice_takes_the_largest_losses_of_its_candidates():
    losses, asked = np.arange(10)[::-1].astype(float), []

    def of(clients):
        asked.append(clients)
        return losses[clients]

    present = participation(Presence("power-of-choice", candidates=5), 0.2, SIZES, 1)
    for t in range(200):
        chosen = present(t, of)
        assert len(asked[-1]) == len(set(asked[-1])) == 5
        assert chosen.tolist() == sorted(asked[-1])[:2]  # lower ids have larger losses here
    often = np.bincount(np.concatenate(asked), minlength=10) / 200
    np.testing.assert_allclose(often, inclusion_by_size(SIZES, 5), atol=0.12)
    with pytest.raises(UserError, match=r"train\.candidates = 1: 2 clients take part"):
        participation(Presence("power-of-choice", candidates=1), 0.2, SIZES, 1)


def test_weights_by_probability_are_unbiased():
    """The mean of Σ λ_i v_i / π_i over many rounds is Σ λ_i v_i; with the usual weights it is not."""
    values = np.random.default_rng(0).normal(size=10) + np.arange(10)
    for presence in (Presence("size"), Presence("markov", spread=0.3, spell=2), Presence()):
        present = participation(presence, 0.4, SIZES, 1)
        rounds = [present(t, nobody) for t in range(20000)]
        sums = np.array([(values[c] / present.inclusion[c]).sum() / 10 for c in rounds])
        usual = np.array([values[c].mean() for c in rounds if len(c)])
        near = 5 * np.sqrt(5) * sums.std() / np.sqrt(len(sums))
        assert abs(sums.mean() - values.mean()) < near, presence
        if presence.name != "uniform":
            assert abs(usual.mean() - values.mean()) > near, presence


def simulator(clients, rule, presence, fraction=0.5, **more):
    net = build_model(NARROW, clients.shape, clients.classes, 3)
    options = {key: more.pop(key) for key in list(more) if key in Training.__dataclass_fields__}
    training = Training(lr=0.1, rounds=8, participation=fraction, presence=presence, **options)
    chosen = method(rule) if isinstance(rule, str) else rule
    return Simulator(clients, net, chosen, training, seed=3, dtype=torch.float64, **more)


EVERY = {
    "markov": Presence("markov", spell=2, spread=0.2),
    "size": Presence("size"),
    "size, unbiased": Presence("size", unbiased=True),
    "power-of-choice": Presence("power-of-choice"),
}


@pytest.mark.parametrize("presence", EVERY.values(), ids=list(EVERY))
@pytest.mark.parametrize("rule", ["fedavg", "fairmean-split", "term", "krum:f=0", "median", "fedmdfg"])
def test_fast_paths_equal_the_reference(federation, rule, presence):  # noqa: F811
    name, _, f = rule.partition(":f=")
    rule = method(name, f=int(f)) if f else method(name)
    if presence.unbiased and name != "fedavg":
        with pytest.raises(UserError, match=r"train\.unbiased = true: is for methods whose direction is a plain sum"):
            simulator(federation, rule, presence)
        return
    for mode in ({}, {"batch": 16, "local_steps": 2}):
        fast, slow = (simulator(federation, rule, presence, engine=engine, **mode) for engine in ("fast", "reference"))
        for t in range(4):
            one, other = fast.step(t), slow.step(t)
            assert one.clients.tolist() == other.clients.tolist()
        torch.testing.assert_close(fast.w, slow.w, rtol=1e-9, atol=1e-9)


def test_unbiased_weights_in_a_round(federation):  # noqa: F811
    run_ = simulator(federation, "fedavg", Presence("size", unbiased=True))
    step = run_.step(0)
    sizes = federation.sizes
    wanted = (sizes / sizes.sum())[step.clients] / inclusion_by_size(sizes, 3)[step.clients]
    np.testing.assert_allclose(step.weights.numpy(), wanted)


def test_power_of_choice_looks_at_the_model_that_is_broadcast(federation):  # noqa: F811
    presence = Presence("power-of-choice", candidates=6)
    chooser = simulator(federation, "mean", presence, fraction=0.34)
    for t in range(3):
        everyone = replace(chooser.training, participation=1.0, presence=Presence())
        net = build_model(NARROW, federation.shape, federation.classes, 3)
        judge = Simulator(federation, net, method("mean"), everyone, seed=3, dtype=torch.float64)
        judge.w.copy_(chooser.w)
        largest = judge.losses(t).argsort(descending=True)[:2]
        assert chooser.step(t).clients.tolist() == sorted(largest.tolist())


def test_theory_is_about_uniform_draws(federation):  # noqa: F811
    with pytest.raises(UserError, match=r"theory = true: is about clients drawn uniformly"):
        simulator(federation, "mean", Presence("markov", spell=2)).watch(None, 1)


@pytest.mark.parametrize("rule", ["mean", "term", "median", "centered-clipping"])
def test_a_round_without_clients_changes_nothing(rule):
    """The clients of a federation of two are often both away."""
    clients = tiny_federation(2)
    gone = simulator(clients, rule, Presence("markov", spell=2), fraction=0.3)
    empty = 0
    for t in range(12):
        before, state = gone.w.clone(), gone.state
        step = gone.step(t)
        if not len(step.clients):
            empty += 1
            assert torch.equal(gone.w, before)
            assert gone.state is state
            assert len(step.losses) == 0
        else:
            assert not torch.equal(gone.w, before)
    assert empty == gone.idle_rounds(12)
    assert 0 < empty < 12


def test_too_few_clients_for_a_rule_are_as_nobody():
    clients = tiny_federation(6)
    few = simulator(clients, method("krum", f=1), Presence("markov", spell=2), fraction=0.6)
    assert few.fewest > 1
    there = table(participation(Presence("markov", spell=2), 0.6, clients.sizes, 3), 12).sum(1)
    counts = [len(few.step(t).clients) for t in range(12)]
    assert counts == [int(n) if n >= few.fewest else 0 for n in there]
    assert 0 in counts


def recorded(folder):
    return list(csv.DictReader((Path(folder) / "clients.csv").read_text().splitlines()))


@pytest.mark.parametrize("presence", ["markov", "size", "power-of-choice"])
@pytest.mark.parametrize("rule", ["fairmean-split", "centered-clipping"])
@pytest.mark.usefixtures("here")
def test_a_resumed_run_is_the_same(own, presence, rule, monkeypatch):
    """Stopped in the middle, in a process that knows nothing of the earlier rounds."""
    settings = {
        "data.name": own,
        "model.name": "linear",
        "method.name": rule,
        "partition.clients": 5,
        "train.device": "cpu",
        "train.rounds": 30,
        "train.batch": 8,
        "train.participation": 0.2,
        "train.presence": presence,
        "train.spell": 3.0,
        "run.eval_every": 7,
    }
    whole = run(settings, **{"run.dir": "whole"})

    step = Simulator.step

    def until(self, t):
        if t == 17:
            raise KeyboardInterrupt
        return step(self, t)

    from fairmean.experiments import session

    monkeypatch.setattr(session, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(Simulator, "step", until)
    with pytest.raises(KeyboardInterrupt):
        run(settings, **{"run.dir": "cut"})
    monkeypatch.setattr(Simulator, "step", step)
    again = run(settings, **{"run.dir": "cut"})
    for name in ("clients.csv", "summary.json"):
        assert (Path(whole.folder) / name).read_bytes() == (Path(again.folder) / name).read_bytes()
    if presence == "markov":
        idle = json.loads((Path(whole.folder) / "summary.json").read_text())["idle_rounds"]
        trained = {row["round"] for row in recorded(whole.folder) if row["loss"] and int(row["round"]) < 30}
        assert idle == 30 - len(trained) > 0


def test_settings_are_checked_and_old_runs_keep_their_identity():
    usual = parse({}).hash()
    assert usual == parse({"train": {"presence": "uniform", "spell": 10, "unbiased": False}}).hash()
    assert usual != parse({"train": {"presence": "size"}}).hash()
    for settings, words in [
        ({"presence": "marcov"}, r"unknown train\.presence 'marcov'"),
        ({"presence": "markov", "participation": 0.9, "spell": 5}, r"train\.spell = 5: .* use train\.spell=9"),
        ({"spell": 0.5}, r"train\.spell = 0\.5: must be a finite number ≥ 1"),
        ({"spread": 1.0}, r"train\.spread = 1\.0: must be between 0 and 0\.99"),
        ({"presence": "power-of-choice", "unbiased": True}, r"train\.unbiased = true: with train\.presence"),
    ]:
        with pytest.raises(UserError, match=words):
            parse({"train": settings})
