"""The paper's maths: precision, derivatives, bounds, identities."""

import math
import multiprocessing
import socket
import warnings

import mpmath
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from fairmean import UserError, dispersion, fair_objective, marginal_weight, phi, psi

mpmath.mp.dps = 50

kappas = st.floats(0, 1e3)
taus = st.floats(1e-3, 1e3)
ratios = st.floats(-12, 12).map(lambda e: 10.0**e)
losses = st.lists(st.floats(0, 1e4), min_size=1, max_size=30).map(lambda x: torch.tensor(x, dtype=torch.float64))


def exact_psi(z, tau):
    z, tau = mpmath.mpf(z), mpmath.mpf(tau)
    return z - tau * mpmath.log(1 + z / tau)


@given(ratios, taus, kappas)
def test_precision(ratio, tau, kappa):
    z = ratio * tau
    exact = exact_psi(z, tau)
    assert abs(psi(z, tau) - exact) <= 1e-12 * exact
    exact = mpmath.mpf(z) + kappa * exact
    assert abs(phi(z, kappa, tau) - exact) <= 1e-12 * exact
    exact = 1 + mpmath.mpf(kappa) * z / (mpmath.mpf(z) + tau)
    assert abs(marginal_weight(z, kappa, tau) - exact) <= 1e-12 * exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_match_floats(dtype):
    z = torch.logspace(-6, 6, 50, dtype=dtype)
    tolerance = {"rtol": 1e-6 if dtype == torch.float32 else 1e-13, "atol": 0.0}
    for function in (phi, lambda z, kappa, tau: psi(z, tau), marginal_weight):
        values = function(z, 2.0, 0.7)
        assert values.dtype == dtype
        each = torch.tensor([function(float(x), 2.0, 0.7) for x in z], dtype=dtype)
        torch.testing.assert_close(values, each, **tolerance)


@given(ratios, taus, kappas)
def test_derivative_is_the_marginal_weight(ratio, tau, kappa):
    z = torch.tensor(ratio * tau, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(phi(z, kappa, tau), z)
    assert slope.item() == pytest.approx(marginal_weight(z.item(), kappa, tau), rel=1e-12)


def test_autograd_to_second_order():
    z = torch.tensor([1e-3, 0.3, 0.6, 2.0, 50.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: phi(x, 3.0, 0.5), z)
    assert torch.autograd.gradgradcheck(lambda x: phi(x, 3.0, 0.5), z)
    assert torch.func.vmap(torch.func.grad(psi))(z.detach()).shape == z.shape


@given(st.floats(0, 1e12), kappas, taus)
def test_bounds_of_the_weight_and_its_slope(z, kappa, tau):
    a = marginal_weight(z, kappa, tau)
    assert 1 <= a <= 1 + kappa
    point = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(marginal_weight(point, kappa, tau), point)
    assert -1e-300 <= slope.item() <= kappa / tau * (1 + 1e-12)
    assert marginal_weight(tau, kappa, tau) == pytest.approx(1 + kappa / 2, rel=1e-15)
    assert phi(z, kappa, tau) >= 0


@given(st.lists(st.floats(0, 1e4), min_size=2, max_size=2).map(sorted), kappas, taus)
def test_weight_is_nondecreasing(pair, kappa, tau):
    low, high = pair
    assert marginal_weight(low, kappa, tau) <= marginal_weight(high, kappa, tau)


@given(losses, kappas, taus)
def test_decomposition(f, kappa, tau):
    """Φ = φ(F) + κ D_τ   (eq. 6)."""
    whole = phi(f, kappa, tau).mean()
    torch.testing.assert_close(phi(f.mean(), kappa, tau) + kappa * dispersion(f, tau), whole, rtol=1e-11, atol=1e-12)


@given(losses, taus)
def test_variance_sandwich(f, tau):
    """τ Var / 2(B+τ)² ≤ D_τ ≤ Var / 2τ   (eq. 7)."""
    variance = ((f - f.mean()) ** 2).mean().item()
    D, B = dispersion(f, tau).item(), f.max().item()
    slack = 1 + 1e-9
    assert tau / (2 * (B + tau) ** 2) * variance <= D * slack + 1e-300
    assert variance / (2 * tau) * slack + 1e-300 >= D


@given(losses, taus)
def test_dispersion_is_zero_only_for_equal_losses(f, tau):
    assert dispersion(torch.full_like(f, f[0].item()), tau).item() == pytest.approx(0, abs=1e-25)
    if (f.max() - f.min()) > 1e-6 * (f.max() + tau):
        assert dispersion(f, tau) > 0


def test_dispersion_does_not_cancel():
    f = torch.tensor([5.0, 5.0 + 1e-7], dtype=torch.float64)
    exact = sum(exact_psi(x, 1) for x in f.tolist()) / 2 - exact_psi(
        mpmath.mpf(sum(map(mpmath.mpf, f.tolist()))) / 2, 1
    )
    assert dispersion(f).item() == pytest.approx(float(exact), rel=1e-6)


@given(losses, kappas, taus, st.integers(0, 2**32 - 1))
def test_identity_of_directions(f, kappa, tau, seed):
    """Σ a(f_i) ∇f_i = ∇ Σ φ(f_i)."""
    random = torch.Generator().manual_seed(seed)
    gradients = torch.randn(len(f), 7, generator=random, dtype=torch.float64)
    w = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    (left,) = torch.autograd.grad(phi(f + gradients @ w, kappa, tau).sum(), w)
    right = (marginal_weight(f, kappa, tau)[:, None] * gradients).sum(0)
    torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-11 * (1 + kappa))


@given(st.integers(1, 6), st.integers(1, 40), kappas, taus, st.integers(0, 2**32 - 1))
def test_fair_objective_is_the_fairmean_direction(groups, samples, kappa, tau, seed):
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, groups, (samples,), generator=random) * 17 - 5
    values = torch.rand(samples, generator=random, dtype=torch.float64).requires_grad_()
    fair_objective(values, ids, kappa, tau).backward()
    present = ids.unique()
    expected = torch.zeros(samples, dtype=torch.float64)
    for group in present:
        mine = ids == group
        expected[mine] = marginal_weight(values[mine].mean().detach(), kappa, tau) / mine.sum() / len(present)
    torch.testing.assert_close(values.grad, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("kappa", "tau"), [(-1, 1), (math.nan, 1), (math.inf, 1), (1, 0), (1, -2), (1, math.nan)])
def test_bad_hyper_parameters(kappa, tau):
    for call in (
        lambda: phi(1.0, kappa, tau),
        lambda: marginal_weight(1.0, kappa, tau),
        lambda: fair_objective(torch.ones(2), torch.zeros(2, dtype=torch.long), kappa, tau),
    ):
        with pytest.raises(UserError, match=r"kappa|tau"):
            call()


def test_fair_objective_refuses_a_reduced_loss():
    with pytest.raises(UserError, match="reduction='none'"):
        fair_objective(torch.tensor(1.0), torch.tensor([0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("loss", [0.7, 20.0])
def test_fair_objective_sums_half_precision_in_full(dtype, loss):
    """4,000 losses of one group: summed in bfloat16 they came to an order of magnitude less."""
    losses = torch.full((4000,), loss, dtype=dtype, requires_grad=True)
    objective = fair_objective(losses, torch.zeros(4000, dtype=torch.long))
    stored = losses[0].item()  # 0.7 as this type has it
    assert objective.dtype == torch.float32
    assert objective.item() == pytest.approx(phi(stored), rel=1e-6)
    objective.backward()
    assert losses.grad.double().sum().item() == pytest.approx(marginal_weight(stored), rel=1e-2)


def test_fair_objective_of_a_large_group():
    """A running sum in float32 loses the small terms of a million losses."""
    losses = torch.full((3_000_000,), 0.7)
    assert fair_objective(losses, torch.zeros(len(losses), dtype=torch.long)).item() == pytest.approx(
        phi(0.7), rel=1e-6
    )


def test_half_precision_is_computed_in_single():
    z = torch.tensor([0.01, 0.7, 20.0])
    for function in (phi, marginal_weight, lambda z, kappa, tau: psi(z, tau)):
        for dtype in (torch.bfloat16, torch.float16):
            exact = function(z.to(dtype).double(), 2.0, 0.7)
            got = function(z.to(dtype), 2.0, 0.7)
            assert got.dtype == dtype
            torch.testing.assert_close(got.double(), exact, rtol=4e-3 if dtype == torch.bfloat16 else 5e-4, atol=0)
    assert dispersion(z.bfloat16()).item() == pytest.approx(dispersion(z.bfloat16().double()).item(), rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1])
def test_fair_objective_refuses_losses_that_are_none(bad):
    losses = torch.tensor([1.0, bad, 2.0])
    with pytest.raises(UserError, match=r"sample 1 is .*finite and ≥ 0"):
        fair_objective(losses, torch.tensor([0, 0, 1]))
    fair_objective(losses, torch.tensor([0, 0, 1]), check=False)  # a gradient scaler looks at the result itself


def test_groups_may_have_names():
    losses = torch.tensor([1.0, 3.0, 2.0])
    expected = fair_objective(losses, torch.tensor([7, 7, 4]))
    for names in (["b", "b", "a"], np.array(["b", "b", "a"]), np.array([7, 7, 4]), (7, 7, 4)):
        assert fair_objective(losses, names) == expected
    with pytest.raises(UserError, match="one loss and one group per sample"):
        fair_objective(losses, ["a", "b"])


def test_what_is_no_number_is_refused():
    losses = torch.ones(2)
    for call, says in (
        (lambda: fair_objective([1.0, 2.0], [0, 1]), "losses must be a tensor"),
        (lambda: fair_objective(losses, [0, 1], kappa="1"), "kappa = '1': must be a number"),
        (lambda: fair_objective(losses, np.array([0.0, math.nan])), "NaN as its group"),
        (lambda: fair_objective(losses, torch.tensor([0.0, math.nan])), "NaN as its group"),
        (lambda: fair_objective(losses[:0], []), "there is no sample"),
        (lambda: fair_objective(losses, [[0], [1, 2]]), "groups must be integers or names"),
        (lambda: fair_objective(losses, None), "fair_objective"),
    ):
        with pytest.raises(UserError, match=says):
            call()


def _rank(rank, port, kappa, results):
    """One of two ranks: 1 of 6 groups here, 5 there; or groups that both have a part of."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    losses, groups = _whole()
    found = {}
    for name, mine in {"unequal": groups == 0, "mixed": torch.arange(len(groups)) % 3 == 0}.items():
        mine = mine if rank == 0 else ~mine
        for exact in (True, False):
            x = losses.clone().requires_grad_()
            value = fair_objective(x[mine], groups[mine], kappa, ranks=exact)
            value.backward()
            dist.all_reduce(x.grad)
            found[name, exact] = (value.item(), (x.grad / 2).tolist())
    empty = losses[:0] if rank else losses.clone().requires_grad_()
    empty = empty.requires_grad_()
    value = fair_objective(empty, groups[: len(empty)], kappa, ranks=True)
    value.backward()
    found["empty"] = value.item(), (empty.grad / 2).tolist()
    bad = losses.clone()
    bad[3] = -1.0 if rank else 1.0
    try:
        fair_objective(bad, groups, kappa, ranks=True)
    except UserError as error:
        found["error"] = str(error)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fair_objective(losses, groups, kappa)
    found["told"] = [str(one.message) for one in told]
    results.put((rank, found))
    dist.destroy_process_group()


def _whole():
    random = torch.Generator().manual_seed(0)
    return torch.rand(60, generator=random, dtype=torch.float64) * 3, torch.arange(60) % 6


def test_ranks_together_have_the_direction_of_the_whole():
    """Averaged over ranks, as DDP does; without the exchange it is far off where ranks have unequal groups."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=_rank, args=(r, port, 4.0, results)) for r in range(2)]
    for process in ranks:
        process.start()
    found = dict(results.get(timeout=60) for _ in ranks)
    for process in ranks:
        process.join(timeout=60)
    losses, groups = _whole()
    x = losses.clone().requires_grad_()
    value = fair_objective(x, groups, 4.0)
    value.backward()
    for name in ("unequal", "mixed"):
        for rank in range(2):
            got, gradient = found[rank][name, True]
            assert got == pytest.approx(value.item(), rel=1e-12)
            torch.testing.assert_close(torch.tensor(gradient, dtype=torch.float64), x.grad, rtol=1e-9, atol=1e-12)
        far = torch.tensor(found[0][name, False][1], dtype=torch.float64)
        assert (far - x.grad).norm() > 0.01 * x.grad.norm()
    assert "ranks=True" in found[0]["told"][0]
    for rank in range(2):  # a rank without a sample; and a bad loss of one rank, which is raised on both
        got, gradient = found[rank]["empty"]
        assert got == pytest.approx(value.item(), rel=1e-12)
        assert "sample 3 is -1" in found[rank]["error"]
        assert "on rank 1" in found[rank]["error"]
    torch.testing.assert_close(torch.tensor(found[0]["empty"][1], dtype=torch.float64), x.grad, rtol=1e-9, atol=1e-12)
