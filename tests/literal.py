"""Slow, literal transcriptions of every rule, in NumPy float64: the oracle the tests compare the package with.

Nothing here is shared with the package, and nothing here is clever: loops over clients and coordinates, distances from
differences of vectors, sequential definitions where they exist. Unless a docstring says otherwise, a rule is

    rule(G, losses, sizes, entropies, lr, **hyper) -> direction of shape (d,)

with G the n×d matrix of gradients g_i (of messages v_i, for the rules that act on messages), and the step is
w <- w − lr · direction. Arguments a rule does not use are ignored. Ties are broken by the lower client index.
A vector of zero norm stays zero wherever a rule normalises it. "Choice:" marks what the definitions leave open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Layer = slice | Sequence[int] | npt.NDArray[np.int64]

TINY = 1e-12  # relative size below which a computed vector counts as zero before it would be normalised


# ---------------------------------------------------------------------------------------------------- small helpers


def _matrix(G: Any) -> Array:
    out = np.array(G, dtype=np.float64)
    if out.ndim != 2 or out.shape[0] == 0:
        raise ValueError("G must be n×d with n ≥ 1")
    return out


def _vector(values: Any) -> Array:
    return np.array(values, dtype=np.float64).reshape(-1)


def _norm(v: Array) -> float:
    return math.sqrt(math.fsum(float(x) * float(x) for x in v))


def _dot(a: Array, b: Array) -> float:
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def _combine(weights: Any, G: Array) -> Array:
    """Σ_i weights_i g_i, one client after the other."""
    out = np.zeros(G.shape[1])
    for weight, g in zip(weights, G, strict=True):
        out = out + float(weight) * g
    return out


def _plain_mean(vectors: Any) -> Array:
    rows = list(vectors)
    total = np.zeros_like(np.asarray(rows[0], dtype=np.float64))
    for row in rows:
        total = total + row
    return total / len(rows)


def _rescaled(v: Array, norm: float) -> Array:
    """v · norm/‖v‖, and zero for v = 0."""
    size = _norm(v)
    return np.zeros_like(v) if size == 0.0 else v * (norm / size)


def _check_f(f: int, n: int, most: int) -> None:
    if not 0 <= f <= most:
        raise ValueError(f"f = {f} is not possible with n = {n}")


# ------------------------------------------------------------------------------------------- means and client scales


def mean(G: Any, losses: Any = None, sizes: Any = None, entropies: Any = None, lr: float = 1.0) -> Array:
    """d = (1/n) Σ g_i."""
    G = _matrix(G)
    return _combine([1.0 / len(G)] * len(G), G)


def fedavg(G: Any, losses: Any, sizes: Any, entropies: Any = None, lr: float = 1.0) -> Array:
    """d = Σ (m_i / Σ_j m_j) g_i."""
    G, m = _matrix(G), _vector(sizes)
    total = math.fsum(m)
    return _combine([m_i / total for m_i in m], G)


def fairmean_weight(loss: float, kappa: float, tau: float) -> float:
    """a(f) = 1 + κ f/(f+τ)."""
    return 1.0 + kappa * loss / (loss + tau)


def fairmean_phi(z: float, kappa: float, tau: float) -> float:
    """φ(z) = z + κ[z − τ log(1 + z/τ)], in 60 digits, so that no cancellation is left; φ' = a."""
    with localcontext() as context:
        context.prec = 60
        x, k, t = Decimal(float(z)), Decimal(float(kappa)), Decimal(float(tau))
        return float(x + k * (x - t * (1 + x / t).ln()))


def fairmean(
    G: Any, losses: Any, sizes: Any = None, entropies: Any = None, lr: float = 1.0, kappa: float = 4.0, tau: float = 1.0
) -> Array:
    """d = (1/n) Σ a(f_i) g_i, a(f) = 1 + κ f/(f+τ)."""
    G, f = _matrix(G), _vector(losses)
    return _combine([fairmean_weight(f_i, kappa, tau) / len(G) for f_i in f], G)


def fairmean_normalised(
    G: Any, losses: Any, sizes: Any = None, entropies: Any = None, lr: float = 1.0, kappa: float = 4.0, tau: float = 1.0
) -> Array:
    """d = (1/n) Σ (a_i/ā) g_i = Σ a_i g_i / Σ a_i, a_i = 1 + κ f_i/(f_i+τ)."""
    G, f = _matrix(G), _vector(losses)
    a = [fairmean_weight(f_i, kappa, tau) for f_i in f]
    average = math.fsum(a) / len(a)
    return _combine([a_i / average / len(G) for a_i in a], G)


def fairmean_split(
    G: Any,
    losses: Any,
    sizes: Any,
    entropies: Any,
    lr: float = 1.0,
    kappa: float = 16.0,
    tau: float = 1.0,
    beta: float = 1.0,
) -> Array:
    """d = Σ a_i g_i / Σ a_i, a_i = (1 + κ H_i/(H_i+τ)) exp(−β max(0, f_i − H_i)).

    Choice: if every a_i underflows to 0 the direction is 0.
    """
    G, f, H = _matrix(G), _vector(losses), _vector(entropies)
    a = [
        (1.0 + kappa * H_i / (H_i + tau)) * math.exp(-beta * max(0.0, f_i - H_i)) for f_i, H_i in zip(f, H, strict=True)
    ]
    total = math.fsum(a)
    return np.zeros(G.shape[1]) if total == 0.0 else _combine([a_i / total for a_i in a], G)


def qffl(
    G: Any, losses: Any, sizes: Any = None, entropies: Any = None, lr: float = 1.0, q: float = 1.0, eps: float = 1e-10
) -> Array:
    """d = (1/n) Σ F_i^q g_i, F = f + 1e-10 (direct rule)."""
    G, f = _matrix(G), _vector(losses)
    return _combine([(f_i + eps) ** q / len(G) for f_i in f], G)


def qffl_normalised(
    G: Any, losses: Any, sizes: Any = None, entropies: Any = None, lr: float = 1.0, q: float = 1.0, eps: float = 1e-10
) -> Array:
    """d = (1/lr) Σ F_i^q g_i / Σ h_i, h_i = q F_i^{q−1}‖g_i‖² + F_i^q/lr.

    The rule is w <- w − ΣΔ_i/Σh_i without a step size; it is divided by lr so that w − lr·d is that step.
    The guard for 0 < q < 1 and F → 0 is the 1e-10 inside F. Choice: Σh = 0 (q > 1, every loss and gradient 0) gives 0.
    """
    G, f = _matrix(G), _vector(losses)
    top, bottom = np.zeros(G.shape[1]), 0.0
    for f_i, g in zip(f, G, strict=True):
        F = float(f_i) + eps
        top = top + F**q * g
        if q != 0.0:
            bottom += q * F ** (q - 1.0) * _norm(g) ** 2
        bottom += F**q / lr
    return np.zeros(G.shape[1]) if bottom == 0.0 else top / bottom / lr


def drfl(G: Any, losses: Any, sizes: Any = None, entropies: Any = None, lr: float = 1.0) -> Array:
    """d = Σ (f_i/Σ_j f_j) g_i. Choice: uniform weights when every loss is 0."""
    G, f = _matrix(G), _vector(losses)
    total = math.fsum(f)
    return _combine([1.0 / len(G) if total == 0.0 else f_i / total for f_i in f], G)


def term(G: Any, losses: Any, sizes: Any = None, entropies: Any = None, lr: float = 1.0, t: float = 1.0) -> Array:
    """d = Σ λ_i g_i, λ = softmax(t f); t = 0 is the mean. No count weights."""
    G, f = _matrix(G), _vector(losses)
    top = max(t * float(f_i) for f_i in f)
    e = [math.exp(t * float(f_i) - top) for f_i in f]
    total = math.fsum(e)
    return _combine([e_i / total for e_i in e], G)


def _tilted_mean(values: Any, weights: Any, t: float) -> float:
    """(1/t) log Σ p_i exp(t x_i), p = weights/Σweights; Σ p_i x_i at t = 0."""
    x, p = _vector(values), _vector(weights) / math.fsum(_vector(weights))
    centre = math.fsum(p * x)
    if t == 0.0:
        return centre
    if max(abs(t * (float(x_i) - centre)) for x_i in x) < 1e-3:  # the same number, without cancellation
        shift = math.fsum(p_i * math.expm1(t * (x_i - centre)) for p_i, x_i in zip(p, x, strict=True))
        return centre + math.log1p(shift) / t
    top = max(t * float(x_i) for x_i in x)
    return (top + math.log(math.fsum(p_i * math.exp(t * x_i - top) for p_i, x_i in zip(p, x, strict=True)))) / t


def term_hierarchical_objective(sample_losses: Sequence[Any], t_in: float, t_out: float) -> float:
    """J = (1/t_out) log( (1/N) Σ_i m_i exp(t_out R_i) ), R_i = (1/t_in) log mean_s exp(t_in ℓ_is), N = Σ m_i."""
    clients = [_vector(values) for values in sample_losses]
    R = [_tilted_mean(values, np.ones(len(values)), t_in) for values in clients]
    return _tilted_mean(R, [len(values) for values in clients], t_out)


def term_hierarchical(sample_losses: Sequence[Any], t_in: float, t_out: float) -> list[Array]:
    """w_is = ∂J/∂ℓ_is = λ_i softmax_s(t_in ℓ_i), λ_i ∝ m_i exp(t_out R_i); d = Σ_is w_is ∇ℓ_is; Σ w = 1."""
    clients = [_vector(values) for values in sample_losses]
    R = [_tilted_mean(values, np.ones(len(values)), t_in) for values in clients]
    top = max(t_out * R_i for R_i in R)
    outer = [len(values) * math.exp(t_out * R_i - top) for values, R_i in zip(clients, R, strict=True)]
    total = math.fsum(outer)
    weights = []
    for values, outer_i in zip(clients, outer, strict=True):
        top = max(t_in * float(x) for x in values)
        inner = [math.exp(t_in * float(x) - top) for x in values]
        inner_total = math.fsum(inner)
        weights.append(np.array([outer_i / total * e / inner_total for e in inner]))
    return weights


# -------------------------------------------------------------------------------------------- minimum-norm problems


def simplex_min_norm_gap(G: Any, lam: Any) -> float:
    """max_i (‖d‖² − d·g_i), d = Σ λ_i g_i: 0 exactly at the minimum-norm point; ‖d − d*‖² ≤ gap. Infeasible: inf."""
    G, lam = _matrix(G), _vector(lam)
    return box_min_norm_gap(G, lam, np.zeros(len(G)), np.ones(len(G)))


def box_min_norm_gap(G: Any, lam: Any, lower: Any, upper: Any) -> float:
    """max over feasible μ of Σ (λ_i − μ_i) d·g_i, d = Σ λ_i g_i: the duality gap of min ½‖d‖². Infeasible: inf.

    The best μ starts at `lower` and pours the remaining mass into the clients of smallest d·g_i, up to `upper`.
    """
    G, lam, lower, upper = _matrix(G), _vector(lam), _vector(lower), _vector(upper)
    slack = 1e-10
    if abs(math.fsum(lam) - 1.0) > slack or np.any(lam < lower - slack) or np.any(lam > upper + slack):
        return math.inf
    d = _combine(lam, G)
    c = [_dot(d, g) for g in G]
    mu, left = lower.copy(), 1.0 - math.fsum(lower)
    for i in sorted(range(len(G)), key=lambda k: c[k]):
        take = min(left, float(upper[i] - lower[i]))
        mu[i], left = mu[i] + take, left - take
    return math.fsum((float(lam[i]) - float(mu[i])) * c[i] for i in range(len(G)))


def box_min_norm(G: Any, lower: Any, upper: Any, start: Any) -> Array:
    """λ = argmin ‖Σ λ_i g_i‖², Σ λ = 1, lower ≤ λ ≤ upper; `start` is any feasible point.

    Alternates exact line searches along e_j − e_i for the pair that violates optimality most with an exact solve on the
    weights strictly between their bounds; both only descend. The answer is certified by its duality gap: one above
    1e-13·max‖g‖² is an error; as a rule it is below 1e-14·‖d‖·max‖g‖.
    """
    G, lower, upper, lam = _matrix(G), _vector(lower), _vector(upper), _vector(start)
    size = max(_norm(g) for g in G)
    best, best_gap = lam.copy(), box_min_norm_gap(G, lam, lower, upper)
    stalled = 0
    for _ in range(2000):
        before = best_gap
        for _ in range(2 * len(G)):
            c = G @ (lam @ G)
            i = max((k for k in range(len(G)) if lam[k] > lower[k]), key=lambda k: c[k], default=-1)
            j = min((k for k in range(len(G)) if lam[k] < upper[k]), key=lambda k: c[k], default=-1)
            if i < 0 or j < 0 or i == j or c[i] <= c[j]:
                break
            room_i, room_j = float(lam[i] - lower[i]), float(upper[j] - lam[j])
            curvature = float(np.sum((G[i] - G[j]) ** 2))
            step = min(float(c[i] - c[j]) / curvature if curvature > 0.0 else math.inf, room_i, room_j)
            lam[i] = lower[i] if step == room_i else lam[i] - step
            lam[j] = upper[j] if step == room_j else lam[j] + step
        lam = _descend_free(G, lam, lower, upper)
        gap = box_min_norm_gap(G, lam, lower, upper)
        if gap < best_gap:
            best, best_gap = lam.copy(), gap
        stalled = 0 if best_gap < before else stalled + 1
        if best_gap <= 1e-16 * size * _norm(_combine(best, G)) or stalled >= 100:
            break
    if best_gap > 1e-13 * size**2:
        raise ArithmeticError(f"minimum-norm problem not solved: gap {best_gap}")
    return best


def _descend_free(G: Array, lam: Array, lower: Array, upper: Array) -> Array:
    """From λ to the least-squares point over the weights strictly inside their bounds; a bound once met is kept."""
    out = lam.copy()
    while True:
        free = [k for k in range(len(G)) if lower[k] < out[k] < upper[k]]
        if len(free) < 2:
            return out
        first, rest = free[0], free[1:]
        move = np.zeros(len(G))
        move[rest] = np.linalg.lstsq(np.stack([G[k] - G[first] for k in rest], axis=1), -(out @ G), rcond=None)[0]
        move[first] = -math.fsum(move[k] for k in rest)
        reach, blocking = 1.0, -1
        for k in free:
            if out[k] + move[k] < lower[k] and (lower[k] - out[k]) / move[k] < reach:
                reach, blocking = float((lower[k] - out[k]) / move[k]), k
            if out[k] + move[k] > upper[k] and (upper[k] - out[k]) / move[k] < reach:
                reach, blocking = float((upper[k] - out[k]) / move[k]), k
        out = np.clip(out + reach * move, lower, upper)
        if blocking < 0:
            return out
        out[blocking] = lower[blocking] if move[blocking] < 0.0 else upper[blocking]


def simplex_min_norm(G: Any) -> Array:
    """λ = argmin ‖Σ λ_i g_i‖² over λ ≥ 0, Σ λ = 1."""
    n = len(_matrix(G))
    return box_min_norm(G, np.zeros(n), np.ones(n), np.full(n, 1.0 / n))


# -------------------------------------------------------------------------------------- rules on the clients' gradients


def fedmgda_plus_weights(G: Any, sizes: Any, epsilon: float) -> tuple[Array, Array, Array, Array]:
    """(λ, U, lower, upper) of FedMGDA+: U has rows g_i/‖g_i‖, lower/upper = λ0 ∓ ε cut to [0, 1], λ0 = m_i/Σm."""
    G, m = _matrix(G), _vector(sizes)
    U = np.stack([_rescaled(g, 1.0) for g in G])
    start = m / math.fsum(m)
    lower = np.array([max(0.0, x - epsilon) for x in start])
    upper = np.array([min(1.0, x + epsilon) for x in start])
    return box_min_norm(U, lower, upper, start), U, lower, upper


def fedmgda_plus(
    G: Any, losses: Any, sizes: Any, entropies: Any = None, lr: float = 1.0, epsilon: float = 0.1
) -> Array:
    """d = Σ λ_i u_i, u_i = g_i/‖g_i‖, λ = argmin ‖Σ λ_i u_i‖², Σλ = 1, |λ_i − m_i/Σm| ≤ ε, λ ≥ 0."""
    lam, U, _, _ = fedmgda_plus_weights(G, sizes, epsilon)
    return _combine(lam, U)


def adafed(
    G: Any,
    losses: Any,
    sizes: Any = None,
    entropies: Any = None,
    lr: float = 1.0,
    gamma: float = 1.0,
    normalise: bool = False,
) -> Array:
    """t_i = (g_i − Σ_{j<i} r_ij t_j)/(|f_i|^γ − Σ_{j<i} r_ij), r_ij = g_i·t_j/‖t_j‖²; d = Σ λ_i t_i, λ_i ∝ 1/‖t_i‖².

    Written with t_i = e_i/c_i kept as the pair (e_i, c_i), so that c_i = 0 divides nothing: r_ij t_j =
    (g_i·e_j/‖e_j‖²) e_j, r_ij = c_j g_i·e_j/‖e_j‖², and d = Σ c_i e_i/‖e_i‖² / Σ c_i²/‖e_i‖². No ridge. Each g_i·e_j
    is taken with what is left of g_i after the earlier j (the same number, as the e_j are orthogonal; stabler), and
    the sweep is done twice. Choice, dependent gradients (the limits of a vanishing ridge): e_i = 0 with c_i = 0 is
    redundant and skipped, e_i = 0 with c_i ≠ 0 makes d = 0 (a zero gradient with a positive loss is one). All losses
    0 gives 0. "Zero" is relative, 1e-12.
    """
    G, f = _matrix(G), _vector(losses)
    phi = [abs(float(f_i)) ** gamma for f_i in f]
    if normalise:
        G = np.stack([_rescaled(g, 1.0) for g in G])
    largest = max(_norm(g) for g in G)
    kept: list[tuple[Array, float]] = []
    for g, phi_i in zip(G, phi, strict=True):
        e, c = g.copy(), phi_i
        for _ in range(2):
            for e_j, c_j in kept:
                r = _dot(e, e_j) / _dot(e_j, e_j)
                e, c = e - r * e_j, c - r * c_j
        if _norm(e) <= TINY * largest:
            if abs(c) > TINY * max(phi):
                return np.zeros(G.shape[1])
            continue
        kept.append((e, c))
    total = math.fsum(c * c / _dot(e, e) for e, c in kept)
    if total == 0.0:
        return np.zeros(G.shape[1])
    d = np.zeros(G.shape[1])
    for e, c in kept:
        d = d + (c / _dot(e, e) / total) * e
    return d


def fairmoo(
    G: Any, losses: Any, sizes: Any = None, entropies: Any = None, lr: float = 1.0, threshold: float = 6e-3
) -> Array:
    """Var(f) > threshold: d = g_fair = (2/n) Σ (f_i − f̄) g_i; else min-norm simplex point with d·g_fair ≥ 0; d/‖d‖.

    Var divides by n − 1 (0 for n = 1). With the constraint active, {λ in the simplex, Σ λ_i x_i = 0}, x_i =
    g_i·g_fair, is the hull of the clients with x_i = 0 and of the mixtures of one x_i > 0 with one x_j < 0, so the
    same simplex solver does it. Choice: if no λ is feasible (every x_i < 0) the constraint is dropped. ‖d‖ ≤
    1e-12·max‖g_i‖ gives 0, not a unit vector.
    """
    G, f = _matrix(G), _vector(losses)
    n, largest = len(G), max(_norm(g) for g in G)
    average = math.fsum(f) / n
    variance = math.fsum((float(f_i) - average) ** 2 for f_i in f) / (n - 1) if n > 1 else 0.0
    g_fair = _combine([2.0 / n * (f_i - average) for f_i in f], G)
    if variance > threshold:
        d = g_fair
    else:
        d = _combine(simplex_min_norm(G), G)
        x = [_dot(g, g_fair) for g in G]
        if _dot(d, g_fair) < -1e-14 * largest * _norm(g_fair) and max(x) >= 0.0:
            corners = [g for g, x_i in zip(G, x, strict=True) if x_i == 0.0]
            for i in range(n):
                for j in range(n):
                    if x[i] > 0.0 > x[j]:
                        corners.append((x[i] * G[j] - x[j] * G[i]) / (x[i] - x[j]))
            d = _combine(simplex_min_norm(np.stack(corners)), np.stack(corners))
    return np.zeros(G.shape[1]) if _norm(d) <= TINY * largest else d / _norm(d)


def fairness_row(losses: Any) -> Array | None:
    """h = ((f̂·u) f̂ − u), scaled to ‖h‖ = 1, f̂ = f/‖f‖, u = 1/√n; None when f = 0 or all losses are equal (h = 0)."""
    f = _vector(losses)
    if _norm(f) == 0.0:
        return None
    f_hat, u = f / _norm(f), np.full(len(f), 1.0 / math.sqrt(len(f)))
    h = _dot(f_hat, u) * f_hat - u
    return None if _norm(h) <= TINY else h / _norm(h)


def fedmdfg_row_active(losses: Any, theta_degrees: float = 11.25, expected_losses: Any = None) -> bool:
    """angle(f, 1) > θ, or some but not all f_i > expected_i (strict; no expectation yet: None). f = 0: False."""
    f = _vector(losses)
    if _norm(f) == 0.0:
        return False
    cosine = math.fsum(f) / (_norm(f) * math.sqrt(len(f)))
    if math.degrees(math.acos(min(1.0, max(-1.0, cosine)))) > theta_degrees:
        return True
    if expected_losses is None:
        return False
    risen = sum(1 for f_i, e_i in zip(f, _vector(expected_losses), strict=True) if f_i > e_i)
    return 0 < risen < len(f)


def fedmdfg_expectation(losses: Any, expected_losses: Any, rounds: int) -> Array:
    """E_i <- (c E_i + f_i)/(c + 1) if f_i ≤ E_i, else E_i; E_i = f_i at first (rounds c = 0).

    Choice (methods.md says only "running expectation"): the published rule; c counts every earlier round of the client.
    """
    f = _vector(losses)
    if rounds == 0 or expected_losses is None:
        return f
    E = _vector(expected_losses)
    return np.array([(rounds * e + x) / (rounds + 1) if x <= e else e for x, e in zip(f, E, strict=True)])


def fedmdfg_direction(
    G: Any,
    losses: Any,
    sizes: Any = None,
    entropies: Any = None,
    lr: float = 1.0,
    theta_degrees: float = 11.25,
    expected_losses: Any = None,
    target_norm: str = "plain",
    drop_zero: bool = False,
) -> Array:
    """Rows g_i·(mean_j‖g_j‖)/‖g_i‖, plus Σ h_i row_i if active; d = their min-norm point, scaled to ‖(1/n)Σ g_i‖.

    Choices: h has unit norm and acts on the rescaled rows. "plain mean gradient" is the mean of the gradients as sent
    (target_norm="plain"); the published code takes the mean of the rescaled ones (target_norm="rescaled"). A zero
    gradient stays a zero row, so d = 0 (drop_zero=False); the published code leaves such clients out (drop_zero=True:
    losses too). A min-norm point of norm ≤ 1e-12·(mean norm) is 0 and is not rescaled. Clients absent this round are
    not modelled.
    """
    G, f = _matrix(G), _vector(losses)
    active = fedmdfg_row_active(f, theta_degrees, expected_losses)
    if drop_zero:
        live = [i for i in range(len(G)) if _norm(G[i]) > 0.0]
        if not live:
            return np.zeros(G.shape[1])
        forced = active and not fedmdfg_row_active(f, theta_degrees, None)
        G, f = G[live], f[live]
        active = forced or fedmdfg_row_active(f, theta_degrees, None)
    average_norm = math.fsum(_norm(g) for g in G) / len(G)
    rows = [_rescaled(g, average_norm) for g in G]
    if target_norm == "plain":
        target = _norm(_plain_mean(G))
    elif target_norm == "rescaled":
        target = _norm(_plain_mean(rows))
    else:
        raise ValueError(target_norm)
    h = fairness_row(f)
    stacked = np.stack(rows) if h is None or not active else np.stack([*rows, _combine(h, np.stack(rows))])
    d = _combine(simplex_min_norm(stacked), stacked)
    return np.zeros(G.shape[1]) if _norm(d) <= TINY * average_norm else _rescaled(d, target)


def line_search(
    trial: Callable[[float], Any],
    w_losses: Any,
    direction: Any,
    lr: float,
    s: int = 5,
    beta: float = 1e-4,
    G: Any = None,
    fairness: bool = False,
) -> tuple[float, list[float]]:
    """First η of 2^s lr, 2^(s−1) lr, …, 2^(−s) lr with f_i(w − η d) ≤ f_i(w) − β η d·g_i for every client i.

    `trial(η)` gives the n losses at w − η·direction. Returns (η, the steps tried in order). Reading of methods.md
    ("from 2^s·lr halving down on all clients' losses"): Armijo's condition for every client, with the true slopes
    d·g_i of the gradients as sent when G is given, with ‖d‖² in their place when not. Choices: the last trial is
    2^(−s)·lr; fairness=True asks in addition that cos(f, 1) rises (published code, when the fairness row is active).
    If none is accepted: the largest tried step with Σf below the old Σf; else the tried step of least Σf (published
    code); losses that are not finite count as +inf, and if all are, the smallest step is returned.
    """
    f, d = _vector(w_losses), _vector(direction)
    slopes = [_dot(d, d)] * len(f) if G is None else [_dot(d, g) for g in _matrix(G)]

    def cosine(x: Array) -> float:
        return 1.0 if _norm(x) == 0.0 else float(np.sum(x)) / (_norm(x) * math.sqrt(len(x)))

    steps, sums = [], []
    for k in range(2 * s + 1):
        step = 2.0**s * lr / 2.0**k
        new = _vector(trial(step))
        steps.append(step)
        sums.append(float(np.sum(new)) if np.all(np.isfinite(new)) else math.inf)
        enough = all(bool(x <= f_i - beta * step * c) for x, f_i, c in zip(new, f, slopes, strict=True))
        if enough and (not fairness or cosine(new) > cosine(f)):
            return step, steps
    for step, total in zip(steps, sums, strict=True):
        if total < math.fsum(f):
            return step, steps
    if all(total == math.inf for total in sums):
        return steps[-1], steps
    return steps[int(np.argmin(sums))], steps


def fedlf_direction(
    G: Any,
    losses: Any,
    sizes: Any = None,
    entropies: Any = None,
    lr: float = 1.0,
    layers: Sequence[Layer] = (slice(None),),
    fair_row: str = "unit",
) -> Array:
    """Per layer l: rows g_il·mean‖g_jl‖/‖g_il‖ plus Σ h_i row_i; min-norm point d_l; d = all d_l at norm ‖(1/n)Σ g_i‖.

    `layers` are slices or index lists that partition the coordinates. No fairness row if all losses are equal or 0.
    Choices: one final rescaling of the whole d to the norm of the mean of the gradients as sent. "The same" row as
    FedMDFG's, h of unit norm (fair_row="unit"); the published code rescales that row to the layer's mean norm
    (fair_row="mean_norm"). A client's zero layer gradient stays a zero row, so that layer's d_l is 0.
    """
    G, f = _matrix(G), _vector(losses)
    if fair_row not in ("unit", "mean_norm"):
        raise ValueError(fair_row)
    h = fairness_row(f)
    d = np.zeros(G.shape[1])
    for layer in layers:
        part = G[:, layer]
        average_norm = math.fsum(_norm(g) for g in part) / len(part)
        rows = [_rescaled(g, average_norm) for g in part]
        if h is not None:
            extra = _combine(h, np.stack(rows))
            rows.append(extra if fair_row == "unit" else _rescaled(extra, average_norm))
        point = _combine(simplex_min_norm(np.stack(rows)), np.stack(rows))
        d[layer] = 0.0 if _norm(point) <= TINY * average_norm else point
    return _rescaled(d, _norm(_plain_mean(G)))


# ------------------------------------------------------------------------------- robust aggregates of the messages


def norm_screening(
    G: Any, losses: Any = None, sizes: Any = None, entropies: Any = None, lr: float = 1.0, f: int = 0
) -> Array:
    """d = mean of the n − f messages of smallest norm; G holds the scaled messages. Ties: the higher index goes."""
    G = _matrix(G)
    _check_f(f, len(G), len(G) - 1)
    order = sorted(range(len(G)), key=lambda i: (_norm(G[i]), i))
    return _plain_mean([G[i] for i in sorted(order[: len(G) - f])])


def cwtm(G: Any, losses: Any = None, sizes: Any = None, entropies: Any = None, lr: float = 1.0, f: int = 0) -> Array:
    """d_c = (1/(n−2f)) Σ of the sorted v_1c..v_nc without the f smallest and the f largest; n > 2f."""
    G = _matrix(G)
    n = len(G)
    _check_f(f, n, (n - 1) // 2)
    out = np.zeros(G.shape[1])
    for c in range(G.shape[1]):
        values = sorted(float(x) for x in G[:, c])
        out[c] = math.fsum(values[f : n - f]) / (n - 2 * f)
    return out


def coordinate_median(G: Any, losses: Any = None, sizes: Any = None, entropies: Any = None, lr: float = 1.0) -> Array:
    """d_c = the middle of v_1c..v_nc; for even n the mean of the two middle values."""
    G = _matrix(G)
    n = len(G)
    out = np.zeros(G.shape[1])
    for c in range(G.shape[1]):
        values = sorted(float(x) for x in G[:, c])
        out[c] = values[n // 2] if n % 2 else (values[n // 2 - 1] + values[n // 2]) / 2.0
    return out


def rfa(
    G: Any,
    losses: Any = None,
    sizes: Any = None,
    entropies: Any = None,
    lr: float = 1.0,
    nu: float = 1e-5,
    iterations: int = 4,
    weights: Any = None,
    start: Any = None,
) -> Array:
    """z <- Σ β_i v_i/Σ β_i, β_i = α_i/max(ν, ‖z − v_i‖), `iterations` times from z = Σ α_i v_i.

    Choices: α uniform unless `weights` (any positive n numbers, e.g. sizes) are given, and then the first z is the
    α-weighted mean; exactly `iterations` updates, no early stop. `start` overrides the first z (0 gives ByzFL's
    GeometricMedian).
    """
    G = _matrix(G)
    alpha = np.ones(len(G)) if weights is None else _vector(weights)
    alpha = alpha / math.fsum(alpha)
    z = _combine(alpha, G) if start is None else _vector(start)
    for _ in range(iterations):
        beta = [a / max(nu, _norm(z - v)) for a, v in zip(alpha, G, strict=True)]
        z = _combine(beta, G) / math.fsum(beta)
    return z


def faba(G: Any, losses: Any = None, sizes: Any = None, entropies: Any = None, lr: float = 1.0, f: int = 0) -> Array:
    """f times: drop the message farthest from the mean of those left; d = mean of the rest. Ties: lower index goes."""
    left = list(_matrix(G))
    _check_f(f, len(left), len(left) - 1)
    for _ in range(f):
        centre = _plain_mean(left)
        distances = [_norm(v - centre) for v in left]
        del left[distances.index(max(distances))]
    return _plain_mean(left)


def krum_scores(G: Any, f: int) -> list[float]:
    """score_i = Σ ‖v_i − v_j‖² over the n − f − 1 nearest other messages j (ByzFL's count; Krum's paper: n − f − 2)."""
    G = _matrix(G)
    n = len(G)
    _check_f(f, n, (n - 1) // 2)
    scores = []
    for i in range(n):
        distances = sorted(_norm(G[i] - G[j]) ** 2 for j in range(n) if j != i)
        scores.append(math.fsum(distances[: n - f - 1]))
    return scores


def krum(G: Any, losses: Any = None, sizes: Any = None, entropies: Any = None, lr: float = 1.0, f: int = 0) -> Array:
    """d = v_i of the least score_i = Σ ‖v_i − v_j‖² over its n − f − 1 nearest others; needs n > 2f (ByzFL)."""
    scores = krum_scores(G, f)
    return np.array(_matrix(G)[scores.index(min(scores))])


def multi_krum(
    G: Any,
    losses: Any = None,
    sizes: Any = None,
    entropies: Any = None,
    lr: float = 1.0,
    f: int = 0,
    m: int | None = None,
) -> Array:
    """d = mean of the m messages of least Krum score; m = n − f unless given (ByzFL)."""
    G = _matrix(G)
    scores = krum_scores(G, f)
    order = sorted(range(len(G)), key=lambda i: (scores[i], i))
    return _plain_mean([G[i] for i in order[: len(G) - f if m is None else m]])


def centered_clipping(
    G: Any,
    losses: Any = None,
    sizes: Any = None,
    entropies: Any = None,
    lr: float = 1.0,
    radius: float = 100.0,
    iterations: int = 1,
    start: Any = None,
) -> Array:
    """v <- v + (1/n) Σ (v_i − v) min(1, radius/‖v_i − v‖), `iterations` times from `start`.

    ByzFL: start = 0 on the first call, the last result afterwards; one iteration; radius 100. A zero difference stays
    zero.
    """
    G = _matrix(G)
    v = np.zeros(G.shape[1]) if start is None else _vector(start)
    for _ in range(iterations):
        v = v + _plain_mean([_clip(message - v, radius) for message in G])
    return v


def _clip(v: Array, radius: float) -> Array:
    size = _norm(v)
    return v * (radius / size) if size > radius else v.copy()


def norm_clipping(G: Any, radius: float) -> Array:
    """v_i <- v_i min(1, radius/‖v_i‖), row by row. Returns the messages."""
    return np.stack([_clip(v, radius) for v in _matrix(G)])


def nnm(G: Any, f: int) -> Array:
    """v_i <- mean of the n − f messages nearest to v_i, itself included (distance 0; ByzFL). Returns the messages."""
    G = _matrix(G)
    n = len(G)
    _check_f(f, n, n - 1)
    mixed = []
    for i in range(n):
        order = sorted(range(n), key=lambda j: (_norm(G[i] - G[j]), j != i, j))
        mixed.append(_plain_mean([G[j] for j in order[: n - f]]))
    return np.stack(mixed)


def h_nobs(
    G: Any,
    losses: Any,
    sizes: Any = None,
    entropies: Any = None,
    lr: float = 1.0,
    q: float = 1.0,
    f: int = 0,
    eps: float = 1e-10,
) -> Array:
    """v_i = F_i^q g_i, F = f_i + 1e-10; d = mean of the n − f messages v_i of smallest norm."""
    return norm_screening(_qffl_messages(G, losses, q, eps), f=f)


def qffl_cwtm(
    G: Any,
    losses: Any,
    sizes: Any = None,
    entropies: Any = None,
    lr: float = 1.0,
    q: float = 1.0,
    f: int = 0,
    eps: float = 1e-10,
) -> Array:
    """v_i = F_i^q g_i, F = f_i + 1e-10; d = coordinate-wise mean without the f smallest and f largest."""
    return cwtm(_qffl_messages(G, losses, q, eps), f=f)


def _qffl_messages(G: Any, losses: Any, q: float, eps: float) -> Array:
    return np.stack([(float(loss) + eps) ** q * g for loss, g in zip(_vector(losses), _matrix(G), strict=True)])


# ------------------------------------------------------------------------------------------ rules with other inputs


def bant(
    loss: float, trial_losses: Any, trust: Any = None, b: float = 0.5, b_zero: float = 0.001
) -> tuple[Array, Array]:
    """c_i = max(L(w) − L(w − lr v_i), 0)/Σ; T <- (1−b)T + b c; weight_i = T_i if c_i > 0 else 0. Returns (weights, T).

    If every c_i is 0: c = 1/n and b = 0.001, so all weights are the T_i. T_0 = 1/n (trust=None). d = Σ weight_i v_i.
    Choice: the weights are not renormalised, so after clients are cut off they sum to less than 1.
    """
    gains = [max(float(loss) - float(x), 0.0) for x in _vector(trial_losses)]
    n, total = len(gains), math.fsum(gains)
    old = [1.0 / n] * n if trust is None else [float(x) for x in _vector(trust)]
    if total == 0.0:
        c, rate = [1.0 / n] * n, b_zero
    else:
        c, rate = [x / total for x in gains], b
    T = [(1.0 - rate) * t + rate * c_i for t, c_i in zip(old, c, strict=True)]
    return np.array([t if c_i > 0.0 else 0.0 for t, c_i in zip(T, c, strict=True)]), np.array(T)


def two_means(points: Any) -> Mask:
    """2-means by Lloyd's iteration to a fixed point; True marks the second cluster.

    Choice: the first centres are the two points farthest apart (of equal pairs the lexicographically first; the lower
    index is cluster 0); a point midway goes to cluster 0. Fewer than two distinct points: all in cluster 0.
    """
    X = _matrix(points)
    n, pair, far = len(X), None, 0.0
    for i in range(n):
        for j in range(i + 1, n):
            distance = _norm(X[i] - X[j])
            if distance > far:
                pair, far = (i, j), distance
    label = np.zeros(n, dtype=bool)
    if pair is None:
        return label
    centres = [X[pair[0]], X[pair[1]]]
    for _ in range(10_000):
        new = np.array([_norm(x - centres[1]) < _norm(x - centres[0]) for x in X])
        if not new.any() or new.all():
            return new
        centres = [_plain_mean(X[~new]), _plain_mean(X[new])]
        if np.array_equal(new, label):
            return new
        label = new
    raise ArithmeticError("Lloyd's iteration did not settle")


def lfighter(rows: Any, diagonal: str = "excluded") -> Mask:
    """rows n×K×p (output-layer update of each client) -> which clients are kept; d = plain mean of the kept messages.

    Classes: the two k of largest Σ_i ‖rows_ik‖; features: those two rows; clusters: `two_means`; kept: the cluster c
    of larger (n_c/n)(1 − mean_j min_l cos(x_j, x_l)), the first on a tie; all, if one is empty. cos with a zero
    vector is 0. "Diagonal excluded": l ≠ j, and a cluster of one has min = 0. The published code puts 0 on the
    diagonal and lets it take part in the minimum: min(0, ·) (diagonal="zeroed").
    """
    rows = np.array(rows, dtype=np.float64)
    n, classes = rows.shape[0], rows.shape[1]
    strength = [math.fsum(_norm(rows[i, k]) for i in range(n)) for k in range(classes)]
    top = sorted(range(classes), key=lambda k: (-strength[k], k))[:2]
    X = np.stack([np.concatenate([rows[i, k] for k in top]) for i in range(n)])
    second = two_means(X)
    if not second.any() or second.all():
        return np.ones(n, dtype=bool)
    values = []
    for members in (np.flatnonzero(~second), np.flatnonzero(second)):
        lowest = []
        for j in members:
            others = [_cosine(X[j], X[k]) for k in members if k != j]
            if diagonal == "zeroed" or not others:
                others.append(0.0)
            lowest.append(min(others))
        values.append(len(members) / n * (1.0 - math.fsum(lowest) / len(members)))
    return second if values[1] > values[0] else ~second


def _cosine(a: Array, b: Array) -> float:
    size = _norm(a) * _norm(b)
    return 0.0 if size == 0.0 else _dot(a, b) / size
