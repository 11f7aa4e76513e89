"""Small dense quadratic programs: least-norm points, by a maintained active-set solver, checked by the duality gap."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean.errors import UserError

Array = NDArray[np.float64]
_EQUALITY = 5
_PROXIMAL = 1e-8
_GAP = 1e-13
_ROUNDS = 50


def min_norm(
    M: Tensor, lower: Tensor | None = None, upper: Tensor | None = None, at_least: Tensor | None = None
) -> Tensor:
    """λ minimising λᵀMλ with Σλ = 1, lower ≤ λ ≤ upper (default 0 and 1) and, if given, at_least·λ ≥ 0.

    M may be singular: proximal steps λ ← argmin λᵀMλ + ρ‖λ − λ_old‖² are repeated until the duality gap closes.
    """
    n = len(M)
    if n == 1:
        return torch.ones_like(M[0])
    H, size = _scaled(M)
    if size == 0:
        return _feasible(n, lower, upper).to(M)
    low = np.zeros(n) if lower is None else lower.cpu().numpy()
    high = np.ones(n) if upper is None else upper.cpu().numpy()
    x: Array | None = None if at_least is None else at_least.cpu().numpy()
    if x is not None:
        x = x / max(np.abs(x).max(), 1e-300)
    weights = np.clip(_feasible(n, lower, upper).cpu().numpy(), low, high)
    best, best_gap = weights, np.inf
    for _ in range(_ROUNDS):
        weights, multiplier = _solve(H + _PROXIMAL * np.eye(n), -_PROXIMAL * weights, low, high, x)
        gap = duality_gap(H, weights, low, high, x, multiplier)
        if gap >= best_gap:
            break
        best, best_gap = weights, gap
        if gap <= _GAP:
            break
    if not best_gap <= 1e-6:
        raise ArithmeticError(f"least-norm problem with {n} clients not solved: duality gap {best_gap:.1e}")
    return torch.from_numpy(best).to(M)


def _scaled(M: Tensor) -> tuple[Array, float]:
    size = float(M.diagonal().mean())
    return (np.ascontiguousarray((M / size).cpu().numpy()) if size > 0 else np.zeros(0)), size


def _feasible(n: int, lower: Tensor | None, upper: Tensor | None) -> Tensor:
    """Some point of the box with Σλ = 1."""
    if lower is None or upper is None:
        return torch.full((n,), 1 / n, dtype=torch.float64)
    room = upper - lower
    return lower + room * ((1 - lower.sum()) / room.sum().clamp(min=1e-300))


def _solve(H: Array, f: Array, low: Array, high: Array, x: Array | None) -> tuple[Array, float]:
    """(λ, multiplier of x·λ ≥ 0)."""
    try:
        import daqp
    except ImportError:
        raise UserError("this method needs the QP solver daqp: pip install daqp") from None
    n = len(f)
    rows = [np.ones(n)] if x is None else [np.ones(n), x]
    upper = np.concatenate([high, [1.0], [] if x is None else [1e30]])
    lower = np.concatenate([low, [1.0], [] if x is None else [0.0]])
    sense = np.zeros(len(upper), dtype=np.int32)
    sense[n] = _EQUALITY
    answer: Any = daqp.solve(H, f, np.array(rows), upper, lower, sense, primal_tol=1e-13)
    weights, _, flag, info = answer
    if flag < 1:
        raise ArithmeticError(f"least-norm problem with {n} clients: the solver gave up (exit flag {flag})")
    weights = np.clip(weights, low, high)
    return weights, 0.0 if x is None else abs(float(info["lam"][n + 1]))


def duality_gap(H: Array, weights: Array, low: Array, high: Array, x: Array | None, multiplier: float) -> float:
    """λᵀHλ − min over the box with Σμ = 1 of (Hλ − νx)·μ, for the Lagrangian with ν on x·λ ≥ 0; 0 at the optimum.

    Also counts what the constraints miss.
    """
    slope = H @ weights
    value, missed = float(weights @ slope), abs(float(weights.sum()) - 1)
    if x is not None:
        slope = slope - multiplier * x
        missed += max(0.0, -float(x @ weights))
    order = np.argsort(slope)
    room = (high - low)[order]
    filled = np.clip(1 - low.sum() - (np.cumsum(room) - room), 0, room)
    return max(0.0, value - float(slope @ low + slope[order] @ filled)) + missed
