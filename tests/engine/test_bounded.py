"""Rules on per-client gradients in less room than these take: the same results."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fairmean import Access, CoordinateRule, Method, method
from fairmean.engine.fleet import vmapped_rule as vectorised
from fairmean.engine.fleet.fleet import Alone, Fleet
from fairmean.engine.paths.in_parts import fits
from fairmean.engine.server import Server
from fairmean.errors import UserError
from fairmean.rules.scales import Unscaled
from tests.engine.test_fleet import draws
from tests.engine.test_paths import METHODS, MODES, simulate

PARTS = [name for name, rule in METHODS.items() if fits(rule) and rule.rung > 1]


@pytest.fixture(scope="module")
def federations():
    return draws()


def test_which_can():
    assert {"krum", "adafed", "fedmgda+", "rfa", "h-nobs", "cwtm", "median", "qffl+cwtm", "nnm+mean"} <= set(PARTS)
    assert not {"fedlf", "bant", "fedmdfg", "lfighter", "centered-clipping", "nnm+median"} & set(PARTS)


@pytest.mark.parametrize("mode", ["full", "minibatch", "partial"])
@pytest.mark.parametrize("name", PARTS)
def test_bounded_equals_whole(federations, name, mode):
    for fed in federations[:2]:
        whole, a = simulate(fed, METHODS[name], 3, **MODES[mode])
        for clients in (2.1, 4.5):  # room for so many gradients, of three or six
            room = clients * len(whole.w) * 8 / 2**30
            if len(whole.participants(0)) <= clients:
                continue
            parts, b = simulate(fed, METHODS[name], 3, room=room, **MODES[mode])
            assert parts.bounded
            assert (parts.w - whole.w).norm() <= 1e-9 * whole.w.norm()
            np.testing.assert_allclose(b.losses, a.losses, rtol=1e-8)
            if a.weights is None:
                assert b.weights is None
            else:
                np.testing.assert_allclose(b.weights, a.weights, rtol=1e-6, atol=1e-9)


def test_no_more_than_the_room_is_used(federations, monkeypatch):
    whole, _ = simulate(federations[0], METHODS["krum"], 0)
    most, new = [], torch.Tensor.new_empty

    def spy(self, *shape, **known):
        most.append(int(np.prod(shape)))
        return new(self, *shape, **known)

    monkeypatch.setattr(torch.Tensor, "new_empty", spy)
    for name in ("krum", "cwtm"):
        most.clear()
        simulate(federations[0], METHODS[name], 2, room=4.0 * len(whole.w) * 8 / 2**30)
        assert 0 < max(most) <= 2 * len(whole.w)


def test_a_rule_that_cannot(federations):
    with pytest.raises(UserError, match=r"bant looks at every client's gradient.*train\.participation"):
        simulate(federations[0], METHODS["bant"], 0, room=1e-6)


def test_in_a_fleet(federations):
    group = [simulate(federations[0], METHODS["krum"], 0, model="mlp", room=1e-3)[0]]
    assert isinstance(Fleet(group).parts[0][0], Alone)


@dataclass(frozen=True)
class Running(CoordinateRule):
    """A separable rule with memory: the mean, averaged over rounds."""

    separable = True

    def __call__(self, round, state):
        mean = round.messages.mean(0)
        mean = (mean + state["mean"]) / 2 if "mean" in state else mean
        return mean, {"mean": mean}


def test_a_separable_rule_with_memory_is_not_had_in_parts(federations):
    """Each block of columns got, and overwrote, the whole state."""
    rule = Method("running", Unscaled(), Running())
    assert not fits(rule)
    simulator, _ = simulate(federations[0], rule, 2)
    with pytest.raises(UserError, match="running looks at every client's gradient"):
        simulate(federations[0], rule, 2, room=2.1 * len(simulator.w) * 8 / 2**30)


def test_trying_out_a_rule_takes_little_memory(monkeypatch):
    """With 10,000 clients a rule on inner products was tried on matrices of 10,000 × 10,000."""
    tried = []
    monkeypatch.setattr(vectorised, "_tried", lambda server, n, d, classes, access: tried.append((n, d)) or True)
    monkeypatch.setattr(vectorised, "_KNOWN", {})
    for name, f in (("krum", 2), ("krum", 100), ("cwtm", 1)):
        vectorised.vectorises(Server(method(name, f=f)), 10_000, 100_000, 10, Access())
    assert tried == [(64, 1024), (404, 1024), (64, 1024)]
