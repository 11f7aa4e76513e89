"""FedNoRo and AntiFLipper: their parts against plain loops, and what their server may read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import fairmean
from fairmean import LossRule, Method, method
from fairmean.engine import Simulator, Training
from fairmean.engine.batch import LocalBatches
from fairmean.engine.one_round import gathered
from fairmean.engine.server import Server
from fairmean.errors import UserError
from fairmean.models import build as build_model
from fairmean.rules.context import Context
from fairmean.rules.mixture import two_gaussians
from fairmean.rules.scales import Unscaled
from fairmean.rules.servers.fednoro import judged
from tests.engine.test_paths import NARROW, federation, images  # noqa: F401 - fixtures


def context(rule, n, classes, t=0):
    return Context(
        torch.tensor(float(t), dtype=torch.float64),
        10,
        torch.arange(n),
        torch.arange(1.0, n + 1, dtype=torch.float64),
        rule.memory(n, classes),
    )


def test_two_gaussians_divide_what_differs():
    draw = np.random.default_rng(0)
    for k in (1, 5):
        x = np.concatenate([draw.normal(0.2, 0.05, (14, k)), draw.normal(0.8, 0.1, (6, k))])
        order = draw.permutation(20)
        chances = two_gaussians(torch.from_numpy(x[order]))
        assert (chances > 0.5).tolist() == (order >= 14).tolist()
    assert two_gaussians(torch.ones(4, 3)).tolist() == [0, 0, 0, 0]
    assert two_gaussians(torch.ones(1, 3)).tolist() == [0]


def test_two_gaussians_raise_the_likelihood():
    """Against a plain loop of expectation and maximisation in one dimension."""
    x = np.array([0.0, 0.1, 0.15, 0.3, 0.8, 0.9])
    share, mean, var = np.array([4, 2]) / 6, np.array([x[:4].mean(), x[4:].mean()]), np.zeros(2)
    chance = np.array([[1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]], dtype=float)
    for _ in range(200):
        for c in range(2):
            share[c] = chance[c].sum() / 6
            mean[c] = (chance[c] * x).sum() / chance[c].sum()
            var[c] = (chance[c] * (x - mean[c]) ** 2).sum() / chance[c].sum() + 1e-3
        density = share[:, None] * np.exp(-((x - mean[:, None]) ** 2) / 2 / var[:, None]) / np.sqrt(var[:, None])
        chance = density / density.sum(0)
    np.testing.assert_allclose(two_gaussians(torch.from_numpy(x[:, None])).numpy(), chance[1], atol=1e-7)


def test_noisy_clients_are_those_with_large_losses_in_their_classes():
    """Client 3 has few classes, and large losses only because its class is hard for everybody."""
    nan = math.nan
    losses = torch.tensor(
        [[0.1, 2.0, 0.2], [0.2, 2.1, 0.1], [0.1, nan, 0.2], [nan, 2.05, nan], [1.5, 4.0, nan], [1.4, nan, 1.8]]
    )
    assert judged(losses).tolist() == [0, 0, 0, 0, 1, 1]
    assert judged(torch.full((3, 2), nan)).tolist() == [0, 0, 0]
    assert judged(torch.ones(3, 2)).tolist() == [0, 0, 0]


def test_distance_aware_weights():
    rule = method("fednoro", warm=1)
    server, gradients = Server(rule), torch.tensor([[0.0, 0], [1, 0], [0, 3], [0, 7.0]], dtype=torch.float64)
    shares = torch.full((4, 2), 0.5, dtype=torch.float64)
    by_class = torch.tensor([[0.1, 0.2], [0.2, 0.1], [2.0, 2.1], [2.2, 1.9]], dtype=torch.float64)
    clients = gathered(
        gradients,
        torch.ones(4),
        means={"class_shares": shares, "class_losses": by_class * shares},
        context=context(rule, 4, 2),
    )
    state = server.init(4, 2, 2)
    update = server.update(clients, state, 0.1)
    distances = np.array([0, 0, 3, 7])
    wanted = np.arange(1.0, 5) * np.exp(-distances / 7)
    np.testing.assert_allclose(update.weights.numpy(), wanted / wanted.sum(), rtol=1e-9)
    assert update.state.rule["noisy"].tolist() == [0, 0, 1, 1]
    assert state.rule["noisy"].tolist() == [0, 0, 0, 0]
    before = Server(method("fednoro", warm=2)).update(clients, state, 0.1)
    np.testing.assert_allclose(before.weights.numpy(), np.arange(1.0, 5) / 10)


def test_logits_are_adjusted_by_the_clients_own_shares():
    objective = method("fednoro").objective
    logits, y = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double(), torch.tensor([0, 1, 3])
    made = method("fednoro").made_up_context(4)
    shares = torch.tensor([[0.7, 0.3, 0, 0], [0, 0, 0.2, 0.8]], dtype=torch.float64)
    made.memory["shares"].copy_(shares)
    adjusted = logits + shares[[0, 0, 1]].clamp(min=1e-3).log()
    wanted = torch.stack([-adjusted[i].log_softmax(0)[y[i]] for i in range(3)])
    torch.testing.assert_close(objective.losses(logits, y, made), wanted)
    means = {"class_shares": torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 1.0]], dtype=torch.float64)}
    memory = {"shares": shares, "rounds": torch.tensor([1.0, 0.0], dtype=torch.float64)}
    new = objective.remember(memory, means, made)
    torch.testing.assert_close(new["shares"], torch.tensor([[0.85, 0.15, 0, 0], [0, 0, 0, 1.0]]).double())


def literal_trust(accuracies, present, n, eta=0.1, low=0.05, strikes=6, grace=2):
    """AntiFLipper as a plain loop: every round's weights."""
    trust, counted, gone, rows = dict.fromkeys(range(n), 1 / n), dict.fromkeys(range(n), 0), set(), []
    for t, (values, clients) in enumerate(zip(accuracies, present, strict=True)):
        told = {c: a for c, a in zip(clients, values, strict=True) if c not in gone}
        mean = sum(told.values()) / max(len(told), 1)
        for c, a in told.items():
            change = eta * (a - mean) ** 2
            trust[c] = max(0.0, trust[c] + (change if a >= mean else -change))
        total = sum(trust.values())
        trust = {c: v / total for c, v in trust.items()}
        inside = n - len(gone)
        for c in told:
            if t >= grace and inside * trust[c] < low:
                counted[c] += 1
                if counted[c] >= strikes:
                    gone.add(c)
        trust = {c: 0.0 if c in gone else v for c, v in trust.items()}
        total = sum(trust.values())
        trust = {c: v / total for c, v in trust.items()}
        weights = np.array([trust[c] for c in clients])
        rows.append(weights / weights.sum() if weights.sum() else weights)
    return rows, gone


def test_trust_follows_accuracies():
    rule, draw = method("antiflipper"), np.random.default_rng(0)
    server, state = Server(rule), Server(rule).init(6, 3)
    good = np.array([0.9, 0.85, 0.8, 0.9, 0.1, 0.2])
    present = [np.sort(draw.permutation(6)[: draw.integers(3, 7)]) for _ in range(60)]
    accuracies = [np.clip(good[clients] + draw.normal(0, 0.05, len(clients)), 0, 1) for clients in present]
    wanted, gone = literal_trust(accuracies, present, 6)
    assert gone == {4, 5}
    for clients, values, weights in zip(present, accuracies, wanted, strict=True):
        n = len(clients)
        known = context(rule, 6, 3).only(torch.from_numpy(clients))
        means = {"accuracy": torch.from_numpy(values)}
        update = server.update(gathered(torch.ones(n, 3), torch.ones(n), means=means, context=known), state, 0.1)
        np.testing.assert_allclose(update.weights.numpy(), weights, rtol=1e-9, atol=1e-12)
        state = update.state
    only = context(rule, 6, 3).only(torch.tensor([4, 5]))
    clients = gathered(torch.ones(2, 3), torch.ones(2), means={"accuracy": torch.ones(2).double()}, context=only)
    assert server.update(clients, state, 0.1).direction.tolist() == [0, 0, 0]


class Reader(LossRule):
    """Weights in proportion to what clients measured."""

    reads = ("accuracy",)

    def weights(self, round):
        assert set(round.means) == {"accuracy"}
        return round.means["accuracy"] / round.means["accuracy"].sum().clamp(min=1e-9)


def test_what_a_rule_reads_is_measured_or_the_mistake_is_named(federation):  # noqa: F811
    fairmean.Server(Method("reader", Unscaled(), Reader(), objective=method("antiflipper").objective))
    with pytest.raises(UserError, match=r"reader: its rule reads 'accuracy', which clients do not measure"):
        Method("reader", Unscaled(), Reader()).rehearse(3)
    with pytest.raises(UserError, match="fednoro: its clients measure their samples"):
        fairmean.aggregate("fednoro", torch.ones(3, 2), torch.ones(3), torch.ones(3))
    fast, slow = (
        Simulator(
            federation,
            build_model(NARROW, federation.shape, federation.classes, 3),
            Method("reader", Unscaled(), Reader(), objective=method("antiflipper").objective),
            Training(lr=0.1, rounds=3),
            dtype=torch.float64,
            engine=engine,
        )
        for engine in ("fast", "reference")
    )
    for t in range(3):
        fast.step(t)
        slow.step(t)
    torch.testing.assert_close(fast.w, slow.w, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["fednoro", "antiflipper"])
def test_accuracy_is_that_of_the_broadcast_model_on_the_labels_in_use(federation, name):  # noqa: F811
    """What the server reads, from a plain pass over every client's samples."""
    net = build_model(NARROW, federation.shape, federation.classes, 3)
    run = Simulator(federation, net, method(name), Training(lr=0.1, rounds=3, local_steps=2), dtype=torch.float64)
    steps = LocalBatches(run.feed, 0, 2, run.participants(0))
    cohort = run._cohort(0, steps, steps[0], run.context(0, steps[0]))
    _, means = cohort.statistics()
    with torch.no_grad():
        logits = run.net.model(run.federation.x)
    for k in range(federation.clients):
        rows = slice(*federation.offsets[k : k + 2])
        y, z = run.federation.y[rows], logits[rows]
        if federation.dynamic is not None:  # a poisoned client relabels by the model that it received
            y = torch.where(federation.dynamic[rows] > 0, z.argmin(1), y)
        if name == "antiflipper":
            assert means["accuracy"][k] == pytest.approx((z.argmax(1) == y).double().mean().item())
        else:
            plain = torch.nn.functional.cross_entropy(z, y, reduction="none")
            for c in range(federation.classes):
                assert means["class_losses"][k, c].item() == pytest.approx((plain * (y == c)).mean().item(), abs=1e-9)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["fednoro", "antiflipper"])
def test_flipped_labels_are_found_when_clients_are_alike(name):
    """With equal clients both methods do what they promise: the two poisoned ones are judged or lose their trust."""
    settings = {"partition.name": "iid", "attack.name": "pairwise", "train.device": "cpu", "train.rounds": 40}
    settings |= {"method.name": name, "train.lr": 0.3}
    ended = fairmean.run(settings | ({"method.warm": 20} if name == "fednoro" else {}))
    state = torch.load(Path(ended.folder) / "checkpoint.pt", weights_only=True)["state"]
    if name == "fednoro":
        assert state["noisy"].tolist() == [0] * 8 + [1] * 2
    else:
        assert state["trust"][8:].max() < 0.2 * state["trust"][:8].min()
