"""Softmax regression, where the theory's constants are known beforehand and minimisers can be found to any accuracy.

With x̃ = (x, 1), the logits are linear in w, so a sample's Jacobian has norm ‖x̃‖ at every w, and the Hessian of its
cross-entropy is (diag π − ππᵀ) ⊗ x̃x̃ᵀ with ‖diag π − ππᵀ‖ ≤ ½:

    Γ = max ‖x̃‖        L = max_i ½ λ_max(mean of x̃x̃ᵀ over client i)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmean.data.federation import Federation
from fairmean.engine.kernels.quick_linear import is_linear
from fairmean.errors import UserError
from fairmean.transform import check_kappa_tau, marginal_weight, phi


@dataclass(frozen=True)
class Known:
    """Constants that hold at every w: Γ and L."""

    gamma: float
    smoothness: float


def is_softmax_regression(model: nn.Module) -> bool:
    """Whether the model is one linear layer."""
    inner = [module for module in model.modules() if not isinstance(module, nn.Sequential | nn.Flatten | nn.Identity)]
    return len(inner) == 1 and is_linear(inner[0])


def known(model: nn.Module, federation: Federation) -> Known | None:
    """The closed-form constants over all samples and regular clients; None for any other model."""
    if not is_softmax_regression(model):
        return None
    bias = any(name.endswith("bias") for name, _ in model.named_parameters())
    x = federation.x.flatten(1)
    largest = (x.double().square().sum(1).max() + bias).sqrt().item()
    curvatures = [curvature(_rows(x, federation, i), bias) for i in range(federation.clients) if federation.regular[i]]
    return Known(largest, max(curvatures))


def _rows(x: Tensor, federation: Federation, client: int) -> Tensor:
    return x[slice(*federation.offsets[client : client + 2].tolist())]


def curvature(x: Tensor, bias: bool = True) -> float:
    """½ λ_max of the mean of x̃x̃ᵀ: no client with these inputs has a loss that curves more."""
    x = x.double()
    x = F.pad(x, (0, 1), value=1.0) if bias else x
    gram = x.T @ x if x.shape[1] <= len(x) else x @ x.T
    return 0.5 * float(torch.linalg.eigvalsh(gram / len(x))[-1])


@dataclass(frozen=True)
class Minimiser:
    """A global minimiser of Φ over the clients: weights K×(p+1), the clients' losses there, and ‖∇Φ‖.

    ``curvature``: the smallest of Φ there, but for moving all logits alike. Above zero, the minimiser is the only one.
    """

    w: Tensor
    losses: Tensor
    objective: float
    gradient_norm: float
    curvature: float
    steps: int


def minimise(
    clients: Sequence[tuple[Tensor, Tensor]],
    classes: int,
    kappa: float = 0.0,
    tau: float = 1.0,
    *,
    accuracy: float = 1e-8,
    start: Tensor | None = None,
    steps: int = 100,
) -> Minimiser:
    """The minimiser of Φ = mean_i φ(f_i) (κ = 0: of the mean loss), by Newton's method in float64.

    ``clients`` holds (inputs m×p, labels m). φ is convex and increasing and the f_i are convex, so Φ is convex:

        ∇²Φ = mean_i [ a(f_i) ∇²f_i + a'(f_i) ∇f_i ∇f_iᵀ ],     a'(f) = κτ/(f+τ)²

    The softmax does not change when all logits move alike: the Hessian is singular along that direction, and steps keep
    to its complement. Each step is halved until Φ decreases enough.
    """
    check_kappa_tau(kappa, tau)
    data = [(F.pad(x.double().flatten(1), (0, 1), value=1.0), y) for x, y in clients]
    width = data[0][0].shape[1]
    w = torch.zeros(classes, width, dtype=torch.float64) if start is None else start.double().clone()
    alike = torch.kron(torch.ones(classes, classes, dtype=torch.float64), torch.eye(width, dtype=torch.float64))
    value, losses, gradient, hessian = _expand(data, w, kappa, tau)
    for step in range(steps):
        norm = gradient.norm().item()
        complete = hessian + hessian.diagonal().mean() * alike
        if norm <= accuracy:
            return Minimiser(w, losses, value, norm, torch.linalg.eigvalsh(complete)[0].item(), step)
        factor, info = torch.linalg.cholesky_ex(complete + 1e-12 * hessian.diagonal().mean() * torch.eye(len(hessian)))
        if info.item():
            raise UserError("minimise: the Hessian is singular; leave out inputs that are constant or repeat others")
        shift = torch.cholesky_solve(gradient.reshape(-1, 1), factor).view_as(w)
        slope, length = (gradient * shift).sum().item(), 1.0
        while length > 1e-10:
            there = phi(_losses(data, w - length * shift), kappa, tau).mean().item()
            if there <= value - 1e-4 * length * slope + 1e-13 * abs(value):  # the last: rounding, near the minimum
                break
            length /= 2
        w = w - length * shift
        value, losses, gradient, hessian = _expand(data, w, kappa, tau)
    raise UserError(
        f"minimise: ‖∇Φ‖ = {gradient.norm().item():.1e} after {steps} Newton steps; where classes can be separated "
        "there is no minimiser: use more samples or fewer inputs"
    )


def _losses(data: Sequence[tuple[Tensor, Tensor]], w: Tensor) -> Tensor:
    return torch.stack([F.cross_entropy(x @ w.T, y) for x, y in data])


def _expand(
    data: Sequence[tuple[Tensor, Tensor]], w: Tensor, kappa: float, tau: float
) -> tuple[float, Tensor, Tensor, Tensor]:
    """Φ, the clients' losses, ∇Φ and ∇²Φ."""
    n, (classes, width) = len(data), w.shape
    losses, gradients = [], []
    total = torch.zeros(classes * width, classes * width, dtype=torch.float64)
    for x, y in data:
        m = len(x)
        logits = x @ w.T
        p = logits.softmax(1)
        losses.append(F.cross_entropy(logits, y))
        gradients.append(((p - F.one_hot(y, classes)).T @ x / m).flatten())
        a = marginal_weight(losses[-1], kappa, tau)
        for j in range(classes):
            for k in range(j, classes):
                weight = p[:, j] * ((1.0 if j == k else 0.0) - p[:, k])
                block = (x * weight[:, None]).T @ x * (a / (n * m))
                total[j * width : (j + 1) * width, k * width : (k + 1) * width] += block
    total = total.triu() + total.triu(1).T
    f, G = torch.stack(losses), torch.stack(gradients)
    bend = kappa * tau / (f + tau) ** 2 / n
    total += (G * bend[:, None]).T @ G
    gradient = (marginal_weight(f, kappa, tau) @ G / n).view_as(w)
    return phi(f, kappa, tau).mean().item(), f, gradient, total
