"""The paper's loss transform: pure functions of a loss z ≥ 0, on tensors or floats.

    φ(z) = z + κ ψ(z)        ψ(z) = z − τ log(1 + z/τ)        a(z) = φ'(z) = 1 + κ z/(z+τ)

Every function keeps full relative precision for any z/τ, including z ≪ τ where ψ cancels.
"""

from __future__ import annotations

from typing import Any, overload

import torch
from torch import Tensor

from fairmean.errors import UserError

# u − log(1+u) = s (u − 2 Σ_{k≥1} s^{2k} / (2k+1)) with s = u/(2+u); twelve terms give 1e-17 for |u| ≤ ½.
_SERIES = [2.0 / (2 * k + 1) for k in range(1, 13)]


class _LogGap(torch.autograd.Function):
    """u − log(1+u) for u > −1, without cancellation near 0; the derivative is u/(1+u)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor) -> Tensor:
        s = u / (2 + u)
        square = s * s
        tail = torch.full_like(u, _SERIES[-1])
        for coefficient in reversed(_SERIES[:-1]):
            tail = tail * square + coefficient
        return torch.where(u.abs() < 0.5, s * (u - square * tail), u - torch.log1p(u))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (u,) = ctx.saved_tensors
        return gradient * u / (1 + u)


def _log_gap(u: Tensor) -> Tensor:
    gap: Tensor = _LogGap.apply(u)  # type: ignore[no-untyped-call]
    return gap


def check_kappa_tau(kappa: float, tau: float) -> None:
    """κ ≥ 0 and τ > 0, both finite."""
    if not 0 <= kappa < float("inf"):
        raise UserError(f"kappa = {kappa}: must be a finite number ≥ 0 (0 is the plain mean)")
    if not 0 < tau < float("inf"):
        raise UserError(f"tau = {tau}: must be a finite number > 0 (the loss at which half the extra weight is given)")


def _as_tensor(z: Tensor | float) -> tuple[Tensor, bool]:
    if isinstance(z, Tensor):
        return z, False
    return torch.tensor(z, dtype=torch.float64), True


@overload
def psi(z: Tensor, tau: float = 1.0) -> Tensor: ...
@overload
def psi(z: float, tau: float = 1.0) -> float: ...
def psi(z: Tensor | float, tau: float = 1.0) -> Tensor | float:
    """ψ_τ(z) = z − τ log(1 + z/τ), the convex part of the transform.

    >>> psi(1.0)
    0.3068528194400547
    """
    check_kappa_tau(0.0, tau)
    x, is_float = _as_tensor(z)
    value = tau * _log_gap(x / tau)
    return value.item() if is_float else value


@overload
def phi(z: Tensor, kappa: float = 1.0, tau: float = 1.0) -> Tensor: ...
@overload
def phi(z: float, kappa: float = 1.0, tau: float = 1.0) -> float: ...
def phi(z: Tensor | float, kappa: float = 1.0, tau: float = 1.0) -> Tensor | float:
    """φ_{κ,τ}(z) = z + κ ψ_τ(z)   (eq. 2).

    >>> phi(1.0, kappa=2.0)
    1.6137056388801094
    """
    check_kappa_tau(kappa, tau)
    return z + kappa * psi(z, tau)


@overload
def marginal_weight(z: Tensor, kappa: float = 1.0, tau: float = 1.0) -> Tensor: ...
@overload
def marginal_weight(z: float, kappa: float = 1.0, tau: float = 1.0) -> float: ...
def marginal_weight(z: Tensor | float, kappa: float = 1.0, tau: float = 1.0) -> Tensor | float:
    """a_{κ,τ}(z) = 1 + κ z/(z+τ)   (eq. 4): the weight a client with loss z gives its gradient, in [1, 1+κ].

    >>> marginal_weight(1.0), marginal_weight(2.0, tau=2.0)
    (1.5, 1.5)
    """
    check_kappa_tau(kappa, tau)
    return 1 + kappa * (z / (z + tau))


def dispersion(losses: Tensor, tau: float = 1.0) -> Tensor:
    """D_τ = mean ψ(f_i) − ψ(F), F = mean f_i: zero exactly when all losses are equal.

    Computed as the mean of the non-negative terms τ (u − log(1+u)), u = (f_i − F)/(F + τ), which is the same
    number without the cancellation.

    >>> dispersion(torch.tensor([1.0, 3.0], dtype=torch.float64)).item()
    0.05889151782819172
    """
    check_kappa_tau(0.0, tau)
    mean = losses.mean()
    return tau * _log_gap((losses - mean) / (mean + tau)).mean()


def fair_objective(sample_losses: Tensor, groups: Tensor, kappa: float = 1.0, tau: float = 1.0) -> Tensor:
    """Φ = mean over groups of φ(mean loss of the group): one scalar to backpropagate   (eq. 3).

    ``groups`` holds the group (client, rank, demographic …) of each sample, as any integers. The gradient is the
    FairMean direction (1/n) Σ a(f_i) ∇f_i, so an ordinary training loop becomes fair by one line:

    >>> losses = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
    >>> fair_objective(losses, torch.tensor([7, 7, 4])).backward()
    >>> losses.grad                      # a(2)/2 · ½ for each sample of group 7, a(2) · ½ for group 4
    tensor([0.4167, 0.4167, 0.8333])
    """
    check_kappa_tau(kappa, tau)
    if sample_losses.shape != groups.shape or sample_losses.dim() != 1 or len(groups) == 0:
        raise UserError(
            f"fair_objective: one loss and one group per sample, got shapes {tuple(sample_losses.shape)} and "
            f"{tuple(groups.shape)}; use reduction='none' in the loss"
        )
    _, index, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    sums = sample_losses.new_zeros(len(counts)).index_add(0, index, sample_losses)
    objective: Tensor = phi(sums / counts, kappa, tau).mean()
    return objective
