"""The loss in one process, and whole clients to ranks."""

from __future__ import annotations

import doctest
import importlib
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fairmean import UserError, fair_objective, phi
from fairmean.torch.loss import FairMeanLoss
from fairmean.torch.sampler import ClientSampler

NONE = nn.CrossEntropyLoss(reduction="none")


fair: Any = FairMeanLoss  # with what the types forbid


def batch(n=12):
    draw = torch.Generator().manual_seed(0)
    return torch.randn(n, 4, generator=draw, requires_grad=True), torch.arange(n) % 4, torch.arange(n) % 3


@pytest.mark.parametrize("name", ["loss", "sampler", "groups", "robust_groups"])
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(f"fairmean.torch.{name}"))
    assert result.attempted
    assert not result.failed


# The loss


def test_the_transform_of_the_mean():
    logits, y, _ = batch()
    for loss in (NONE, nn.CrossEntropyLoss(), lambda z, t: F.cross_entropy(z, t, reduction="none")):
        with pytest.warns(UserWarning, match="there is one client"):
            value = FairMeanLoss(loss, 3.0, 0.5)(logits, y)
        torch.testing.assert_close(value, phi(F.cross_entropy(logits, y), 3.0, 0.5))


def test_one_process_is_told_once():
    logits, y, _ = batch()
    criterion = FairMeanLoss(NONE)
    with pytest.warns(UserWarning, match="one client"):
        criterion(logits, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        criterion(logits, y)


def test_clients_in_one_process():
    logits, y, clients = batch()
    value = FairMeanLoss(NONE, 2.0)(logits, y, clients=clients)
    torch.testing.assert_close(value, fair_objective(NONE(logits, y), clients, 2.0))


@pytest.mark.filterwarnings("ignore:FairMeanLoss")
def test_padded_tokens_are_a_weight():
    """Logits per token; what is padded counts nothing, in a rank's mean as in a client's."""
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 4, 5, generator=draw, requires_grad=True)  # 6 texts, 4 classes, 5 tokens
    y = torch.randint(0, 4, (6, 5), generator=draw)
    mask = torch.rand(6, 5, generator=draw) < 0.6
    mask[:, 0] = True
    losses, criterion = NONE(logits, y), FairMeanLoss(NONE)
    torch.testing.assert_close(criterion(logits, y, weights=mask), phi(losses[mask].mean()))
    clients = torch.tensor([0, 0, 1, 1, 2, 2])
    expected = sum(phi(losses[clients == i][mask[clients == i]].mean()) for i in range(3)) / 3
    torch.testing.assert_close(criterion(logits, y, clients=clients, weights=mask), expected)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, while compiling
def test_compiled():
    logits, y, _ = batch()
    criterion = FairMeanLoss(NONE)
    step = torch.compile(lambda z, t: criterion(z, t), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(step(logits, y), phi(F.cross_entropy(logits, y)))


@pytest.mark.filterwarnings("ignore:FairMeanLoss")
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            lambda z, y, c: fair(nn.CrossEntropyLoss),
            "loss = 'CrossEntropyLoss': must be a loss that can be called",
        ),
        (lambda z, y, c: fair("cross-entropy"), "must be a loss that can be called"),
        (lambda z, y, c: FairMeanLoss(nn.CrossEntropyLoss(reduction="sum")), "reduction='sum'"),
        (lambda z, y, c: FairMeanLoss(NONE, kappa=-1), "kappa = -1"),
        (
            lambda z, y, c: FairMeanLoss(nn.CrossEntropyLoss())(z, y, clients=c),
            "one number per sample: reduction='none'",
        ),
        (lambda z, y, c: fair(lambda z, y: 1.0)(z, y), "returned a float"),
        (lambda z, y, c: FairMeanLoss(lambda z, y: z.sum() * torch.nan)(z, y), "the mean loss is nan"),
        (lambda z, y, c: FairMeanLoss(lambda z, y: -NONE(z, y))(z, y), "must be finite and ≥ 0"),
        (lambda z, y, c: FairMeanLoss(NONE)(z[:0], y[:0]), "there is no sample"),
        (lambda z, y, c: FairMeanLoss(NONE)(z, y, weights=torch.ones(3)), r"weights of shape \(3,\)"),
        (lambda z, y, c: FairMeanLoss(NONE)(z, y, clients=c, weights=torch.ones(3)), "one weight per sample"),
        (
            lambda z, y, c: FairMeanLoss(NONE)(z, y, clients=c, weights=-torch.ones(12)),
            "weights must be finite and ≥ 0",
        ),
        (lambda z, y, c: FairMeanLoss(NONE)(z, y, clients=c, weights=(c > 0).float()), "all weights of group 0 are 0"),
    ],
)
def test_mistakes(wrong, says):
    with pytest.raises(UserError, match=says) as caught:
        wrong(*batch())
    assert "\n" not in str(caught.value)


# The sampler


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 4), st.integers(0, 5))
def test_every_rank_has_whole_clients_and_nothing_is_lost(sizes, ranks, epoch):
    if len(sizes) < ranks:
        return
    clients = np.random.default_rng(epoch).permutation(np.repeat(np.arange(len(sizes)), sizes))
    samplers = [ClientSampler(clients, ranks=ranks, rank=rank, uneven=True) for rank in range(ranks)]
    drawn = []
    for sampler in samplers:
        sampler.set_epoch(epoch)
        rows = list(sampler)
        assert len(rows) == len(sampler) == len(samplers[0])  # all take the same number of steps
        assert set(clients[rows]) == set(sampler.clients)
        times = np.bincount(rows, minlength=len(clients))[np.isin(clients, sampler.clients)]
        assert times.min() >= times.max() - 1 >= 0
        drawn.append(set(rows))
    assert sum(map(len, drawn)) == len(set.union(*drawn)) == len(clients)
    counts = samplers[0].counts
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == len(sizes)


def test_another_epoch_is_another_order():
    sampler = ClientSampler(["a"] * 50 + ["b"] * 50, ranks=2, rank=1)
    first = list(sampler)
    assert first == list(sampler)
    sampler.set_epoch(1)
    assert sorted(first) == sorted(sampler)
    assert first != list(sampler)


def test_unequal_numbers_of_clients_are_told():
    with pytest.warns(UserWarning, match="5 clients on 2 ranks, 2 or 3 on each"):
        ClientSampler(list("abcde"), ranks=2, rank=0)
    ClientSampler(list("abcd"), ranks=2, rank=0)
    ClientSampler(list("abcde"))  # one process


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: ClientSampler(["a", "b"], ranks=3, rank=0), "2 clients for 3 ranks"),
        (lambda: ClientSampler(["a", "b"], ranks=2, rank=2), "rank = 2 of 2"),
        (lambda: ClientSampler(["a", None]), "sample 1 has no name"),
        (lambda: ClientSampler([]), "one name or number for each sample"),
        (lambda: ClientSampler(np.array(["a", 1], dtype=object)), "all be text or all be numbers"),
    ],
)
def test_mistakes_of_the_sampler(wrong, says):
    with pytest.raises(UserError, match=says):
        wrong()
