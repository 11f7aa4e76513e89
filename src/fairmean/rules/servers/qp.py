"""Small dense quadratic programs: least-norm points, by a maintained active-set solver, checked by the duality gap."""

from __future__ import annotations

import warnings
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
_WORTH_TELLING = 1e-4  # far below what rounding of bfloat16 or a batch does to the messages
_ROUNDS = 50


def min_norm(
    M: Tensor, lower: Tensor | None = None, upper: Tensor | None = None, at_least: Tensor | None = None
) -> Tensor:
    """λ minimising λᵀMλ with Σλ = 1, lower ≤ λ ≤ upper (default 0 and 1) and, if given, at_least·λ ≥ 0.

    M may be singular: proximal steps λ ← argmin λᵀMλ + ρ‖λ − λ_old‖² are repeated until the duality gap closes; ρ grows
    where the solver cannot tell M + ρI from a singular matrix.
    """
    n, like, M = len(M), M, M.cpu()
    if not bool(M.isfinite().all()):  # a diverging run: let its loss say so
        return torch.full_like(like[0], torch.nan)
    low = np.zeros(n) if lower is None else lower.cpu().numpy()
    high = np.ones(n) if upper is None else upper.cpu().numpy()
    norms = M.diagonal().clamp(min=0).sqrt().cpu().numpy()
    norms[norms == 0] = norms[norms > 0].min() if norms.any() else 1.0
    # λ_i = c_i x_i with c_i ∝ 1/‖v_i‖: the problem in x has a unit diagonal, however unequal the messages are
    c = norms.min() / norms
    H = M.cpu().numpy() / np.outer(norms, norms)
    extra = None if at_least is None else at_least.cpu().numpy() * c
    if extra is not None:
        extra = extra / max(np.abs(extra).max(), 1e-300)
    start = _feasible(low, high)
    best, best_gap, x, rho = start, np.inf, start / c, _PROXIMAL
    for _ in range(_ROUNDS):
        while (found := _solve(H + rho * np.eye(n), -rho * x, c, low / c, high / c, extra)) is None:
            rho *= 100
            if rho > 1:  # nothing is feasible
                raise ArithmeticError(f"least-norm problem with {n} messages: the solver gave up")
        x, multiplier = found
        gap = duality_gap(H, x, c, low, high, extra, multiplier)
        if gap >= best_gap:
            break
        best, best_gap = c * x, gap
        if gap <= _GAP:
            break
    if not best_gap <= _WORTH_TELLING:
        text = f"least-norm problem with {n} messages: solved to a relative duality gap of {best_gap:.1e} only"
        warnings.warn(f"{text}; this round's direction is a little off", stacklevel=2)
    return torch.from_numpy(best).to(like)


def _feasible(low: Array, high: Array) -> Array:
    """Some point of the box with Σλ = 1."""
    room = high - low
    return np.asarray(low + room * ((1 - low.sum()) / max(room.sum(), 1e-300)))


def _solve(H: Array, f: Array, c: Array, low: Array, high: Array, extra: Array | None) -> tuple[Array, float] | None:
    """(x, multiplier of extra·x ≥ 0) of min ½xᵀHx + f·x, c·x = 1, low ≤ x ≤ high; None: the solver gave up."""
    try:
        import daqp
    except ImportError:
        raise UserError("this method needs the QP solver daqp: pip install daqp") from None
    n = len(f)
    rows = [c] if extra is None else [c, extra]
    upper = np.concatenate([high, [1.0], [] if extra is None else [1e30]])
    lower = np.concatenate([low, [1.0], [] if extra is None else [0.0]])
    sense = np.zeros(len(upper), dtype=np.int32)
    sense[n] = _EQUALITY
    answer: Any = daqp.solve(H, f, np.array(rows), upper, lower, sense, primal_tol=1e-13)
    x, _, flag, info = answer
    if flag < 1:
        return None
    return np.clip(x, low, high), 0.0 if extra is None else abs(float(info["lam"][n + 1]))


def duality_gap(H: Array, x: Array, c: Array, low: Array, high: Array, extra: Array | None, multiplier: float) -> float:
    """xᵀHx − min over feasible y of (Hx − ν extra)·y, with ν for extra·x ≥ 0; 0 at the optimum.

    In units of the smallest squared norm, which the optimum cannot exceed. Also counts what the constraints miss.
    """
    slope = H @ x
    value, missed = float(x @ slope), abs(float(c @ x) - 1)
    if extra is not None:
        slope = slope - multiplier * extra
        missed += max(0.0, -float(extra @ x))
    slope = slope / c  # per unit of λ_i
    order = np.argsort(slope)
    room = (high - low)[order]
    filled = np.clip(1 - low.sum() - (np.cumsum(room) - room), 0, room)
    return max(0.0, value - float(slope @ low + slope[order] @ filled)) + missed
