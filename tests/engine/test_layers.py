"""Every client's gradient from one pass, layer by layer: equal to autograd on the client alone, for any model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fairmean import method
from fairmean.data import Dataset
from fairmean.data.federation import build
from fairmean.engine import Simulator, Training
from fairmean.engine.layers import registry
from fairmean.engine.layers.hooks import Capture
from fairmean.engine.layers.registry import LAYERS, register_layer, rule_of, units
from fairmean.engine.net import Net


class Attending(nn.Module):
    """Tokens, positions, attention, a recurrent layer: layers with and without a rule, sequences in between."""

    def __init__(self, recurrent=False):
        super().__init__()
        self.table = nn.Embedding(12, 8, padding_idx=0)
        self.places = nn.Embedding(6, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.recurrent = nn.GRU(8, 8, batch_first=True) if recurrent else None
        self.wide = nn.Linear(8, 16)
        self.out = nn.Linear(16, 3)

    def forward(self, x):
        h = self.table(x.long()) + self.places(torch.arange(6, device=x.device).expand(len(x), -1))
        h = self.norm(h + self.attention(h, h, h, need_weights=False)[0])
        if self.recurrent is not None:
            h = self.recurrent(h)[0]
        return self.out(torch.relu(self.wide(h)).mean(1))


class Scaled(nn.Module):
    """A layer of a user's: it owns a parameter, and has no rule."""

    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x):
        return x * self.gain


def convolutions():
    return nn.Sequential(
        nn.Unflatten(1, (1, 6, 1)), nn.Conv2d(1, 4, (3, 1), padding=(1, 0)), nn.GroupNorm(2, 4), nn.ReLU(),
        nn.Flatten(), Scaled(24), nn.Linear(24, 3, bias=False),
    )  # fmt: skip


MODELS = {
    "attention": Attending,
    "recurrent": lambda: Attending(recurrent=True),
    "normalised convolutions": convolutions,
    "a layer of a user's": lambda: nn.Sequential(Scaled(6), nn.Linear(6, 3)),
}


@pytest.fixture(scope="module")
def federation():
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 12, size=(90, 6)).astype(np.float32), np.arange(90) % 3
    data = Dataset("tokens", x, y, x[:30], y[:30], 3)
    fed = build(data, clients=5, partition_options={"min_size": 4}, attack="pairwise", poisoned=np.array([4]))
    assert len(set(fed.sizes)) > 1
    return fed


def simulated(fed, make, engine, rule, **training):
    torch.manual_seed(0)
    chosen = Training(**{"lr": 0.05} | training)
    simulator = Simulator(fed, make(), rule, chosen, dtype=torch.float64, engine=engine, chunk=40)
    for t in range(3):
        simulator.step(t)
    return simulator


@pytest.mark.parametrize("training", [{}, {"batch": 4}], ids=["full", "minibatch"])
@pytest.mark.parametrize("name", ["krum:f=1", "cwtm", "fairmoo"])
@pytest.mark.parametrize("model", MODELS)
def test_equal_to_the_reference(federation, model, name, training):
    rule = method(name.partition(":")[0], **({"f": 1} if name != "fairmoo" else {}))
    fast, plain = (simulated(federation, MODELS[model], engine, rule, **training) for engine in ("fast", "reference"))
    assert fast.capture is not None
    assert (fast.w - plain.w).norm() <= 1e-9 * plain.w.norm()


def test_units_are_the_outermost_owners():
    model = Attending(recurrent=True)
    assert units(model) == [
        model.table,
        model.places,
        model.attention,
        model.norm,
        model.recurrent,
        model.wide,
        model.out,
    ]
    assert rule_of(model.attention) is None
    assert rule_of(model.norm) is LAYERS[nn.LayerNorm]
    assert rule_of(nn.modules.linear.NonDynamicallyQuantizableLinear(2, 2)) is LAYERS[nn.Linear]


def test_a_layer_type_in_one_function(monkeypatch, federation):
    """A rule of one's own is asked, and serves; without it autograd gives the same."""
    monkeypatch.setattr(registry, "LAYERS", dict(LAYERS))
    without = simulated(federation, MODELS["a layer of a user's"], "fast", method("krum", f=1))
    asked = []

    @register_layer(Scaled)
    def scaled(layer, x, delta, bounds, out):
        asked.append(len(bounds) - 1)
        registry.sum_rows(delta * x, bounds, out[0])

    monkeypatch.setitem(LAYERS, Scaled, scaled)
    with_rule = simulated(federation, MODELS["a layer of a user's"], "fast", method("krum", f=1))
    assert asked
    assert (with_rule.w - without.w).norm() <= 1e-12 * without.w.norm()


def test_a_rule_that_declines_leaves_the_layer_to_autograd(federation):
    """Circular padding has no rule; its layer alone is run again, and the others keep theirs."""

    def make():
        circular = nn.Conv2d(1, 4, (3, 1), padding=(1, 0), padding_mode="circular")
        return nn.Sequential(nn.Unflatten(1, (1, 6, 1)), circular, nn.Flatten(), nn.Linear(24, 3))

    fast, plain = (simulated(federation, make, engine, method("krum", f=1)) for engine in ("fast", "reference"))
    assert fast.capture is not None
    assert (fast.w - plain.w).norm() <= 1e-9 * plain.w.norm()


class Mixing(nn.Module):
    """Looks at other samples of the batch: no client's gradient can be had from a pass it shares."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x - x.mean(0, keepdim=True))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.two.weight = self.one.weight
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.two(torch.relu(self.one(x))))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.one(torch.relu(self.one(x))))


@pytest.mark.parametrize("kind", [Mixing, Tied, Twice])
def test_models_that_cannot(federation, kind):
    fed = replace(federation, x=federation.x / 12)
    net = Net(kind(), dtype=torch.float64)
    assert not Capture(net).fits(fed.x.double())
    if kind is not Mixing:  # whose loss is another one in every batch
        fast, plain = (simulated(fed, kind, engine, method("krum", f=1)) for engine in ("fast", "reference"))
        assert (fast.w - plain.w).norm() <= 1e-9 * plain.w.norm()
