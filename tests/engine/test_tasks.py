"""Every task in every path: the same parameters, losses and figures as the reference loop."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fairmean import UserError, compose, method
from fairmean.data import federation
from fairmean.data.dataset import Dataset
from fairmean.data.tasks import TASKS
from fairmean.engine import Simulator, Training
from fairmean.engine.fleet.fleet import Fleet
from fairmean.engine.scoring import details, figures, scores

CLIENTS, ROUNDS, LENGTH, TOKENS = 6, 3, 5, 7
OBJECTIVES = {
    "classification": ("cross-entropy",),
    "binary": ("binary-cross-entropy",),
    "regression": ("squared", "absolute", "huber"),
    "next-token": ("next-token",),
}
CASES = [(task, objective) for task, objectives in OBJECTIVES.items() for objective in objectives]


def dataset(task):
    draw = np.random.default_rng(5)
    n = 160
    if task == "next-token":
        tokens = draw.integers(0, TOKENS, (n, LENGTH + 1))
        x, y, classes = tokens[:, :-1], tokens[:, 1:], TOKENS
    else:
        x = draw.normal(size=(n, 4)).astype(np.float32)
        signal = x @ np.array([1.0, -2.0, 0.5, 0.0])
        y, classes = {
            "classification": (np.digitize(signal, [-1, 1]), 3),
            "binary": ((signal > 0).astype(np.int64), 2),
            "regression": (signal.astype(np.float32) + 3, 1),
        }[task]
    owner = np.sort(draw.integers(0, CLIENTS, n))
    train, test = np.arange(n) % 4 != 0, np.arange(n) % 4 == 0
    return Dataset(
        task, x[train], y[train], x[test], y[test], classes, train_clients=owner[train], test_clients=owner[test],
        task=task, target_spread=2.0 if task == "regression" else 1.0,
    )  # fmt: skip


class Tokens(nn.Module):
    """A logit for every next token, from the token before."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, 4), nn.Linear(4, TOKENS)

    def forward(self, x):
        return self.head(torch.tanh(self.embedding(x)))


def model(task, outputs):
    torch.manual_seed(0)
    if task == "next-token":
        return Tokens()
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, outputs))


def simulator(task, objective, rule, attack="none", **more):
    fed = federation.build(
        dataset(task), partition_name="given", clients=CLIENTS, attack=attack, poisoned=np.array([1, 4]), seed=3
    )
    training = Training(lr=0.05, rounds=ROUNDS, **{k: more.pop(k) for k in ("batch", "local_steps") if k in more})
    built = method(rule) if isinstance(rule, str) else rule
    built = compose(*built, objective=objective) if isinstance(rule, tuple) else with_objective(built, objective)
    return Simulator(fed, model(task, fed.outputs), built, training, dtype=torch.float64, **more)


def with_objective(built, objective):
    import dataclasses

    from fairmean.rules.objectives import OBJECTIVES as REGISTERED

    return dataclasses.replace(built, objective=REGISTERED[objective]())


RULES = ("fairmean", "term", "krum", "cwtm", "centered-clipping")
MODES = {"full": {}, "batches": {"batch": 8}, "local": {"batch": 8, "local_steps": 2}, "parts": {"room": 1e-7}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("task", "objective"), CASES, ids=[objective for _, objective in CASES])
def test_every_path_equals_the_reference(task, objective, rule, mode):
    if mode == "parts" and rule in ("fairmean", "term", "centered-clipping"):
        pytest.skip("in parts are rules that look at gradients, without memory")
    attack = TASKS[task].attacks[1]
    fast = simulator(task, objective, rule, attack, **MODES[mode])
    kept = {key: value for key, value in MODES[mode].items() if key != "room"}
    slow = simulator(task, objective, rule, attack, engine="reference", **kept)
    for t in range(ROUNDS):
        one, other = fast.step(t), slow.step(t)
        np.testing.assert_allclose(np.asarray(one.losses), np.asarray(other.losses), rtol=1e-9)
    torch.testing.assert_close(fast.w, slow.w, rtol=1e-9, atol=1e-12)
    for a, b in zip(fast.evaluate(), slow.evaluate(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize(("task", "objective"), CASES[:-1], ids=[objective for _, objective in CASES[:-1]])
def test_runs_together_equal_runs_alone(task, objective):
    attack = TASKS[task].attacks[1]
    rules = ("fairmean", "mean", "krum", "cwtm")
    alone = [simulator(task, objective, rule, attack) for rule in rules]
    together = [simulator(task, objective, rule, attack) for rule in rules]
    for one in alone:
        for t in range(ROUNDS):
            one.step(t)
    fleet = Fleet(together)
    for _ in fleet.rounds(0, ROUNDS, lambda t: True, lambda t: False):
        pass
    for one, other, evaluated in zip(alone, together, fleet.evaluate(), strict=True):
        torch.testing.assert_close(one.w, other.w, rtol=1e-9, atol=1e-12)
        for a, b in zip(one.evaluate(), evaluated, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize(("task", "objective"), CASES, ids=[objective for _, objective in CASES])
def test_the_reference_minimises_what_it_should(task, objective):
    """One step of Mean from the start is a step along the mean of the clients' plain gradients."""
    run = simulator(task, objective, "mean", engine="reference")
    net, fed = model(task, run.federation.outputs).double(), run.federation
    losses = []
    for a, b in itertools.pairwise(fed.offsets):
        out, y = net(fed.x[a:b]), fed.y[a:b]
        losses.append(
            {
                "cross-entropy": lambda out, y: F.cross_entropy(out, y),
                "next-token": lambda out, y: F.cross_entropy(out.transpose(1, 2), y),
                "binary-cross-entropy": lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0], y.double()),
                "squared": lambda out, y: F.mse_loss(out[:, 0], y.double()),
                "absolute": lambda out, y: F.l1_loss(out[:, 0], y.double()),
                "huber": lambda out, y: F.huber_loss(out[:, 0], y.double()),
            }[objective](out, y)
        )
    torch.stack(losses).mean().backward()
    wanted = torch.cat([(p - 0.05 * p.grad).flatten() for p in net.parameters()])
    step = run.step(0)
    torch.testing.assert_close(torch.as_tensor(step.losses), torch.stack(losses).detach())
    torch.testing.assert_close(run.w, wanted.detach())


def test_positive_samples_can_count_more():
    from fairmean.rules.objectives import BinaryCrossEntropy

    logits, y = torch.randn(20, 1, dtype=torch.float64), torch.arange(20) % 2
    wanted = F.binary_cross_entropy_with_logits(
        logits[:, 0], y.double(), pos_weight=torch.tensor(3.0, dtype=torch.float64), reduction="none"
    )
    torch.testing.assert_close(BinaryCrossEntropy(3.0).losses(logits, y, None), wanted)
    p = torch.sigmoid(logits[:, 0])
    torch.testing.assert_close(BinaryCrossEntropy().entropy(logits), -(p * p.log() + (1 - p) * (1 - p).log()))
    with pytest.raises(UserError, match="pos_weight"):
        BinaryCrossEntropy(0.0)


def test_numbers_have_no_entropy():
    with pytest.raises(UserError, match="has no entropy"):
        simulator("regression", "squared", "fairmean-split")


def test_split_works_where_there_are_probabilities():
    for task in ("classification", "binary", "next-token"):
        fast, slow = (
            simulator(task, OBJECTIVES[task][0], "fairmean-split", engine=engine) for engine in ("fast", "reference")
        )
        for t in range(ROUNDS):
            fast.step(t)
            slow.step(t)
        torch.testing.assert_close(fast.w, slow.w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("attack", TASKS["regression"].attacks)
def test_poisoned_numbers(attack):
    data = dataset("regression")
    fed = federation.build(
        data, partition_name="given", clients=CLIENTS, attack=attack, poisoned=np.array([1, 4]), rho=0.5, seed=3
    )
    owner = np.repeat(np.arange(CLIENTS), fed.sizes)
    changed = (fed.y != fed.clean_y).numpy()
    assert not changed[np.isin(owner, [0, 2, 3, 5])].any()
    if attack == "none":
        assert not changed.any()
        return
    bad, clean = fed.y[changed].numpy(), fed.clean_y[changed].numpy()
    mean, spread = data.train_y.mean(dtype=np.float64), data.train_y.std(dtype=np.float64)
    if attack == "sign":
        np.testing.assert_allclose(bad, 2 * mean - clean, rtol=1e-5)
    elif attack == "shift":
        np.testing.assert_allclose(bad, clean + 2 * spread, rtol=1e-5)
    else:
        assert changed.sum() > 3
        for client in (1, 4):  # every number is one of the client's own
            assert np.isin(fed.y[owner == client], fed.clean_y[owner == client]).all()
    half = {client: changed[owner == client].mean() for client in (1, 4)}
    assert all(share <= 0.5 + 1 / fed.sizes[client] for client, share in half.items())


@pytest.mark.parametrize(("task", "attack"), [("regression", "pairwise"), ("classification", "sign")])
def test_attacks_that_do_not_fit(task, attack):
    with pytest.raises(UserError, match=f"'{attack}': is not for {task}"):
        simulator(task, OBJECTIVES[task][0], "mean", attack)


def test_figures_by_hand():
    offsets = np.array([0, 4, 6, 6])
    y = torch.tensor([1, 0, 1, 0, 1, 1])
    z = torch.tensor([2.0, -1.0, -0.5, -2.0, 0.3, 0.1])[:, None]
    binary = TASKS["binary"]
    shown = details(binary, z, y, offsets, 2, 1.0)
    accuracy = figures(binary, scores(binary, z, y).numpy(), offsets, 1.0)
    np.testing.assert_allclose(accuracy, [75, 100, math.nan])
    np.testing.assert_allclose(shown["sensitivity"], [50, 100, math.nan])
    np.testing.assert_allclose(shown["specificity"], [100, math.nan, math.nan])
    np.testing.assert_allclose(shown["balanced_accuracy"], [75, 100, math.nan])
    np.testing.assert_allclose(shown["auroc"], [100, math.nan, math.nan])
    assert 30 < shown["low"][0] < 31  # Wilson's interval of 3 of 4 is [0.301, 0.954]
    assert 95 < shown["high"][0] < 96
    assert math.isnan(shown["low"][2])

    regression, numbers = TASKS["regression"], torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 7.0])
    out = torch.tensor([1.0, 2.0, 3.0, 6.0, 4.0, 8.0])[:, None]
    rmse = figures(regression, scores(regression, out, numbers).numpy(), offsets, 10.0)
    np.testing.assert_allclose(rmse, [10.0, 10.0, math.nan])
    more = details(regression, out, numbers, offsets, 1, 10.0)
    np.testing.assert_allclose(more["mae"], [5.0, 10.0, math.nan])
    np.testing.assert_allclose(more["r2"], [1 - 1 / 1.25, 0.0, math.nan])
    assert more["low"][0] <= 10 <= more["high"][0]


def test_the_area_under_the_curve_is_that_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(0)
    z, y = np.round(draw.normal(size=200), 1), draw.integers(0, 2, 200)
    shown = details(TASKS["binary"], torch.from_numpy(z)[:, None], torch.from_numpy(y), np.array([0, 80, 200]), 2, 1.0)
    for client, part in enumerate((slice(0, 80), slice(80, 200))):
        assert shown["auroc"][client] == pytest.approx(100 * sklearn.roc_auc_score(y[part], z[part]))
        assert shown["balanced_accuracy"][client] == pytest.approx(
            100 * sklearn.balanced_accuracy_score(y[part], z[part] > 0)
        )


def test_samples_that_are_held_out():
    data = dataset("classification")
    options = {"partition_name": "given", "clients": CLIENTS, "seed": 3}
    whole, part = (federation.build(data, validation=share, **options) for share in (0.0, 0.25))
    assert part.on_validation().test_y.shape == (len(whole.y) - len(part.y),)
    assert set(part.held_out_rows).isdisjoint(part.rows)
    assert set(part.held_out_rows) | set(part.rows) == set(whole.rows)
    held = np.diff(part.held_out_offsets)
    np.testing.assert_allclose(held, 0.25 * whole.sizes, atol=0.5)
    assert torch.equal(part.held_out_x, torch.from_numpy(data.train_x[part.held_out_rows]))
    assert torch.equal(part.test_x, whole.test_x)
    again = federation.build(data, validation=0.25, like=part, **options)
    assert torch.equal(again.held_out_x, part.held_out_x)
    assert torch.equal(again.x, part.x)
