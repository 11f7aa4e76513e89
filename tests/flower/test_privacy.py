"""Client-level differential privacy: what is clipped, what noise is added, what is accounted, when a run stops."""

import math
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod

from fairmean.errors import UserError
from fairmean.flower import FairStrategy, Privacy
from fairmean.flower.privacy import Guard
from fairmean.terminal.main import main
from tests.flower.local_grid import FIRST, LocalGrid
from tests.flower.test_faults import all_honest, honest, make_model, started


def epsilon(rounds, noise=2.0, delta=1e-5):
    config = PrivacyConfig(delta, 4, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
    accountant = RdpAccountant(config)
    accountant.compose(GaussianPrivacyEvent(noise, 4, 4), rounds)
    return accountant.get_epsilon(delta)


def test_epsilon_is_in_the_summary_and_in_the_report(here):
    strategy = started("fairmean", privacy=Privacy(clip=0.5, noise=2.0, seed=0))
    summary = strategy.record.recorder.run.summary
    assert summary["epsilon"] == pytest.approx(epsilon(4))
    assert summary["delta"] == 1e-5
    assert summary["report"] == "sums"
    assert main(["report", str(strategy.record.recorder.run.folder), "-o", "page.html"]) == 0
    assert f"ε = {summary['epsilon']:.3g} at δ = 1e-05" in Path("page.html").read_text()


def test_without_noise_to_speak_of_it_is_the_plain_sum(here):
    private = started("fairmean", privacy=Privacy(clip=1e3, noise=1e-9, seed=0))
    torch.testing.assert_close(private.w, started("fairmean", name="plain").w, rtol=0, atol=1e-5)


def test_messages_are_clipped_by_clients_and_again_by_the_server(here):
    """A client that does not clip has no more in the sum than the others."""
    seen = []

    def greedy(message, context):
        reply = honest(message, context)
        content = reply.content
        grown = {name: Array(array.numpy() * 1e4) for name, array in content["message"].items()}
        content["message"] = ArrayRecord(grown)
        return Message(content, reply_to=message)

    def watched(message, context):
        reply = honest(message, context)
        parts = [torch.from_numpy(array.numpy().copy()).flatten() for array in reply.content["message"].values()]
        seen.append(torch.cat(parts).norm().item())
        return reply

    grid = LocalGrid({FIRST: greedy, **{FIRST + k: watched for k in (1, 2, 3)}})
    strategy = started("mean", grid=grid, rounds=1, lr=1.0, privacy=Privacy(clip=0.01, noise=1e-9, seed=0))
    assert max(seen) <= 0.01 * (1 + 1e-5)
    moved = strategy.w - torch.cat([p.detach().flatten() for p in make_model().parameters()])
    assert moved.norm() <= 0.01 * (1 + 1e-3)


def test_the_noise_has_the_right_size():
    guard = Guard(Privacy(clip=3.0, noise=2.0, seed=1), clients=4)
    noise = guard.noisy(torch.zeros(200_000, dtype=torch.float64), share=0.25)
    assert noise.std().item() == pytest.approx(2.0 * 3.0 / 4, rel=0.02)
    assert abs(noise.mean().item()) < 0.02


def test_a_run_stops_before_it_spends_too_much(here):
    limit = (epsilon(2) + epsilon(3)) / 2
    strategy = started("mean", privacy=Privacy(clip=0.5, noise=2.0, max_epsilon=limit, seed=0))
    summary = strategy.record.recorder.run.summary
    assert summary["rounds"] == 2
    assert summary["epsilon"] == pytest.approx(epsilon(2))
    assert "max_epsilon" in summary["stopped"]


def test_what_was_spent_is_remembered(here):
    """A run that was interrupted after two rounds goes on with what it has spent."""
    calls = []

    def fails(message, context):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError
        return honest(message, context)

    grid = all_honest()
    grid.nodes[FIRST] = fails
    privacy = Privacy(clip=0.5, noise=1.5, quantile=0.5, seed=0)
    with pytest.raises(RuntimeError):
        started("mean", grid=grid, privacy=privacy)
    strategy = FairStrategy("mean", clients=4, startup=0, pause=0, min_clients=2, lr=0.1, privacy=privacy)
    strategy.start(all_honest(), ArrayRecord(make_model().state_dict()), 4)
    assert strategy.record.recorder.run.summary["epsilon"] == pytest.approx(epsilon(4, 1.5))


def test_the_clip_norm_follows_the_quantile(here):
    low = started("mean", rounds=30, privacy=Privacy(clip=1e-4, noise=0.01, quantile=0.5, rate=1.0, seed=0))
    assert low.guard.clip > 1e-3
    fixed = Guard(Privacy(clip=1.0, noise=0.5, quantile=0.5, seed=0), clients=4)
    assert fixed.multiplier == pytest.approx((0.5**-2 - 0.25) ** -0.5)
    wide = Guard(Privacy(clip=1.0, noise=0.5, quantile=0.5, rate=0.2, seed=0), clients=10_000)
    wide.spend([1.0] * 10_000)  # all within: it shrinks by exp(−0.2 · (1 − 0.5)), but for the noise
    assert wide.clip == pytest.approx(math.exp(-0.1), rel=0.05)


@pytest.mark.parametrize("method", ["median", "fairmean-normalised", "fedavg", "fairmean-recess", "drfl"])
def test_methods_that_one_noisy_sum_does_not_cover(method):
    with pytest.raises(UserError, match=r"privacy: noise is added to one sum of clipped messages"):
        FairStrategy(method, clients=4, privacy=Privacy(clip=1.0, noise=1.0))


def test_losses_do_not_leave_beside_the_noise():
    with pytest.raises(UserError, match="would leave without noise"):
        FairStrategy("mean", clients=4, report="clients", privacy=Privacy(clip=1.0, noise=1.0))


@pytest.mark.parametrize(
    "wrong", [{"clip": 0}, {"noise": -1}, {"delta": 1}, {"max_epsilon": 0}, {"quantile": 1}, {"rate": math.inf}]
)
def test_wrong_numbers_are_named(wrong):
    with pytest.raises(UserError, match=rf"privacy\.{next(iter(wrong))} = "):
        Privacy(**({"clip": 1.0, "noise": 1.0} | wrong))


def test_noise_cannot_be_drawn_again():
    """Without a seed every sum has a key of its own; a seed of 32 bits could be tried out."""
    draws = [Guard(Privacy(clip=1.0, noise=1.0), 4)._normal(3).tolist() for _ in range(2)]
    guard = Guard(Privacy(clip=1.0, noise=1.0), 4)
    draws += [guard._normal(3).tolist(), guard._normal(3).tolist()]
    assert len({tuple(draw) for draw in draws}) == 4


def test_the_sum_is_divided_by_the_clients_that_there_should_be(here):
    """A client that stays away makes the step shorter, and changes neither the divisor nor the noise."""
    grid = all_honest()
    whole = started("mean", grid=grid, rounds=1, lr=1.0, privacy=Privacy(clip=0.01, noise=1e-9, seed=0))
    messages = [one.message for one in whole.accepted]
    grid = all_honest()
    grid.nodes[FIRST + 1] = lambda message, context: None
    some = started("mean", grid=grid, rounds=1, lr=1.0, name="some", privacy=Privacy(clip=0.01, noise=1e-9, seed=0))
    start = torch.cat([p.detach().flatten() for p in make_model().parameters()])
    clipped = [m * min(1.0, 0.01 / float(m.norm())) for m in messages]
    torch.testing.assert_close(start - some.w, (sum(clipped) - clipped[1]) / 4, rtol=0, atol=1e-6)
