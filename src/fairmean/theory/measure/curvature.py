"""How much a client's loss curves, by power iteration on Hessian-vector products: for any model, at any point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fairmean.engine.kernels.derivatives import second_derivatives
from fairmean.engine.precision import matmul_tf32
from fairmean.randomness import generator
from fairmean.transform import marginal_weight

_ROWS = 4096  # samples in one pass


@dataclass(frozen=True)
class Eigen:
    """The largest |eigenvalue| that was found, and the vector; ``settled``: it had stopped changing."""

    value: float
    vector: Tensor
    settled: bool


def random_start(size: Tensor) -> Tensor:
    """A vector like this one, always the same."""
    return torch.from_numpy(generator(0, "power iteration").standard_normal(len(size))).to(size)


def power_iteration(
    product: Callable[[Tensor], Tensor], start: Tensor, most: int = 50, accuracy: float = 1e-3
) -> Eigen:
    """max |λ| of a symmetric operator: v ← Hv/‖Hv‖ until ‖Hv‖ changes by less than ``accuracy``; a lower bound."""
    v = start / start.norm()
    value = 0.0
    for _ in range(most):
        v = product(v)
        norm = v.norm().item()
        if norm == 0 or not norm < float("inf"):
            return Eigen(norm, start, True)
        v = v / norm
        if abs(norm - value) <= accuracy * norm:
            return Eigen(norm, v, True)
        value = norm
    return Eigen(value, v, False)


@dataclass(frozen=True)
class Curves:
    """Clients' losses as functions of the model's parameters, in plain PyTorch; dropout is off.

    ``clients``: (inputs, labels) of each. Products are those of the parameters' own precision: PyTorch would otherwise
    round the inputs of convolutions on a GPU.
    """

    model: nn.Module
    clients: list[tuple[Tensor, Tensor]]

    def __post_init__(self) -> None:
        self.model.eval()

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that are trained."""
        return [p for p in self.model.parameters() if p.requires_grad]

    @property
    def flat(self) -> Tensor:
        """A vector of the parameters' size."""
        return torch.cat([p.detach().flatten() for p in self.parameters])

    def _parts(self, client: int) -> Iterator[Tensor]:
        """The client's mean loss, as terms to add up."""
        x, y = self.clients[client]
        for a in range(0, len(x), _ROWS):
            yield F.cross_entropy(self.model(x[a : a + _ROWS]), y[a : a + _ROWS], reduction="sum") / len(x)

    def gradient(self, client: int) -> tuple[Tensor, Tensor]:
        """(loss, gradient)."""
        loss, total = torch.zeros((), dtype=torch.float64, device=self.flat.device), torch.zeros_like(self.flat)
        with matmul_tf32(False):
            for part in self._parts(client):
                grads = torch.autograd.grad(part, self.parameters, allow_unused=True)
                total += _flatten(grads, self.parameters)
                loss += part.detach().double()
        return loss, total

    def product(self, client: int, v: Tensor) -> Tensor:
        """∇²f_i v, by differentiating ⟨∇f_i, v⟩."""
        total = torch.zeros_like(v)
        # fused layers cannot be differentiated twice
        with sdpa_kernel(SDPBackend.MATH), second_derivatives(), matmul_tf32(False):
            for part in self._parts(client):
                grads = torch.autograd.grad(part, self.parameters, create_graph=True, allow_unused=True)
                dot = _flatten(grads, self.parameters) @ v
                if dot.requires_grad:
                    second = torch.autograd.grad(dot, self.parameters, allow_unused=True)
                    total += _flatten(second, self.parameters)
        return total

    def fair_product(self, v: Tensor, kappa: float, tau: float, losses: Tensor, gradients: Tensor) -> Tensor:
        """∇²Φ v = mean_i [ a(f_i) ∇²f_i v + a'(f_i) ⟨∇f_i, v⟩ ∇f_i ]."""
        n = len(self.clients)
        a = marginal_weight(losses, kappa, tau).to(v.dtype)
        bend = (kappa * tau / (losses + tau) ** 2).to(v.dtype)
        total = ((bend * (gradients @ v)) @ gradients) / n
        for i in range(n):
            total += a[i] / n * self.product(i, v)
        return total


def _flatten(grads: tuple[Tensor | None, ...], parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for g, p in zip(grads, parameters, strict=True)]
    )
