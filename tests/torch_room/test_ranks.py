"""Ranks as clients: the loss, the hook and the exchange equal (1/n) Σ a(f_i) ∇f_i, computed client after client."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as mp

from tests.torch_room.ranks import after_two_steps, formula, net, work

EXACT = ["hook", "hook, small buckets", "hook, views", "hook, wrapped"]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """One start of two processes for everything: starting is what costs time."""
    place = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        mp.spawn(work, (str(place),), nprocs=2)
    return torch.load(place / "results.pt", weights_only=True)


def error(measured, expected):
    assert measured.norm() > 0.1
    return ((measured - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("how", ["ddp", "fsdp2", "fsdp2, two passes"])
def test_a_rank_is_a_client(how, outcome):
    assert error(outcome[0][how], formula(net(), [0, 1])) < 1e-6


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_autocast_is_like_autocast_without_ranks(how, outcome):
    expected = formula(net(), [0, 1], autocast=True)
    assert error(outcome[0][f"{how}, autocast"], expected) < 1e-6
    assert error(formula(net(), [0, 1]), expected) > 1e-4  # so the comparison can fail


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_unequal_numbers_of_clients_are_exact(how, outcome):
    assert error(outcome[0][f"{how}, unequal"], formula(net(), range(5))) < 1e-6


@pytest.mark.parametrize("how", EXACT)
def test_accumulated_gradients_are_exact(how, outcome):
    assert error(outcome[0][how], after_two_steps()) < 1e-6


def test_accumulated_gradients_under_autocast(outcome):
    assert error(outcome[0]["hook, autocast"], after_two_steps(autocast=True)) < 1e-6


def test_a_compressing_hook_is_wrapped(outcome):
    assert 1e-6 < error(outcome[0]["hook, fp16"], after_two_steps()) < 3e-3


def test_mistakes_are_refused_in_one_line(outcome):
    for said, words in zip(
        outcome[1],
        [
            "still in .grad. Put all micro-batches but the last of a step under no_sync()",
            "without add()",
            "already has the hook 'fp16_compress_hook', and DDP takes one; give it to ddp_hook(model, hook=",
            "the model is a Sequential, not a DistributedDataParallel",
            "as one number, not shape (3,)",
        ],
        strict=True,
    ):
        assert words in said
        assert "\n" not in said
