"""Methods on bare tensors: composition, validation."""

from dataclasses import dataclass

import pytest
import torch

from fairmean import Access, CoordinateRule, LossRule, Method, Scale, UserError, aggregate, compose, method
from fairmean.rules.named import named_methods, parse_method
from fairmean.rules.round import Round
from fairmean.rules.servers.means import Mean

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


@pytest.mark.parametrize("name", [name for name in named_methods() if not method(name).needs_samples])
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


def test_a_text_with_hyper_parameters():
    torch.testing.assert_close(aggregate("fairmean:kappa=4", G, F), aggregate(method("fairmean", kappa=4), G, F))
    torch.testing.assert_close(
        aggregate("fairmean+nnm+mean:f=1", G, F), aggregate(compose("fairmean", "mean", "nnm", f=1), G, F)
    )
    with pytest.raises(UserError, match="'kappa' is not key=value"):
        aggregate("fairmean:kappa", G, F)
    with pytest.raises(UserError, match="did you mean 'kappa'"):
        aggregate("fairmean:kapa=4", G, F)


def test_the_weights_come_along():
    direction, weights, state = aggregate("fairmean:kappa=2", G, F, details=True)
    torch.testing.assert_close(weights @ G, direction)
    assert state == {}
    assert aggregate("cwtm:f=1", G, F, details=True).weights is None


@pytest.mark.parametrize("name", ["centered-clipping:radius=0.5", "bant", "fedmdfg"])
def test_a_rule_with_memory_remembers_what_it_is_given(name):
    """Without a state its memory is fresh in every call; with the last round's, it goes on."""
    fresh = [aggregate(name, G, F, access=ACCESS) for _ in range(2)]
    assert torch.equal(*fresh)
    state, directions = {}, []
    for _ in range(3):
        direction, _, state = aggregate(name, G, F, access=ACCESS, state=state)
        directions.append(direction)
    assert torch.equal(directions[0], fresh[0])
    assert state
    if name != "fedmdfg":  # whose memory only matters when losses rise
        assert not torch.equal(directions[2], fresh[0])


@pytest.mark.parametrize("name", ["fedavg", "term-hierarchical", "fedmgda+", "rfa:by_count=true", "fairmean+fedavg"])
def test_sizes_cannot_be_left_out_where_they_count(name):
    with pytest.raises(UserError, match="pass sizes="):
        aggregate(name, G, F)
    aggregate(name, G, F, M)


def test_only_tensors():
    with pytest.raises(UserError, match="losses: expected a tensor, got a list"):
        aggregate("mean", G, [1.0, 2.0, 3.0])
    with pytest.raises(UserError, match="method = 3"):
        aggregate(3, G, F)


@pytest.mark.parametrize("aggregator", ["mean", "fedavg", "drfl", "term", "term-counts"])
@pytest.mark.parametrize("scale", ["fairmean-normalised", "fairmean-split"])
def test_a_pre_aggregation_that_does_nothing_changes_nothing(scale, aggregator):
    """The normalised form is the same thing on every rung."""
    plain = aggregate(compose(scale, aggregator), G, F, M, entropies=F / 2)
    mixed = aggregate(compose(scale, aggregator, pre="clip", radius=1e9), G, F, M, entropies=F / 2)
    torch.testing.assert_close(mixed, plain, rtol=1e-12, atol=1e-14)


@dataclass(frozen=True)
class Curious(Scale):
    """A scale that looks at what it did not ask for."""

    def __call__(self, losses, means, context):
        assert "entropy" not in means
        return torch.ones_like(losses)


def test_entropies_go_only_to_a_scale_that_needs_them():
    aggregate(Method("curious", Curious(), Mean()), G, F, entropies=F)


@dataclass(frozen=True)
class Odd(LossRule):
    """Returns what it is told to."""

    what: str = "list"

    def weights(self, round):
        w = torch.ones_like(round.losses)
        answers = {"list": [1.0], "nothing": None, "column": w[:, None], "short": w[:1], "complex": w + 0j}
        if self.what == "raises":
            raise KeyError("lost")
        if self.what == "gram":
            return round.gram
        return answers[self.what]


@dataclass(frozen=True)
class OddDirection(CoordinateRule):
    def direction(self, round):
        return round.messages[0, :1]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("list", "returned a list, not a tensor"),
        ("nothing", "returned nothing, not a tensor"),
        ("column", r"shape \(3, 1\), not \(3,\)"),
        ("short", r"shape \(1,\), not \(3,\)"),
        ("complex", "complex"),
        ("raises", r"failed \(KeyError: 'lost', at .*test_methods\.py"),
        ("gram", "declare a higher one"),
    ],
)
def test_a_rule_that_misbehaves_is_named(what, says):
    with pytest.raises(UserError, match=f"rule 'mine' .Odd. .*{says}"):
        aggregate(Method("mine", Curious(), Odd(what)), G, F)


def test_a_direction_of_the_wrong_length_names_its_rule():
    with pytest.raises(UserError, match=r"rule 'mine' .OddDirection. returned a tensor of shape \(1,\), not \(3,\)"):
        aggregate(Method("mine", Curious(), OddDirection()), G, F)


def test_parts_beside_a_name():
    """As in a comparison: what is given beside a name takes the place of that part."""
    assert parse_method("fairmean+cwtm:f=2:pre=nnm") == compose("fairmean", "cwtm", "nnm", f=2)
    assert method("fairmean", aggregator="cwtm", f=1) == compose("fairmean", "cwtm", f=1)
    assert parse_method("qffl:scale=fairmean").scale == method("fairmean").scale
    with pytest.raises(UserError, match="a method's name comes first"):
        parse_method("fairmean:name=mean")
    with pytest.raises(UserError, match="unknown scale 'fairmeen'"):
        parse_method("mean:scale=fairmeen")
