"""Runs that advance together give what each gives alone."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from fairmean import Method, Scale, method
from fairmean.data import load
from fairmean.data.federation import Federation, build
from fairmean.engine.fleet.cuda_graph import Graphed
from fairmean.engine.fleet.fleet import Fleet, stack_key
from fairmean.engine.fleet.local_stack import LocalStack
from fairmean.engine.fleet.mlp_shape import linear_layers
from fairmean.engine.fleet.stack import Stack
from fairmean.engine.fleet.vmapped_rule import vectorises
from fairmean.engine.kernels.linear_relu import gated_product
from fairmean.engine.precision import PRECISIONS
from fairmean.engine.server import Server
from fairmean.rules.round import NO_ACCESS, Rung
from tests.engine.test_paths import METHODS, MODES, simulate, small_cnn

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"))
DEVICES = ["cpu", CUDA]
LOCAL = {
    "epochs": {"local_epochs": 2, "batch": 32},
    "proximal": {"local_epochs": 1, "batch": 32, "proximal": 0.3, "weight_decay": 0.05, "participation": 0.7},
    "momentum": {"local_steps": 3, "batch": 32, "client_momentum": 0.9, "proximal": 0.3, "weight_decay": 0.05},
}


def draws(device="cpu", dtype=torch.float64):
    """One draw under four attacks, inputs shared; and another draw."""
    data, first = load("fashion-mnist-mini"), None
    data = replace(data, train_x=data.train_x[:500], train_y=data.train_y[:500])
    result = []
    for attack, seed in (("pairwise", 1), ("furthest", 1), ("none", 1), ("adaptive", 1), ("random", 2)):
        known = {"clients": 6, "attack": attack, "poisoned": np.array([4, 5]), "partition_seed": seed}
        result.append(build(data, trust=60, like=first, **known).to(device, dtype))
        first = result[0]
    return result


@pytest.fixture(scope="module")
def federations():
    return draws()


def advance(fleet, rounds, every=1):
    return list(fleet.rounds(0, rounds, lambda t: t % every == 0, lambda t: t == 1))


def test_inputs_are_shared(federations):
    assert federations[0].x is federations[1].x
    assert federations[0].test_x is federations[2].test_x
    assert federations[0].x is not federations[4].x


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", MODES)
def test_together_equals_alone(mode, device):
    """Every method at once, in float64: losses, weights, parameters, accuracies."""
    options, federations = {"device": device, **MODES[mode]}, draws(device)
    names = list(METHODS) if mode == "full" else ["mean", "fairmean", "krum", "fedmgda+", "bant", "cwtm"]
    pairs = [(METHODS[name], fed) for name in names for fed in federations]
    group = [simulate(fed, rule, 0, **options)[0] for rule, fed in pairs]
    fleet = Fleet(group)
    stacked = sum(isinstance(part, Stack) for part, _ in fleet.parts)
    assert stacked == (0 if mode.startswith("local") and device == "cpu" else 2)  # two draws
    done = advance(fleet, 4)
    for i, (rule, fed) in enumerate(pairs):
        alone, last = simulate(fed, rule, 4, **options)
        assert (group[i].w - alone.w).norm() <= 1e-9 * alone.w.norm(), rule.name
        np.testing.assert_allclose(done[-1].steps[i].losses, last.losses.cpu(), rtol=1e-8)
        if last.weights is None:
            assert done[-1].steps[i].weights is None
        else:
            np.testing.assert_allclose(done[-1].steps[i].weights, last.weights.cpu(), rtol=1e-6, atol=1e-9)
        for key, value in alone.state.rule.items():
            torch.testing.assert_close(group[i].state.rule[key].to(value), value, rtol=1e-9, atol=1e-12)
    if mode == "full":  # rules on losses alone make stacks of another kind
        few = [simulate(fed, METHODS[n], 0, **options)[0] for n in ("mean", "term", "entropy") for fed in federations]
        fleet = Fleet(few)
        assert all(part.pooled for part, _ in fleet.parts)
        advance(fleet, 4)
        every = {(rule.name, id(fed)): simulator for (rule, fed), simulator in zip(pairs, group, strict=True)}
        for simulator, key in zip(
            few, [(n, id(f)) for n in ("mean", "term", "entropy") for f in federations], strict=True
        ):
            assert (simulator.w - every[key].w).norm() <= 1e-9 * simulator.w.norm()
    fresh = [simulate(fed, rule, 0, **options)[0] for rule, fed in pairs[:4]]
    for i, simulator in enumerate(fresh):
        np.testing.assert_allclose(done[0].accuracies[i], simulator.evaluate())


STACKS = {
    "sees messages": ["fairmean", "term", "krum", "cwtm", "fedmdfg", "fednoro", "weights+cwtm"],
    "sees losses": ["mean", "term", "loss-rule", "weights"],
    "out": ["turns", "holiday", "entropy", "fairmean-recess"],
}


@pytest.fixture
def local_on_cpu(monkeypatch):
    monkeypatch.setattr("fairmean.engine.fleet.fleet.LOCAL_ON", ("cuda", "cpu"))


CELLS = [
    pytest.param(length, names, marks=() if length == "epochs" or names == "sees messages" else pytest.mark.exhaustive)
    for length in LOCAL
    for names in STACKS
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("length", "names"), CELLS)
def test_local_training_together_equals_alone(length, names, device, local_on_cpu):
    """Clients with different numbers of steps, runs with different step sizes; rules that remember, and that drop."""
    federations, known = draws(device), {"device": device, **LOCAL[length]}
    methods = [METHODS[name] if name in METHODS else method(name) for name in STACKS[names]]
    pairs = [(rule, fed, 0.05 * (1 + i % 2)) for i, fed in enumerate(federations[:4]) for rule in methods]
    group = [simulate(fed, rule, 0, lr=lr, **known)[0] for rule, fed, lr in pairs]
    fleet = Fleet(group)
    assert [type(part) for part, _ in fleet.parts] == [LocalStack]
    assert fleet.parts[0][0].pooled == (names != "sees messages")
    done = advance(fleet, 4)
    if device == "cuda":  # batches are as long in every round, unless who takes part differs
        assert (fleet.parts[0][0]._graph is not None) == (length != "proximal")
    for simulator, step, (rule, fed, lr) in zip(group, done[-1].steps, pairs, strict=True):
        alone, last = simulate(fed, rule, 4, lr=lr, **known)
        assert (simulator.w - alone.w).norm() <= 1e-9 * alone.w.norm(), rule.name
        np.testing.assert_allclose(step.losses, last.losses.cpu(), rtol=1e-8)
        if last.weights is not None:
            np.testing.assert_allclose(step.weights, last.weights.cpu(), rtol=1e-6, atol=1e-9)
        for key, value in alone.memory.items():
            torch.testing.assert_close(simulator.memory[key].to(value), value, rtol=1e-9, atol=1e-12)


def test_a_plan_is_made_once_for_batches_of_the_same_lengths(local_on_cpu):
    fed = draws()[0]
    for length, made in (("epochs", 1), ("momentum", 1), ("proximal", 3)):  # there clients take turns, and sizes differ
        stack = Fleet([simulate(fed, METHODS["mean"], 0, **LOCAL[length])[0] for _ in range(2)]).parts[0][0]
        plans = []
        for t in range(3):
            stack.launch(t)
            plans += [stack._plan] if stack._plan not in plans else []
        assert len(plans) == made, length


@dataclass(frozen=True)
class WithoutFirst(Scale):
    """Client 0 is always out."""

    def __call__(self, losses, means, context):
        return torch.where(context.clients == 0, 0.0, torch.ones_like(losses))


@pytest.mark.parametrize("device", DEVICES)
def test_what_becomes_of_a_client_that_is_out_is_nothing_to_the_others(device, local_on_cpu):
    fed = draws(device)[0]
    fed.x[: fed.offsets[1]] *= 1e200  # its own steps end in numbers that are none
    rule = Method("without first", WithoutFirst(), method("mean").aggregator)
    known = {"device": device, **LOCAL["epochs"]}
    group = [simulate(fed, rule, 0, **known)[0] for _ in range(2)]
    advance(Fleet(group), 2)
    alone, _ = simulate(fed, rule, 2, **known)
    assert alone.w.isfinite().all()
    assert (group[0].w - alone.w).norm() <= 1e-9 * alone.w.norm()


def test_which_runs_with_local_training_are_stacked(federations, local_on_cpu, monkeypatch):
    def key(fed=federations[0], name="mean", **more):
        return stack_key(simulate(fed, METHODS[name], 0, **{**LOCAL["epochs"], **more})[0])

    assert key()[0] == "local"
    assert key(local_epochs=1) != key()
    assert key(name="turns")[0] != key()[0]
    assert key(name="turns+rfa") is None  # a rule that sees who is out
    shared = [replace(federations[0], places=torch.randperm(len(federations[0].x)).int()) for _ in range(2)]
    assert key(shared[0]) != key(shared[1])
    monkeypatch.setattr("fairmean.engine.fleet.fleet.memory", lambda device: 2**20)
    assert key() is None
    monkeypatch.undo()
    assert key() is None  # on a CPU each run keeps to its cache


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_precisions(dtype, device):
    """Rounds at small steps, where rounding errors do not grow: near float64."""
    rounds, tolerance = {"bfloat16": (10, 3e-2), "tf32": (10, 3e-3), "float32": (50, 1e-3)}.get(dtype, (3, 1e-9))
    names = ["mean", "fedavg", "qffl", "fairmean", "fedmgda+", "adafed", "h-nobs", "qffl+cwtm"]
    rounds = rounds if device == "cuda" else min(rounds, 5)
    federations = draws(device, PRECISIONS[dtype].dtype)
    group = [
        simulate(federations[0], METHODS[name], 0, lr=0.02, dtype=None, precision=PRECISIONS[dtype], device=device)[0]
        for name in names
    ]
    start = group[0].w.clone()
    advance(Fleet(group), rounds, 100)
    for name, simulator in zip(names, group, strict=True):
        exact, _ = simulate(federations[0], METHODS[name], rounds, lr=0.02, device=device)
        moved = (exact.w - start.double()).norm()
        assert (simulator.w - exact.w).norm() <= tolerance * exact.w.norm(), name
        assert (simulator.w - exact.w).norm() <= 0.5 * moved, name


@pytest.mark.parametrize("dtype", ["bfloat16", "tf32"])
@pytest.mark.parametrize("name", ["fairmean", "krum"])
@pytest.mark.parametrize("model", ["mlp", "small"])
def test_reduced_precision_alone(federations, name, dtype, model, monkeypatch):
    """A run on its own at reduced precision is near float32, for any model."""
    monkeypatch.setitem(simulate.__globals__["build_model"].__globals__["MODELS"], "small", small_cnn)
    low, a = simulate(federations[0], METHODS[name], 1, model=model, dtype=None, precision=PRECISIONS[dtype])
    full, b = simulate(federations[0], METHODS[name], 1, model=model, dtype=torch.float32)
    torch.testing.assert_close(a.losses, b.losses, rtol=2e-2, atol=2e-2)
    assert (low.w - full.w).norm() <= 1e-2 * full.w.norm()
    assert low.w.dtype == torch.float32


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("mode", ["full", "minibatch"])
def test_graph_equals_plain(federations, name, mode, device, monkeypatch):
    """On a CPU there is no graph, but the same order of things: passes, the rule inside them or afterwards."""
    monkeypatch.setitem(simulate.__globals__["build_model"].__globals__["MODELS"], "small", small_cnn)
    for fed in federations[1:3]:
        options = {"model": "small", "device": device, **MODES[mode]}
        graphed, _ = simulate(fed, METHODS[name], 0, **options)
        if not Graphed.takes(graphed):  # a loss rule with a state
            assert METHODS[name].rung <= Rung.LOSSES
            continue
        fleet = Fleet([graphed])
        if device == "cpu":
            fleet.parts = [(Graphed(graphed), [0])]
        assert isinstance(fleet.parts[0][0], Graphed)
        done = list(fleet.rounds(0, 6, lambda t: False, lambda t: t == 1))
        plain, last = simulate(fed, METHODS[name], 6, **options)
        assert (graphed.w - plain.w).norm() <= 1e-9 * plain.w.norm()
        assert device == "cpu" or fleet.parts[0][0]._graph
        np.testing.assert_allclose(done[-1].steps[0].losses, last.losses.cpu(), rtol=1e-8)
        assert (last.weights is None) == (done[-1].steps[0].weights is None)
        if last.weights is not None:
            np.testing.assert_allclose(done[-1].steps[0].weights, last.weights.cpu(), rtol=1e-6, atol=1e-9)
        assert set(graphed.state.rule) == set(plain.state.rule)
        for key, value in plain.state.rule.items():
            torch.testing.assert_close(graphed.state.rule[key].cpu(), value.cpu(), rtol=1e-8, atol=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("name", ["adafed", "fedmgda+", "cwtm", "h-nobs"])
def test_several_graphs_with_their_rules(federations, name, monkeypatch):
    """The second run is recorded after the first one's solver was on another stream."""
    monkeypatch.setitem(simulate.__globals__["build_model"].__globals__["MODELS"], "small", small_cnn)
    options = {"model": "small", "device": "cuda", "batch": 16}
    steps = (0.1, 0.05, 0.02)
    runs = [simulate(federations[0], METHODS[name], 0, lr=lr, **options)[0] for lr in steps]
    fleet = Fleet(runs)
    advance(fleet, 5, every=10)
    for lr, run, (part, _) in zip(steps, runs, fleet.parts, strict=True):
        assert part._graph
        assert part._inside == (name != "fedmgda+")
        plain, _ = simulate(federations[0], METHODS[name], 5, lr=lr, **options)
        assert (run.w - plain.w).norm() <= 1e-9 * plain.w.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_one_step_in_two_ways_and_two_precisions(device):
    """q-FFL by one weighted pass, and as H-nobs told f = 0 from every client's gradient: none is biased."""
    random, clients, each = torch.Generator().manual_seed(0), 4, 256 if device == "cuda" else 12
    x = torch.randn(clients * each, 3, 32, 32, generator=random).contiguous(memory_format=torch.channels_last)
    y, bounds = torch.randint(0, 10, (len(x),), generator=random), np.arange(clients + 1) * each
    none = np.array([], dtype=np.int64)
    tests = (x[:clients], y[:clients], y[:clients], np.arange(clients + 1))
    fed = Federation(x, y, y, bounds, np.ones(clients, bool), *tests, 10, none, none)

    def step(rule, precision):
        known = PRECISIONS[precision]
        kwargs = {"dtype": known.dtype, "precision": known, "lr": 0.1, "device": device}
        one = simulate(fed.to(device, known.dtype), rule, 0, model="cnn", **kwargs)[0]
        start = one.w.clone()
        advance(Fleet([one]), 1)
        return (one.w - start).double()

    def near(found, right, error, bias):
        assert (found - right).norm() <= error * right.norm()
        assert abs(found @ right / (right @ right) - 1) <= bias

    one_pass, by_client = method("qffl", q=0.5), method("h-nobs", q=0.5, f=0)
    # among millions of pooled squares even float32 finds another maximum in some: 1.5e-3 of a step on a GPU
    exact, mixed = step(one_pass, "float64"), step(one_pass, "bfloat16")
    near(step(by_client, "float64"), exact, 1e-10, 1e-12)
    near(step(by_client, "bfloat16"), mixed, 3e-2, 5e-3)
    near(mixed, exact, 0.15, 1e-2)  # bfloat16 finds another maximum in some of the pooled squares


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["fairmean", "krum"])
def test_graph_of_several_parts(federations, name, device, monkeypatch):
    monkeypatch.setitem(simulate.__globals__["build_model"].__globals__["MODELS"], "small", small_cnn)
    options = {"model": "small", "device": device}
    graphed, _ = simulate(federations[0], METHODS[name], 0, chunk=50, **options)
    fleet = Fleet([graphed])
    fleet.parts = [(Graphed(graphed), [0])]
    advance(fleet, 4)
    plain, _ = simulate(federations[0], METHODS[name], 4, **options)
    assert (graphed.w - plain.w).norm() <= 1e-9 * plain.w.norm()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_product(device, dtype):
    random = torch.Generator().manual_seed(0)
    for rows, runs, k, units in ((300, 3, 16, 208), (129, 2, 208, 208), (64, 1, 40, 24)):
        a, b, h = (
            torch.randn(*shape, generator=random).to(device, dtype)
            for shape in ((rows, runs, k), (runs, k, units), (rows, runs, units))
        )
        exact = torch.einsum("nrk,rkj->nrj", a.double(), b.double())
        for gate, want in ((None, exact.relu()), (h, exact * (h > 0))):
            out = torch.full_like(h, torch.nan)
            gated_product(a, b, gate, out, fused=True)
            assert (out.double() - want).norm() <= 1e-2 * want.norm()
            gated_product(a.transpose(0, 1).contiguous().transpose(0, 1), b, gate, out, fused=True)
            assert (out.double() - want).norm() <= 1e-2 * want.norm()


def test_trying_a_rule_on_losses_takes_no_room():
    """Its gradients are never formed: a million clients with a million parameters."""
    assert vectorises(Server("fairmean"), 10**6, 10**6, 10, NO_ACCESS)
    assert vectorises(Server(method("krum", f=1)), 5, 100, 10, NO_ACCESS)
    assert not vectorises(Server("fedmgda+"), 5, 100, 10, NO_ACCESS)


class Own(nn.Sequential):
    """Its forward is its own."""


def test_which_models_are_stacked():
    twice = nn.Linear(3, 3)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))
    layers = linear_layers(flat)
    assert [(x.inputs, x.outputs, x.bias is None) for x in layers] == [(6, 3, False), (3, 2, True)]
    assert layers[-1].weight.stop == sum(p.numel() for p in flat.parameters())
    for other in (
        nn.Linear(3, 2),
        nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(6, 3), nn.ReLU()),
        nn.Sequential(),
        Own(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 2)),
        nn.Sequential(twice, nn.ReLU(), twice),
        nn.Sequential(nn.Linear(6, 3).requires_grad_(False), nn.ReLU(), nn.Linear(3, 2)),
    ):
        assert linear_layers(other) is None


def test_a_run_at_its_end_is_left_alone(federations):
    done, _ = simulate(federations[0], method("mean"), 4)
    before = done.w.clone()
    assert list(Fleet([done]).rounds(4, 4, lambda t: True, lambda t: False)) == []
    assert torch.equal(done.w, before)


def test_borders_tell_draws_apart(federations):
    """The same samples in the same order, divided otherwise."""
    other = replace(federations[2], offsets=federations[2].offsets.copy())
    other.offsets[1] += 1
    group = [simulate(fed, method("fairmean"), 0)[0] for fed in (federations[2], other)]
    fleet = Fleet(group)
    assert len(fleet.parts) == 2
    advance(fleet, 2)
    alone, _ = simulate(other, method("fairmean"), 2)
    assert (group[1].w - alone.w).norm() <= 1e-12 * alone.w.norm()


@pytest.mark.parametrize("name", ["fairmean", "krum"])
def test_frozen_layers_stay(federations, name, monkeypatch):
    def frozen(shape, classes):
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, classes))
        model[1].requires_grad_(False)
        return model

    monkeypatch.setitem(simulate.__globals__["build_model"].__globals__["MODELS"], "frozen", frozen)
    group = [simulate(fed, METHODS[name], 0, model="frozen")[0] for fed in federations]
    advance(Fleet(group), 3)
    for simulator, fed in zip(group, federations, strict=True):
        alone, _ = simulate(fed, METHODS[name], 3, model="frozen")
        assert torch.equal(simulator.w, alone.w)


def test_a_run_that_blows_up_harms_no_other(federations):
    """Not-a-number stays within its run."""
    fine = [simulate(federations[0], METHODS[name], 0)[0] for name in ("mean", "krum", "adafed")]
    wild = [simulate(federations[0], METHODS[name], 0, lr=1e300)[0] for name in ("mean", "krum", "adafed", "fedmgda+")]
    advance(Fleet([*wild, *fine]), 4, 100)
    for simulator in fine:
        alone, _ = simulate(federations[0], simulator.method, 4)
        assert (simulator.w - alone.w).norm() <= 1e-9 * alone.w.norm()
    assert not any(simulator.w.isfinite().all() for simulator in wild)


def test_rest_leaves_everyone_after_the_round(federations):
    group = [simulate(fed, method("fairmean"), 0)[0] for fed in federations]
    fleet = Fleet(group)
    for done in fleet.rounds(0, 3, lambda t: False, lambda t: t == 1):
        if done.t == 1:
            break
    for simulator, fed in zip(group, federations, strict=True):
        alone, _ = simulate(fed, method("fairmean"), 2)
        assert (simulator.w - alone.w).norm() <= 1e-12 * alone.w.norm()
