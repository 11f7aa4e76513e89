"""How much a sample's logits can change with the parameters: the spectral norm of their Jacobian."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

PROBES = 64  # samples looked at: those with the largest inputs


def probes(x: Tensor) -> Tensor:
    """Places of the samples with the largest inputs, in order."""
    size: Tensor = x.flatten(1).norm(dim=1)
    return size.topk(min(PROBES, len(size))).indices.sort().values


def largest_jacobian(logits: Callable[[Tensor], Tensor], parameters: Sequence[Tensor], x: Tensor) -> float:
    """max ‖∇_w h(w; x)‖ over these samples: one backward pass per sample and class. NaN where nothing is finite."""
    largest = 0.0
    for row in range(len(x)):
        h = logits(x[row : row + 1])[0]
        gradients = [torch.autograd.grad(h[k], parameters, retain_graph=True, allow_unused=True) for k in range(len(h))]
        J = torch.stack([torch.cat([g.flatten() for g in every if g is not None]) for every in gradients]).double()
        square = J @ J.T
        if not square.isfinite().all():
            return math.nan
        largest = max(largest, float(torch.linalg.eigvalsh(square)[-1]))
    return math.sqrt(largest)
