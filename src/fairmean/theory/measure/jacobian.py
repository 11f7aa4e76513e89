"""How much a sample's logits can change with the parameters: the spectral norm of their Jacobian.

A sample goes through K times, and copy k is differentiated by logit k: one backward pass gives δ_k, the gradient of
logit k by a layer's output. For y = Wa + b the Jacobian's part is δ_k (a, 1)ᵀ, so that J Jᵀ = Σ_layers (‖a‖² + 1) δ δᵀ,
and no gradient of a weight is ever formed. Models with other layers have every logit differentiated on its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fairmean.engine.kernels.quick_linear import is_linear

PROBES = 64  # samples looked at: those with the largest inputs
_FEW = 8  # of them, where it is costly


def probes(x: Tensor) -> Tensor:
    """Places of the samples with the largest inputs, in order."""
    size: Tensor = (x if x.is_floating_point() else x.double()).flatten(1).norm(dim=1)
    return size.topk(min(PROBES, len(size))).indices.sort().values


def largest_jacobian(model: nn.Module, logits: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """max ‖∇_w h(w; x)‖ over these samples (over a few, where that is costly); NaN where it is not finite."""
    squares = _of_linear_layers(model, logits, x)
    if squares is None:
        squares = _one_by_one(model, logits, x[:: -(-len(x) // _FEW)])
    if not squares.isfinite().all():
        return math.nan
    return math.sqrt(max(0.0, float(torch.linalg.eigvalsh(squares)[:, -1].max())))


def _of_linear_layers(model: nn.Module, logits: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    """J Jᵀ of every sample; None unless the trained parameters are those of Linear layers, each used once on rows."""
    layers = [m for m in model.modules() if is_linear(m)]
    trained = {id(p) for p in model.parameters()}
    if trained != {id(p) for layer in layers for p in layer.parameters()}:
        return None
    if not all(p.requires_grad for p in model.parameters()):
        return None
    seen: list[tuple[nn.Linear, Tensor, Tensor]] = []

    def note(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((layer, inputs[0].detach(), output))

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        K = logits(x[:1]).shape[1]
        seen.clear()
        h = logits(x.repeat_interleave(K, 0))
    finally:
        for handle in handles:
            handle.remove()
    if len(seen) != len(layers) or any(a.dim() != 2 for _, a, _ in seen):
        return None
    own = h.view(len(x), K, K).diagonal(dim1=1, dim2=2).sum()
    total = torch.zeros(len(x), K, K, dtype=torch.float64, device=x.device)
    for (layer, a, _), delta in zip(seen, torch.autograd.grad(own, [y for _, _, y in seen]), strict=True):
        size = a.view(len(x), K, -1)[:, 0].double().square().sum(1) + (layer.bias is not None)
        d = delta.view(len(x), K, -1).double()
        total += size[:, None, None] * (d @ d.transpose(1, 2))
    return total


def _one_by_one(model: nn.Module, logits: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """J Jᵀ of every sample, from the gradient of every logit."""
    parameters, squares = [p for p in model.parameters() if p.requires_grad], []
    for row in range(len(x)):
        h = logits(x[row : row + 1])[0]
        rows = []
        for k in range(len(h)):
            parts = torch.autograd.grad(h[k], parameters, retain_graph=True, allow_unused=True)
            rows.append(torch.cat([part.flatten() for part in parts if part is not None]))
        J = torch.stack(rows).double()
        squares.append(J @ J.T)
    return torch.stack(squares)
