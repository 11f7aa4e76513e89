"""The inequalities of the paper as plain formulas: constants in, bounds out.

    L        smoothness of a regular client's loss            G      its gradient's norm, at most
    A        ‖∇f̃_i − ∇F_R‖ of a poisoned client, at most      Γ      norm of a sample's logit Jacobian, at most
    H        ‖∇f_i − ∇F_R‖ of a poisoned client before it was poisoned, at most
    δ, ρ     fraction of clients that is poisoned, and of their samples that is relabelled, at most

Numbers, arrays or tensors; nothing here knows of runs.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Real = TypeVar("Real", float, NDArray[np.float64], Tensor)


def smoothness(kappa: float, tau: float, L: Real, G: Real) -> Real:
    """L_Φ = (1+κ)L + (κ/τ)G²: Φ is this smooth where every f_i is L-smooth with gradients up to G (Theorem 2).

    >>> smoothness(1.0, 2.0, 10.0, 2.0)
    22.0
    """
    return (1 + kappa) * L + (kappa / tau) * G**2


def attack_radius(delta: float | Real, kappa: float, A: Real, G: Real) -> Real:
    """ε(δ,κ) = δ[(1+κ)A + 2κG] ≥ ‖e^t‖: how far poisoned clients can move the direction (Lemma 2).

    >>> attack_radius(0.2, 1.0, 3.0, 2.0)
    2.0
    """
    return delta * ((1 + kappa) * A + 2 * kappa * G)


def gradient_bound(gamma: Real) -> Real:
    """G = √2 Γ: no cross-entropy gradient is longer (Lemma 1)."""
    return math.sqrt(2) * gamma


def poisoning_bound(H: Real, rho: float, gamma: Real) -> Real:
    """A = H + √2 ρ Γ: relabelling moves a client's gradient by at most √2 ρ Γ (Lemma 1)."""
    return H + math.sqrt(2) * rho * gamma


def stationarity_bound(objective: float, alpha: Real, rounds: Real, epsilon: Real) -> Real:
    """2Φ(w⁰)/(αT) + ε² ≥ (1/T) Σ ‖∇Φ(w^t)‖², for a step 0 < α ≤ 1/L_Φ (Theorem 2)."""
    return 2 * objective / (alpha * rounds) + epsilon**2


def sandwich(variance: Real, tau: float, largest: Real) -> tuple[Real, Real]:
    """(τ / 2(B+τ)² · Var, Var / 2τ) around D_τ, for losses in [0, B] (eq. 7).

    >>> sandwich(1.0, 1.0, 1.0)
    (0.125, 0.5)
    """
    return tau / (2 * (largest + tau) ** 2) * variance, variance / (2 * tau)
