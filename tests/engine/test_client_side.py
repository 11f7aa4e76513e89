"""What clients measure, remember and add to their messages; and what it means to be out of a round.

That every path does the same is tested where all methods are (test_paths, test_fleet, test_bounded, test_cuda,
test_distributed); here a plain loop says what that is.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fairmean
from fairmean import CrossEntropy, LossRule, Method, Scale, Server, UserError, gathered
from fairmean.models import build as build_model
from fairmean.rules.servers.means import Mean
from fairmean.terminal.main import main
from fairmean.theory.measure.monitor import Monitor
from tests.engine.test_fleet import draws
from tests.engine.test_objective import run_until
from tests.engine.test_paths import METHODS, MLP, MODES, Holiday, simulate
from tests.own import turns


def by_hand(fed, rounds, lr=0.1):
    """Round after round of tests/own/turns.py, written out with no more than autograd."""
    net = build_model(MLP, fed.shape, fed.classes, 3).double()
    n, K = fed.clients, fed.classes
    odd, last, shares = torch.zeros(n).double(), torch.full((n,), -1), torch.ones(K).double()
    figures = []
    for t in range(rounds):
        direction, total, sums, losses, scales = None, 0.0, torch.zeros(K).double(), [], []
        for i in range(n):
            rows = slice(int(fed.offsets[i]), int(fed.offsets[i + 1]))
            logits, y = net(fed.x[rows].double()), fed.y[rows]
            loss = F.cross_entropy(logits, y)
            losses.append(loss.item())
            if t - last[i] > 1:
                p = shares / shares.sum()
                odd[i] = F.cross_entropy(logits.detach() - torch.log(p + 0.01), y)
            if (t // 2) % 3 == i % 3:  # out: measured, and no more
                scales.append(0.0)
                continue
            s = torch.exp(-odd[i]).item()
            gradient = torch.autograd.grad(loss, list(net.parameters()))
            scaled = [s * g for g in gradient]
            direction = scaled if direction is None else [a + b for a, b in zip(direction, scaled, strict=True)]
            total += s
            sums += s * torch.bincount(y, minlength=K).double() / len(y)
            last[i] = t
            scales.append(s)
        with torch.no_grad():
            for parameter, d in zip(net.parameters(), direction, strict=True):
                parameter -= lr * d / total
        shares = sums
        figures.append((losses, [s / total for s in scales]))
    return net, figures, odd, last, shares


def test_turns_are_what_a_plain_loop_says():
    fed = draws()[0]
    net, figures, odd, last, shares = by_hand(fed, 9)
    simulator, step = simulate(fed, METHODS["turns"], 9, chunk=150)
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(simulator.w, flat, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(step.losses, figures[-1][0], rtol=1e-9)
    np.testing.assert_allclose(step.weights, figures[-1][1], rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(simulator.memory["odd"], odd, rtol=1e-9)
    assert simulator.memory["last_sent"].tolist() == last.tolist()
    np.testing.assert_allclose(simulator.state.broadcast["shares"], shares, rtol=1e-9)
    assert len({*odd.tolist()}) == 6  # every client has been away
    assert (np.asarray(step.weights) == 0).sum() == 2


@dataclass(frozen=True)
class Chosen(Scale):
    """s_i as given; some may be 0."""

    given: tuple[float, ...] = (1.0, 0.0, 2.0, 0.0)

    def __call__(self, losses, means, context):
        return torch.tensor(self.given, dtype=torch.float64)[context.clients]


@dataclass(frozen=True)
class LargestLoss(LossRule):
    """All weight on the largest loss."""

    def weights(self, round):
        assert (round.losses < 4).all()  # those that are out are not seen
        return (round.losses == round.losses.max()).double()


G, LOSSES = torch.eye(4), torch.tensor([1.0, 9.0, 3.0, 9.0])


def update(rule, given=(1.0, 0.0, 2.0, 0.0), optimiser=None, state=None, objective=CrossEntropy()):  # noqa: B008
    server = Server(Method("chosen", Chosen(given), rule, objective=objective), optimiser)
    return server.update(gathered(G, LOSSES), state or server.init(4, 4), lr=0.1)


@pytest.mark.parametrize(
    ("rule", "direction"),
    [
        (Mean(), [0.5, 0, 1.0, 0]),  # a mean over those that sent
        (LargestLoss(), [0, 0, 2.0, 0]),
        (fairmean.method("rfa").aggregator, [0.5, 0, 1.0, 0]),
        (fairmean.method("median").aggregator, [0.5, 0, 1.0, 0]),
    ],
    ids=["mean", "loss", "rfa", "median"],
)
def test_who_is_out_is_not_seen_by_the_rule(rule, direction):
    outcome = update(rule)
    torch.testing.assert_close(outcome.direction, torch.tensor(direction), rtol=1e-5, atol=1e-5)
    if outcome.weights is not None:
        assert (outcome.weights[[1, 3]] == 0).all()
    assert outcome.memory["last_sent"].tolist() == [0, -1, 0, -1]


@pytest.mark.parametrize("rule", [Mean(), LargestLoss(), fairmean.method("median").aggregator])
@pytest.mark.parametrize("optimiser", ["plain", "momentum", "adam"])
def test_when_everybody_is_out_nothing_moves(rule, optimiser):
    before = update(rule, optimiser=optimiser)
    after = update(rule, (0.0,) * 4, optimiser, before.state)
    assert (after.direction == 0).all()
    for known, new in zip(before.state, after.state, strict=True):
        assert all(torch.equal(known[key], new[key]) for key in known)


@pytest.mark.parametrize("mode", ["full", "minibatch", "local", "partial"])
@pytest.mark.parametrize("rule", ["mean", "loss-rule", "rfa", "median", "nnm+mean"])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_round_without_anybody(rule, mode, normalised, engine, monkeypatch):
    """In a simulator, in every path: the model stays, and nothing becomes NaN."""
    monkeypatch.setattr(Holiday, "normalised", normalised)
    whole = METHODS[rule]
    holiday = Method("holiday", Holiday(), whole.aggregator, whole.pre)
    known = {"engine": engine, **MODES[mode]}
    if engine == "fast":
        known["chunk"] = 60
    simulator, _ = simulate(draws()[0], holiday, 1, **known)
    after = simulator.w.clone()
    assert (simulator.step(1).losses > 0).all()
    assert torch.equal(simulator.w, after)
    simulator.step(2)
    assert simulator.w.isfinite().all()
    assert not torch.equal(simulator.w, after)


def test_the_theory_of_clients_that_remember():
    """What is measured of poisoned clients with their true labels is asked with what those clients know."""
    simulator, _ = simulate(draws()[0], METHODS["turns"], 0)
    simulator.watch(Monitor, 1)
    assert simulator.step(0).measured.isfinite().any()


def test_too_few_senders_for_a_rule_is_said():
    with pytest.raises(UserError, match="f = 1: with 2 clients"):
        update(fairmean.method("krum", f=1).aggregator)


@dataclass(frozen=True)
class Counting(Chosen):
    """Clients send 1 each, and the server passes the sum on, if there are at least three."""

    fewest = 3

    def side(self, scales, means, context):
        return {"count": torch.ones_like(scales)}

    def start(self, classes):
        return {"count": torch.zeros((), dtype=torch.float64)}


@pytest.mark.parametrize("rule", [Mean(), LargestLoss()])
def test_a_broadcast_stays_when_few_sent(rule):
    for given, count in (((1.0, 0.0, 2.0, 1.0), 3), ((1.0, 0.0, 2.0, 0.0), 0)):
        server = Server(Method("counting", Counting(given), rule))
        losses = torch.tensor([1.0, 3.5, 3.0, 2.0])
        assert server.update(gathered(G, losses), server.init(4, 4), lr=0.1).state.broadcast["count"] == count


TURNS = Path(turns.__file__).read_text()


@pytest.mark.usefixtures("here", "forget_modules", "registries")
class TestInOneFile:
    """tests/own/turns.py as a user's file: on the command line, among others, and after an interruption."""

    def settings(self, own):
        return {
            "data": {"name": own},
            "model": {"name": "linear"},
            "method": {"name": "trusted", "scale": "turns", "aggregator": "mean", "objective": "turns"},
            "train": {"rounds": 12},
        }

    def test_run_and_compare(self, own, capsys):
        assert len(TURNS.splitlines()) <= 40
        Path("my_turns.py").write_text(TURNS)
        words = ["--import", "my_turns", f"data.name={own}", "model.name=linear", "train.rounds=7"]
        assert main(["run", *words, "method.objective=turns", "method.scale=turns", "method.aggregator=mean"]) == 0
        chosen = "mean,turns+mean:objective=turns,turns+rfa:objective=turns"
        assert main(["compare", *words, "--methods", chosen, "--attacks", "none"]) == 0
        assert "turns+rfa" in capsys.readouterr().out

    def test_an_interrupted_run_ends_as_if_it_had_not_been(self, own):
        Path("my_turns.py").write_text(TURNS)
        fairmean.importing.import_module("my_turns")
        config = self.settings(own) | {"server": {"name": "momentum", "beta": 0.5}}
        whole = fairmean.run(config, run={"dir": "whole"})
        run_until(5, config)
        checkpoint = torch.load(next(Path("runs").rglob("checkpoint.pt")))
        assert set(checkpoint["memory"]) == {"odd", "last_sent"}
        assert set(checkpoint["optimiser"]) == {"m"}
        assert checkpoint["broadcast"]["shares"].sum() > 0
        assert fairmean.run(config).table.read_bytes() == whole.table.read_bytes()

    @pytest.mark.parametrize("part", ["memory", "optimiser", "broadcast"])
    def test_a_checkpoint_without_a_memory_is_damaged(self, own, part):
        Path("my_turns.py").write_text(TURNS)
        fairmean.importing.import_module("my_turns")
        config = self.settings(own) | {"server": {"name": "momentum"}}
        run_until(5, config)
        file = next(Path("runs").rglob("checkpoint.pt"))
        checkpoint = torch.load(file)
        del checkpoint[part]
        torch.save(checkpoint, file)
        with pytest.raises(UserError, match=r"checkpoint\.pt' is damaged"):
            fairmean.run(config)

    @pytest.mark.parametrize(
        ("find", "put", "says"),
        [
            ('{"odd": torch.zeros(n, dtype=torch.float64)}', "None", "objective .* returned nothing, not a dictionary"),
            ("torch.zeros(n, dtype=torch.float64)}", "torch.zeros(3)}", r"objective .* 'odd' of shape \(3,\)"),
            (
                '{"odd": torch.where(context.t - context.last_sent > 1, means["odd"], memory["odd"])}',
                "{}",
                "a memory of",
            ),
            ('memory["odd"])', 'memory["even"])', "objective .* failed .KeyError: 'even'"),
            ("torch.ones(classes", "torch.ones(2 * classes", "failed|other names or shapes"),
            ('{"shares": scales[:, None] * means["shares"]}', "5", "scale .* returned a int, not a dictionary"),
            ('scales[:, None] * means["shares"]', 'means["shares"].sum(0)', "scale .* returned 'shares' of shape"),
            ('{"odd": odd, "shares"', '{"odd": odd[:1], "shares"', "objective .* returned 'odd' of shape"),
            ("def measure(self, logits, y, context)", "def measure(self, logits, y)", "objective .* failed .TypeError"),
            (
                "def __call__(self, losses, means, context)",
                "def __call__(self, losses, entropies)",
                "scale .*TypeError",
            ),
        ],
    )
    def test_what_misbehaves_is_named(self, own, find, put, says):
        assert find in TURNS
        Path("bad_turns.py").write_text(TURNS.replace(find, put))
        fairmean.importing.import_module("bad_turns")
        with pytest.raises(UserError, match=says):
            fairmean.run(self.settings(own))
        assert not Path("runs").exists()


@dataclass(frozen=True)
class Whose(CrossEntropy):
    """A loss that depends on whose a sample is."""

    def losses(self, logits, y, context):
        return F.cross_entropy(logits, y, reduction="none") * context.per_row(1 + context.sizes)


def test_the_servers_own_samples_are_nobodys():
    rule = Method("whose", METHODS["mean"].scale, fairmean.method("bant").aggregator, objective=Whose())
    with pytest.raises(UserError, match="whose looks at samples that the server owns"):
        simulate(draws()[0], rule, 1)
