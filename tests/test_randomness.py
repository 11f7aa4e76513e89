"""Streams, batches, dropout masks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairmean.data.batches import Batches
from fairmean.models import Dropout
from fairmean.randomness import derive, generator, global_stream, hash32, hash32_


def test_streams_are_independent_and_reproducible():
    assert derive(1, "a") == derive(1, "a")
    assert len({derive(seed, name) for seed in range(50) for name in ("partition", "poisoning", "dropout")}) == 150
    assert generator(1, "a").random() == generator(1, "a").random() != generator(1, "b").random()


def test_global_generators_are_left_alone():
    before = torch.get_rng_state()
    with global_stream(3, "initialisation"):
        inside = torch.rand(1)
    assert torch.equal(before, torch.get_rng_state())
    with global_stream(3, "initialisation"):
        assert torch.equal(inside, torch.rand(1))


def test_hash_is_a_bijection_and_the_same_in_both_libraries():
    x = np.arange(2**16, dtype=np.int64) * 65521
    mixed = hash32(x)
    assert len(np.unique(mixed)) == len(x)
    assert (mixed == hash32(torch.from_numpy(x)).numpy()).all()
    assert mixed.mean() == pytest.approx(2**31, rel=0.02)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 20), st.integers(0, 5), st.integers(0, 200))
def test_batches(sizes, batch, seed, step):
    offsets = np.cumsum([0, *sizes])
    batches = Batches(offsets, batch, seed)
    everyone = np.arange(len(sizes))
    rows = np.split(batches.rows(step, everyone), np.cumsum(batches.lengths)[:-1])
    for client, mine in enumerate(rows):
        assert len(mine) == (min(batch, sizes[client]) if batch else sizes[client])
        assert len(np.unique(mine)) == len(mine)
        assert (offsets[client] <= mine).all()
        assert (mine < offsets[client + 1]).all()
    # the rows of a step do not depend on what was asked before, nor on who else takes part
    fresh = Batches(offsets, batch, seed)
    some = everyone[::2]
    expected = np.concatenate([rows[i] for i in some])
    assert (fresh.rows(step, some) == expected).all()


def test_batches_are_shared_by_runs_of_a_draw():
    offsets, everyone, some = np.array([0, 30, 60]), np.arange(2), np.arange(1)
    one, two = Batches.shared(offsets, 8, 1), Batches.shared(offsets.copy(), 8, 1)
    assert one is two
    assert Batches.shared(offsets, 8, 2) is not one
    fresh = Batches(offsets, 8, 1)
    for step, clients in ((3, everyone), (3, everyone), (3, some), (2, everyone), (3, everyone)):
        assert (one.rows(step, clients) == fresh.rows(step, clients)).all()
        fresh = Batches(offsets, 8, 1)


@pytest.mark.parametrize("size", [11, 19, 25, 60])
def test_every_sample_is_used_in_time(size):
    """Also by a client with more than one batch but less than two, whose remainder changes from epoch to epoch."""
    batches = Batches(np.array([0, size]), 10, seed=1)
    seen = np.concatenate([batches.rows(step, np.arange(1)) for step in range(60)])
    assert sorted(set(seen)) == list(range(size))


def test_an_epoch_sees_every_sample_once_and_is_reshuffled():
    batches = Batches(np.array([0, 60]), 10, seed=1)
    epochs = [np.concatenate([batches.rows(6 * e + s, np.arange(1)) for s in range(6)]) for e in range(2)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(60))
    assert (epochs[0] != epochs[1]).any()


def test_dropout_is_a_function_of_row_and_key():
    layer = Dropout(0.3, salt=5)
    x = torch.ones(2000, 50)
    layer.rows, layer.key = torch.arange(2000), 77
    whole = layer(x)
    layer.rows = torch.arange(500, 700)
    assert torch.equal(layer(x[:200]), whole[500:700])
    assert (whole == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert whole.mean().item() == pytest.approx(1, abs=0.02)
    layer.rows, layer.key = torch.arange(2000), 78
    other = layer(x)
    assert ((whole == 0) & (other == 0)).double().mean().item() == pytest.approx(0.09, abs=0.01)
    assert torch.equal(layer.eval()(x), x)


def test_channel_dropout_drops_whole_channels():
    layer = Dropout(0.5, salt=1, whole=True)
    layer.rows, layer.key = torch.arange(100), 3
    out = layer(torch.ones(100, 8, 3, 3))
    assert ((out == 0).flatten(2).all(2) | (out == 2).flatten(2).all(2)).all()


def test_hash_in_32_bits_is_the_same():
    x = torch.arange(-(2**15), 2**15, dtype=torch.int64) * 65521
    mixed = hash32_(x.to(torch.int32)).to(torch.int64) & 0xFFFFFFFF
    assert torch.equal(mixed, hash32(x))


@pytest.mark.parametrize("whole", [False, True])
def test_dropout_is_the_hash_of_key_row_and_unit(whole):
    dropout = Dropout(0.3, 0x632BE5AB, whole).train()
    dropout.rows, dropout.key = torch.tensor([7, 2**33 + 5, 0]), 2**32 - 1
    units = 8 if whole else 8 * 5
    seeds = hash32(dropout.rows + dropout.key + dropout.salt)
    mixed = hash32(seeds[:, None] + torch.arange(units) * 0x9E3779B1)
    keep = (mixed >= int(0.3 * 2**32)).view(3, 8, -1).expand(3, 8, 5)
    assert torch.equal(dropout(torch.ones(3, 8, 5)), keep / 0.7)
