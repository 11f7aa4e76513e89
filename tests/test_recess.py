"""fairmean-recess: its timetable, what clients measure and remember, the trust that follows, and what is recorded.

That it is the same in every path is tested where all methods are (test_paths, test_fleet, test_bounded, test_cuda,
test_distributed).
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import fairmean
from fairmean import UserError, compose, method
from fairmean.data import load
from fairmean.data.federation import build
from fairmean.engine import Simulator, Training
from fairmean.models import build as build_model
from fairmean.rules.context import LAST_SENT, Context
from fairmean.rules.named import parse_method
from fairmean.rules.recess import FairMeanRecess, Recess, Turns
from fairmean.terminal.main import main
from tests.engine.test_fleet import draws
from tests.engine.test_objective import run_until
from tests.engine.test_paths import MLP

ROUNDS = 30


def context(t, n, rounds, **memory):
    """What n clients know in round t; by default they sent something in the round before and were never asked."""
    known = {**Recess().init(n, 3), LAST_SENT: torch.full((n,), t - 1.0, dtype=torch.float64)}
    known |= {name: torch.as_tensor(values, dtype=torch.float64) for name, values in memory.items()}
    now = torch.tensor(float(t), dtype=torch.float64)
    return Context(now, rounds, torch.arange(n), torch.ones(n), known, FairMeanRecess().start(3))


@given(st.integers(1, 5000), st.integers(4, 40), st.integers(2, 12), st.integers(1, 5))
def test_every_client_rests_once_in_every_cycle(rounds, n, turns, cycles):
    plan = Turns(turns, cycles)
    table = plan.timetable(rounds)
    whole = table.last - table.first == plan.turns * table.rest * table.cycles  # a very short run has not room for all
    assert table.last <= plan.until * rounds
    assert 1 <= table.cycles <= cycles
    if rounds > 400:  # the rest is arithmetic on fewer rounds
        return
    rests = torch.stack([plan.resting(context(t, n, rounds)) for t in range(rounds)])
    assert not rests[: table.first].any()
    assert not rests[table.last :].any()
    assert (rests.sum(0) <= table.cycles * table.rest).all()
    if whole:
        assert (rests.sum(0) == table.cycles * table.rest).all()
        assert rests.sum(1).max() <= -(-n // turns)  # the turns are of equal size


def test_other_companions_in_every_cycle():
    plan, n = Turns(turns=5, cycles=4), 20
    table = plan.timetable(2000)
    firsts = [table.first + k * table.rest for k in range(plan.turns * table.cycles)]
    groups = [frozenset(plan.resting(context(t, n, 2000)).nonzero()[:, 0].tolist()) for t in firsts]
    assert all(len(group) == 4 for group in groups)
    for k in range(len(groups)):
        for j in range(k):
            assert len(groups[k] & groups[j]) <= (4 if k // 5 == j // 5 else 1)


def test_a_client_that_was_absent_anyway_does_not_rest():
    plan = Turns()
    table = plan.timetable(600)
    t = table.first + table.rest  # client 1's turn
    assert plan.resting(context(t, 4, 600)).tolist() == [False, True, False, False]
    asked = context(t, 4, 600, tested=[0.0] * 4, asked_at=[t - 2.0] * 4)
    assert not plan.resting(asked).any()
    during = context(t + 5, 4, 600, tested=[0.0] * 4, asked_at=[t + 4.0] * 4)  # asked in this very turn: it goes on
    assert plan.resting(during).tolist() == [False, True, False, False]


def test_excess_of_labels_like_the_model_says_is_zero_on_average():
    """ẽ has mean 0 where labels are drawn from p̃, whatever the model is: that is what it measures against."""
    torch.manual_seed(0)
    objective, n, classes = Recess(), 200_000, 5
    shares = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0], dtype=torch.float64)
    logits = 2 * torch.randn(1, classes, dtype=torch.float64).expand(n, classes)
    adjusted = torch.softmax(logits - torch.log(shares + objective.rare), 1)
    y = torch.multinomial(adjusted[:1].expand(n, classes), 1)[:, 0]
    measured = objective.measure(logits, y, replace(context(0, 1, 1), broadcast={"shares": shares}))
    known = shares / (shares + objective.seldom)
    p = adjusted[0]
    expected = (p * known * (-p.log() - (-(p * p.log()).sum()))).sum()  # exact; 0 up to the factor for unknown labels
    error = measured["excess"].std() / n**0.5
    assert abs(measured["excess"].mean() - expected) < 4 * error
    assert (measured["excess"][y == 4] == 0).all()  # a label that nobody else has is no evidence
    torch.testing.assert_close(measured["labels"].mean(0), torch.bincount(y, minlength=classes).double() / n)


def test_a_single_output_is_two_classes():
    objective, z, y = Recess(), torch.tensor([[0.3], [-1.2]]), torch.tensor([1, 0])
    both = torch.cat([torch.zeros(2, 1), z], 1)
    known = replace(context(0, 1, 1), broadcast=FairMeanRecess().start(2))
    torch.testing.assert_close(
        objective.losses(z, y, known), F.binary_cross_entropy_with_logits(z[:, 0], y.float(), reduction="none")
    )
    torch.testing.assert_close(objective.entropy(z), objective.entropy(both))
    torch.testing.assert_close(objective.measure(z, y, known), objective.measure(both, y, known))


def test_evidence_needs_absence_and_is_reconsidered():
    objective, rounds = Recess(recall=0.5), 600
    table = objective.timetable(rounds)
    t = table.first + 50
    means = {"excess": torch.tensor([1.0, 1.0, torch.nan, 1.0], dtype=torch.float64)}
    away = table.enough
    last_sent = [t - 1.0, t - 1.0 - away, t - 1.0 - away, t - away]
    now = context(t, 4, rounds, last_sent=last_sent)
    own = {key: value for key, value in now.memory.items() if key != LAST_SENT}
    first = objective.remember(own, means, now)
    assert first["times"].tolist() == [0, 1, 0, 0]  # present; long enough away; no number; not long enough
    assert first["evidence"].tolist() == [0, 1, 0, 0]
    again = objective.remember(first, means, replace(now, t=now.t + 1))
    assert again["evidence"][1] == 2  # the same absence
    back = replace(now, t=now.t + 100, memory={**first, LAST_SENT: now.t + 99 - away + torch.zeros(4).double()})
    anew = objective.remember(first, means, back)
    assert anew["evidence"][1] == 0.5 * 1 + 1  # another one: what was before counts half
    assert anew["times"][1] == 1.5
    early = objective.remember(own, means, replace(now, t=torch.tensor(table.first - 1.0, dtype=torch.float64)))
    assert not early["times"].any()  # before the first turn the model knows nothing yet


@given(
    st.lists(st.floats(-1, 20), min_size=4, max_size=12),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 50),
)
def test_scales_stay_within_bounds_and_trust_is_not_withdrawn_from_all(excesses, cap, floor, kappa):
    scale, n = FairMeanRecess(cap=cap, floor=floor, kappa=kappa), len(excesses)
    now = context(500, n, 510, evidence=excesses, times=[1.0] * n)  # after the last turn
    trust = scale.trust(now.memory, now.broadcast)
    assert ((trust >= min(floor, 1)) & (trust <= 1)).all()
    means = {
        "entropy": torch.full((n,), 0.7, dtype=torch.float64),
        "labels": torch.eye(3).double()[torch.arange(n) % 3],
    }
    losses = torch.full((n,), 0.7, dtype=torch.float64)
    settled = replace(now, broadcast={**now.broadcast, "withdrawn": 1 - trust.mean()})
    s = scale(losses, means, settled)
    full = 1 + kappa * 0.7 / 1.7
    assert ((s >= 0) & (s <= full * (1 + 1e-9))).all()
    assert s.sum() >= (1 - cap) * n * full * (1 - 1e-9)


def by_hand(fed, rounds, theta, cap, until_asked, lr=0.1):
    """Round after round of fairmean-recess, written out with no more than autograd."""
    net = build_model(MLP, fed.shape, fed.classes, 3).double()
    n, K = fed.clients, fed.classes
    first, last = int(0.17 * rounds), int(0.7 * rounds)
    W = max(1, (last - first) // 10)
    away_enough = max(1, -(-3 * W // 4))
    shares, withdrawn, usual, spread = torch.full((K,), 1 / K).double(), 0.0, 0.0, 0.0
    sent, asked_at, tested = [-1] * n, [-1] * n, [-1] * n
    evidence, times, weights, least, held_back = [0.0] * n, [0.0] * n, [], 1.0, False
    for t in range(rounds):
        cycle = (t - first) // (10 * W)
        turn = (t - first) // W - 10 * cycle
        sums, total, trusts, scales, messages, told = torch.zeros(K).double(), 0.0, [], [], [], [(1.0, 0.0)]
        for i in range(n):
            rows = slice(int(fed.offsets[i]), int(fed.offsets[i + 1]))
            logits, y = net(fed.x[rows].double()), fed.y[rows]
            loss, p = F.cross_entropy(logits, y), logits.detach().softmax(1)
            entropy = -(p * p.log()).sum(1).mean()
            if t >= first and t - 1 - sent[i] >= away_enough:
                q = (logits.detach() - torch.log(shares + 0.003)).softmax(1)
                known = shares[y] / (shares[y] + 0.01)
                excess = (known * (-q[torch.arange(len(y)), y].log() + (q * q.log()).sum(1))).mean().item()
                keep = 0.5 if asked_at[i] <= sent[i] else 1.0
                evidence[i], times[i] = keep * evidence[i] + excess, keep * times[i] + 1
                asked_at[i], tested[i] = t, (sent[i] + 1 - first) // (10 * W)
            trust = 1.0
            if times[i]:
                excess = evidence[i] / times[i]
                trust = 0.02 + 0.98 * np.exp(-8 * max(0.0, excess - usual - max(theta, 2 * spread)))
            began = first + (10 * cycle + turn) * W
            its_turn = first <= t < min(last, first + 10 * W) and (i + cycle * (i // 10)) % 10 == turn
            if its_turn and (tested[i] < cycle or asked_at[i] >= began):
                scales.append(0.0)
                continue
            allowed = min(1.0, cap / withdrawn) if withdrawn > 0 else 1.0
            at_home = torch.exp(-(loss.detach() - entropy).clamp(min=0)).item()
            s = (1 + 16 * entropy / (entropy + 1)).item() * (1 - allowed * (1 - trust))
            s *= 1 if until_asked and times[i] else at_home
            messages.append([s * g for g in torch.autograd.grad(loss, list(net.parameters()))])
            sums += s * torch.bincount(y, minlength=K).double() / len(y)
            total += s
            trusts.append(trust)
            least = min(least, trust)
            held_back |= allowed < 1
            if times[i]:
                told.append((np.exp(-4 * max(0.0, excess)), excess))
            scales.append(s)
            sent[i] = t
        with torch.no_grad():
            for parameter, *parts in zip(net.parameters(), *messages, strict=True):
                parameter -= lr * sum(parts) / total
        if len(trusts) >= 3:
            shares, withdrawn = (shares + sums / sums.sum()) / 2, 1 - sum(trusts) / len(trusts)
            count = sum(u for u, _ in told)  # with one more client, whose excess is 0
            usual = sum(u * m for u, m in told) / count
            spread = (sum(u * (m - usual) ** 2 for u, m in told[1:]) / count) ** 0.5
        weights.append([s / total for s in scales])
    return net, weights, evidence, times, least, held_back


def trained(fed, rounds=ROUNDS, rule="fairmean-recess", **training):
    net = build_model(MLP, fed.shape, fed.classes, 3)
    settings = Training(**{"lr": 0.1, "rounds": rounds, **training})
    simulator = Simulator(fed, net, parse_method(rule), settings, dtype=torch.float64, seed=3, chunk=150)
    steps = [simulator.step(t) for t in range(rounds)]
    return simulator, steps[-1]


@pytest.mark.parametrize(
    ("theta", "cap", "until_asked"), [(0.4, 0.4, True), (0.02, 0.4, True), (0.02, 0.01, True), (0.02, 0.4, False)]
)
def test_it_is_what_a_plain_loop_says(theta, cap, until_asked):
    fed = draws()[0]
    net, weights, evidence, times, least, held_back = by_hand(fed, ROUNDS, theta, cap, until_asked)
    simulator, step = trained(
        fed, rule=f"fairmean-recess:theta={theta}:cap={cap}:until_asked={str(until_asked).lower()}"
    )
    assert (least < 0.9) == (theta < 0.1)  # somebody was distrusted
    assert held_back == (cap < 0.1)  # and got some of it back
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(simulator.w, flat, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(simulator.memory["evidence"], evidence, rtol=1e-8)
    np.testing.assert_allclose(simulator.memory["times"], times)
    np.testing.assert_allclose(step.weights, weights[-1], rtol=1e-9)
    assert min(times) > 0  # every client has been asked
    assert any(weight == 0 for row in weights for weight in row)  # and has been out for it


@pytest.mark.parametrize("mode", [{}, {"batch": 16, "participation": 0.5}, {"batch": 16, "local_steps": 3}])
def test_what_is_left_out_because_it_would_be_for_nobody_changes_nothing(mode, monkeypatch):
    """Where one may look, nothing is measured in rounds in which nobody is asked: to the bit as where one may not."""
    fed = draws()[0]
    looked, step = trained(fed, 60, **mode)
    assert looked.memory["times"].min() > 0
    known = Simulator.context
    monkeypatch.setattr(Simulator, "context", lambda *of: replace(known(*of), looks=False))
    other, same = trained(fed, 60, **mode)
    assert torch.equal(looked.w, other.w)
    assert all(torch.equal(value, other.memory[name]) for name, value in looked.memory.items())
    assert all(torch.equal(value, other.state.broadcast[name]) for name, value in looked.state.broadcast.items())
    assert torch.equal(torch.as_tensor(step.weights), torch.as_tensor(same.weights))


@pytest.mark.parametrize(
    ("mode", "rounds"),
    [
        ({}, 150),
        ({"batch": 32}, 150),
        ({"batch": 16, "local_steps": 4}, 60),
        ({"batch": 32, "participation": 0.5}, 240),
    ],
)
def test_poisoned_clients_are_found_in_every_way_of_training(mode, rounds):
    data = load("fashion-mnist-mini")
    options = {"alpha": 0.3}
    fed = build(data, attack="pairwise", poisoned=np.array([2, 5]), partition_seed=4, partition_options=options)
    simulator, _ = trained(fed, rounds, **mode)
    shown = simulator.shown()
    assert shown["excess"].isfinite().all()
    assert shown["excess"][~fed.regular].min() > shown["excess"][fed.regular].max()
    assert (shown["trust"][fed.regular] > shown["trust"][~fed.regular].max()).all()


@pytest.mark.usefixtures("here")
def test_what_is_recorded(own, capsys):
    config = {"data": {"name": own}, "model": {"name": "linear"}, "method": {"name": "fairmean-recess"}}
    config["train"] = {"rounds": 60, "device": "cpu"}
    run = fairmean.run(config)
    table = fairmean.load(run.folder).columns
    evaluated = np.isfinite(table["accuracy"])
    assert np.isnan(table["excess"][table["round"] < 10]).all()
    assert (table["trust"][evaluated & (table["round"] < 10)] == 1).all()
    assert np.isnan(table["trust"][~evaluated]).all()
    assert np.isfinite(table["excess"][table["round"] == 60]).all()


@pytest.mark.usefixtures("here")
def test_interrupted_and_resumed_it_is_the_same_to_the_bit(own):
    config = {"data": {"name": own}, "model": {"name": "linear"}, "method": {"name": "fairmean-recess"}}
    config["train"] = {"rounds": 40, "device": "cpu"}
    whole = fairmean.run({**config, "run": {"name": "whole"}})
    halves = {**config, "run": {"name": "halves"}}
    run_until(17, halves)
    resumed = fairmean.run(halves)
    assert whole.table.read_text() == resumed.table.read_text()


@pytest.mark.usefixtures("here")
def test_more_rounds_begin_anew(own):
    config = {"data": {"name": own}, "model": {"name": "linear"}, "method": {"name": "fairmean-recess"}}
    fairmean.run({**config, "train": {"rounds": 20, "device": "cpu"}})
    with pytest.warns(UserWarning, match="timetable that depends on the number of rounds"):
        fairmean.run({**config, "train": {"rounds": 30, "device": "cpu"}})


@pytest.mark.parametrize(
    ("hyper", "says"),
    [
        ({"turns": 1}, "turns = 1"),
        ({"cycles": 0}, "cycles = 0"),
        ({"begin": 0.8}, "less than until"),
        ({"until": 1.5}, "until = 1.5"),
        ({"rare": 0.0}, "rare = 0.0"),
        ({"recall": -1.0}, "recall = -1.0"),
        ({"theta": -0.1}, "theta = -0.1"),
        ({"cap": 2.0}, "cap = 2.0"),
        ({"floor": -0.5}, "floor = -0.5"),
        ({"beta_rest": -1.0}, "beta_rest = -1.0"),
    ],
)
def test_impossible_values_are_refused(hyper, says):
    with pytest.raises(UserError, match=says):
        method("fairmean-recess", **hyper)


def test_its_scale_needs_its_objective():
    with pytest.raises(UserError, match="objective=recess"):
        compose("fairmean-recess", "mean").rehearse(3)


def test_sequences_are_refused():
    with pytest.raises(UserError, match="one label per sample"):
        Recess().measure(torch.zeros(2, 5, 3), torch.zeros(2, 5), replace(context(0, 1, 1), broadcast={}))


def test_one_round_of_gradients_is_not_enough():
    with pytest.raises(UserError, match=r"fairmean\.Server"):
        fairmean.aggregate("fairmean-recess", torch.eye(4), torch.ones(4), entropies=torch.ones(4))


@pytest.mark.usefixtures("here")
def test_show_says_what_a_server_would_not_see(own, capsys):
    words = ["run", f"data.name={own}", "model.name=linear", "train.rounds=60", "train.device=cpu"]
    assert main([*words, "method.name=fairmean-recess", "run.name=told"]) == 0
    capsys.readouterr()
    assert main(["show", "runs/told"]) == 0
    page = capsys.readouterr().out
    assert "excess" in page
    assert "does not see loss, weight, excess and trust of a single client" in page
    assert main([*words, "method.name=mean", "run.name=plain"]) == 0
    capsys.readouterr()
    assert main(["show", "runs/plain"]) == 0
    assert "does not see" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["fairmean-recess", "fednoro", "antiflipper"])
def test_a_table_of_two_outcomes(name, tmp_path):
    """A model with a single output: two classes all the same."""
    random = np.random.default_rng(0)
    x = random.normal(size=(240, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    owner = np.repeat(np.arange(6), 40)
    rows = ["a,b,c,outcome,site"] + [
        f"{a:.4f},{b:.4f},{c:.4f},{'yes' if label else 'no'},s{site}"
        for (a, b, c), label, site in zip(x.tolist(), y.tolist(), owner.tolist(), strict=True)
    ]
    table = tmp_path / "patients.csv"
    table.write_text("\n".join(rows) + "\n")
    run = fairmean.run(
        data={"name": str(table), "target": "outcome", "client": "site"},
        method={"name": name}, train={"rounds": 40, "lr": 0.5, "device": "cpu"}, run={"dir": str(tmp_path / "runs")},
    )  # fmt: skip
    assert run.config.data.task == "binary"
    assert run.summary["average"] > 80


def test_too_few_clients_in_a_round_are_told():
    with pytest.raises(UserError, match="at least 3 clients in a round, and there are 2"):
        fairmean.run(method={"name": "fairmean-recess"}, train={"rounds": 2, "participation": 0.2})
