"""Methods on bare tensors: composition, validation."""

import pytest
import torch

from fairmean import Access, UserError, aggregate, compose, method
from fairmean.aggregators import Round
from fairmean.methods import named_methods

G = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0], [3.0, 1.0, 0.0]], dtype=torch.float64)
F = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
M = torch.tensor([1.0, 2.0, 5.0])
ACCESS = Access(
    layers=(slice(0, 2), slice(2, 3)),
    output=lambda v: v[:, :, None],
    trial=lambda direction, step: F - step * (G @ direction.double()),
    trust=lambda direction, step: (
        torch.tensor(1.0).double() if direction is None else 1 - step * direction.double().sum()
    ),
)


def test_by_hand():
    torch.testing.assert_close(aggregate(method("mean"), G, F), G.mean(0))
    torch.testing.assert_close(aggregate(method("fedavg"), G, F, M), (M.double() / 8) @ G)
    torch.testing.assert_close(aggregate(method("qffl", q=2), G, F), (F**2) @ G / 3, rtol=1e-8, atol=0)
    a = 1 + 2 * F / (F + 0.5)
    torch.testing.assert_close(aggregate(method("fairmean", kappa=2, tau=0.5), G, F), a @ G / 3)
    torch.testing.assert_close(aggregate(method("fairmean-normalised", kappa=2, tau=0.5), G, F), a @ G / a.sum())
    h = 2 * F * (G**2).sum(1) + F**2 / 0.1
    torch.testing.assert_close(
        0.1 * aggregate(method("qffl-normalised", q=2), G, F, lr=0.1), F**2 @ G / h.sum(), rtol=1e-8, atol=0
    )


@pytest.mark.parametrize("name", ["qffl", "qffl-normalised"])
def test_q_zero_is_mean(name):
    torch.testing.assert_close(aggregate(method(name, q=0), G, F), G.mean(0))


def test_composition():
    fair = compose("fairmean-normalised", "fedavg", kappa=3)
    a = (1 + 3 * F / (F + 1)) * M
    torch.testing.assert_close(aggregate(fair, G, F, M), a @ G / a.sum())


@pytest.mark.parametrize("name", named_methods())
def test_inputs_are_not_changed_and_dtype_is_kept(name):
    for dtype in (torch.float32, torch.float64):
        g, f = G.to(dtype), F.to(dtype)
        before = g.clone(), f.clone()
        hyper = {"f": 1} if "f" in named_methods()[name].hyper else {}
        direction = aggregate(method(name, **hyper), g, f, M, entropies=f, access=ACCESS)
        assert direction.dtype == dtype
        assert direction.shape == (3,)
        assert torch.equal(g, before[0])
        assert torch.equal(f, before[1])


@pytest.mark.parametrize(
    ("gradients", "losses", "sizes", "says"),
    [
        (G[0], F, None, "n×d"),
        (G[:0], F[:0], None, "n×d"),
        (G, F[:2], None, "losses"),
        (G, F, M[:2], "sizes"),
        (G.clone().index_fill(0, torch.tensor(1), torch.nan), F, None, "client 1"),
        (G, torch.tensor([0.5, 1.0, torch.inf]), None, "client 2"),
        (G, torch.tensor([0.5, -1.0, 1.0]), None, "client 1"),
        (G, F, torch.zeros(3), "client 0"),
    ],
)
def test_bad_tensors(gradients, losses, sizes, says):
    with pytest.raises(UserError, match=says):
        aggregate(method("mean"), gradients, losses, sizes)


def test_bad_names():
    with pytest.raises(UserError, match="did you mean 'fairmean'"):
        method("fairmeen")
    with pytest.raises(UserError, match="did you mean 'kappa'"):
        method("fairmean", kapa=2)
    with pytest.raises(UserError, match="it has none"):
        method("mean", kappa=2)
    with pytest.raises(UserError, match="must be a float"):
        method("fairmean", kappa="big")
    with pytest.raises(UserError, match="q = -1"):
        method("qffl", q=-1)


def test_a_rule_sees_only_its_rung():
    with pytest.raises(AttributeError, match="declare a higher one"):
        _ = Round(sizes=M).losses
