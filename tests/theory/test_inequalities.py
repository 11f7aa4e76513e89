"""Every inequality of the paper, on random losses, gradients and problems, extremes included."""

import math

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fairmean.theory import bounds
from fairmean.transform import dispersion, marginal_weight, phi, psi

KAPPA = st.floats(0, 1e6)
TAU = st.floats(1e-6, 1e6)
LOSS = st.just(0.0) | st.floats(1e-12, 1e8)
LOSSES = st.lists(LOSS, min_size=1, max_size=12).map(lambda v: torch.tensor(v, dtype=torch.float64))


@given(LOSS, LOSS, KAPPA, TAU)
@example(0.0, 1e8, 1e6, 1e-6)
def test_marginal_weight(x, y, kappa, tau):
    """1 ≤ a ≤ 1 + κ, nondecreasing, κ/τ-Lipschitz; φ ≥ 0."""
    a, b = marginal_weight(x, kappa, tau), marginal_weight(y, kappa, tau)
    assert 1 <= a <= (1 + kappa) * (1 + 1e-15)
    assert (a <= b * (1 + 1e-15)) if x <= y else (b <= a * (1 + 1e-15))
    assert abs(a - b) <= kappa / tau * abs(x - y) * (1 + 1e-9) + 1e-15 * (1 + kappa)
    assert phi(x, kappa, tau) >= x >= 0
    assert psi(x, tau) >= 0


@given(LOSSES, KAPPA, TAU)
@example(torch.tensor([0.0, 1e8], dtype=torch.float64), 1.0, 1e-6)
@example(torch.tensor([1e-9, 1e-9], dtype=torch.float64), 1.0, 1.0)
def test_decomposition(losses, kappa, tau):
    """Φ = φ(F) + κ D_τ (eq. 6), with D_τ ≥ 0."""
    objective, spread = phi(losses, kappa, tau).mean().item(), dispersion(losses, tau).item()
    assert spread >= 0
    assert math.isclose(
        objective, phi(losses.mean().item(), kappa, tau) + kappa * spread, rel_tol=1e-11, abs_tol=1e-300
    )


@given(LOSSES, TAU)
@example(torch.tensor([0.0, 1e8], dtype=torch.float64), 1e-6)
def test_sandwich(losses, tau):
    """τ/2(B+τ)² Var ≤ D_τ ≤ Var/2τ (eq. 7)."""
    low, high = bounds.sandwich(losses.var(correction=0).item(), tau, losses.max().item())
    spread = dispersion(losses, tau).item()
    rounding = 1e-15 * (losses.max().item() ** 2 / tau + 1e-300)
    assert low <= spread * (1 + 1e-9) + rounding
    assert spread <= high * (1 + 1e-9) + rounding


NUMBER = st.floats(-1e3, 1e3) | st.floats(-1e-6, 1e-6)


@st.composite
def round_of_gradients(draw):
    """n gradients as sent, n losses, and who is poisoned; at least one client is regular."""
    n, d = draw(st.integers(1, 8)), draw(st.integers(1, 5))
    gradients = draw(arrays(np.float64, (n, d), elements=NUMBER))
    losses = draw(arrays(np.float64, n, elements=st.floats(0, 1e6)))
    poisoned = draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda p: not all(p)))
    return gradients, losses, np.array(poisoned)


@given(round_of_gradients(), st.floats(0, 1e3), st.floats(1e-3, 1e3))
def test_lemma_2(case, kappa, tau):
    """‖e‖ ≤ δ[(1+κ)A + 2κG], whatever clients have for gradients."""
    gradients, losses, poisoned = case
    a = marginal_weight(torch.from_numpy(losses), kappa, tau).numpy()[:, None]
    mean = gradients[~poisoned].mean(0)
    fair = (a * gradients)[~poisoned].mean(0)
    error = (a * gradients).mean(0) - fair
    G = np.linalg.norm(gradients[~poisoned], axis=1).max()
    A = np.linalg.norm(gradients[poisoned] - mean, axis=1).max(initial=0.0)
    radius = bounds.attack_radius(poisoned.mean(), kappa, A, G)
    assert np.linalg.norm(error) <= radius * (1 + 1e-9) + 1e-12 * (1 + kappa) * np.abs(gradients).max()


def quadratics(seed, n=4, d=3):
    """f_i(w) = ½ (w − m_i)ᵀ Q_i (w − m_i) + c_i ≥ 0: value, gradient, and the largest eigenvalue of all."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(n, d, d)) * rng.uniform(0.1, 3, (n, 1, 1))
    Q, m, c = roots @ roots.transpose(0, 2, 1), rng.normal(size=(n, d)), rng.uniform(0, 2, n)

    def value(w):
        return 0.5 * np.einsum("ni,nij,nj->n", w - m, Q, w - m) + c

    def gradient(w):
        return np.einsum("nij,nj->ni", Q, w - m)

    return value, gradient, np.linalg.eigvalsh(Q)[:, -1].max()


def fair(value, gradient, w, kappa, tau):
    """Φ and ∇Φ."""
    f = torch.from_numpy(value(w))
    weights = marginal_weight(f, kappa, tau).numpy()[:, None]
    return phi(f, kappa, tau).mean().item(), (weights * gradient(w)).mean(0)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.floats(0, 50), st.floats(0.05, 20))
def test_objective_is_smooth(seed, kappa, tau):
    """‖∇Φ(x) − ∇Φ(y)‖ ≤ L_Φ ‖x − y‖; between two points a quadratic's gradient is longest at an end."""
    value, gradient, L = quadratics(seed)
    rng = np.random.default_rng(seed + 1)
    x, y = rng.normal(size=(2, 3)) * 10 ** rng.uniform(-3, 1)
    G = max(np.linalg.norm(gradient(p), axis=1).max() for p in (x, y))
    change = np.linalg.norm(fair(value, gradient, x, kappa, tau)[1] - fair(value, gradient, y, kappa, tau)[1])
    assert change <= bounds.smoothness(kappa, tau, L, G) * np.linalg.norm(x - y) * (1 + 1e-9) + 1e-12


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 8), st.floats(0.1, 10), st.floats(0.05, 1), st.floats(0, 3))
def test_theorem_2(seed, kappa, tau, share, noise):
    """Average stationarity of w ← w − α(∇Φ + e), ‖e‖ ≤ ε, for any step up to 1/L_Φ; and descent in every round."""
    value, gradient, L = quadratics(seed)
    rng = np.random.default_rng(seed + 1)
    w = rng.normal(size=3)
    G, T = 60.0, 50
    alpha = share / bounds.smoothness(kappa, tau, L, G)
    start, norms, radius = fair(value, gradient, w, kappa, tau)[0], [], noise
    for _ in range(T):
        if np.linalg.norm(gradient(w), axis=1).max() > G:  # outside the set where the constants hold
            break
        before, g = fair(value, gradient, w, kappa, tau)
        e = rng.normal(size=3)
        e *= radius / np.linalg.norm(e)
        w = w - alpha * (g + e)
        norms.append(g @ g)
        after = fair(value, gradient, w, kappa, tau)[0]
        if np.linalg.norm(gradient(w), axis=1).max() <= G:
            assert after <= before - alpha / 2 * (g @ g) + alpha / 2 * (e @ e) + 1e-10 * (1 + before)
    if norms:
        bound = bounds.stationarity_bound(start, alpha, len(norms), radius)
        assert np.mean(norms) <= bound * (1 + 1e-9) + 1e-12


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 30), st.floats(0, 1), st.floats(1e-3, 1e3))
def test_lemma_1(seed, samples, rho, size):
    """Softmax regression with random inputs and weights: ‖∇f‖ ≤ √2 Γ, relabelling moves it by at most √2 ρ Γ."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(size=(samples, 4)) * size, np.ones((samples, 1))], 1)
    w = rng.normal(size=(3, 5)) * 10 ** rng.uniform(-2, 2)
    y = rng.integers(0, 3, samples)
    changed = rng.permutation(samples)[: int(rho * samples)]
    poisoned = y.copy()
    poisoned[changed] = (y[changed] + rng.integers(1, 3, len(changed))) % 3

    def gradient(labels):
        p = torch.from_numpy(x @ w.T).softmax(1).numpy()
        return (p - np.eye(3)[labels]).T @ x / samples

    gamma = np.linalg.norm(x, axis=1).max()
    assert np.linalg.norm(gradient(y)) <= bounds.gradient_bound(gamma) * (1 + 1e-12)
    share = len(changed) / samples
    moved = np.linalg.norm(gradient(poisoned) - gradient(y))
    assert moved <= bounds.poisoning_bound(0.0, share, gamma) * (1 + 1e-12) + 1e-12 * gamma
    other = rng.normal(size=(3, 5))
    A = bounds.poisoning_bound(np.linalg.norm(gradient(y) - other), share, gamma)
    assert np.linalg.norm(gradient(poisoned) - other) <= A * (1 + 1e-12) + 1e-12 * gamma


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.floats(0.01, 100), st.floats(0.01, 100))
def test_theorem_1(seed, kappa, tau):
    """D_τ at the minimiser of Φ is at most D_τ at that of the mean, for parabolas on a line."""
    rng = np.random.default_rng(seed)
    n = rng.integers(2, 6)
    c, m, b = rng.uniform(0.1, 5, n), rng.normal(size=n) * 3, rng.uniform(0, 2, n)

    def losses(w):
        return torch.from_numpy(c * (w - m) ** 2 + b)

    def slope(w):
        return float((marginal_weight(losses(w), kappa, tau).numpy() * 2 * c * (w - m)).mean())

    low, high = m.min(), m.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    average = (c * m).sum() / c.sum()
    assert dispersion(losses(low), tau) <= dispersion(losses(average), tau) * (1 + 1e-9) + 1e-15
