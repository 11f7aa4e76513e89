"""Inner products and combinations of the clients' messages, formed only as far as they are looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmean.cpu_products import matmul
from fairmean.rules.mixing import squared_distances

_BLOCKS = 64  # at least so many on a GPU
_WIDE = 2**13  # columns of a block
_FEW = 64  # up to so many clients, the Gram matrix costs next to nothing


class Products:
    """Inner products of the messages s_i g_i, after mixing.

    ``unit``: every s_i is 1. ``known``: G Gᵀ, if it is there.
    """

    def __init__(self, gradients: Tensor, scales: Tensor, unit: bool = False, known: Tensor | None = None) -> None:
        self._gradients, self._scales, self._unit = gradients, scales, unit
        self._mix: Tensor | None = None
        self._plain = None if known is None else torch.outer(scales, scales) * known
        self._mixed: Tensor | None = None
        self.lazy: dict[str, Callable[[], Any]] = {
            "squared_norms": self.squared_norms,
            "gram": self.gram,
            "squared_distances": lambda: squared_distances(self.gram()),
        }

    def mix(self, matrix: Tensor) -> None:
        """Apply one more pre-aggregation: W is the product of all their matrices."""
        self._mix = matrix if self._mix is None else matrix @ self._mix
        self._mixed = None

    def on_gradients(self, weights: Tensor) -> Tensor:
        """Weights on the messages as weights on the gradients."""
        return (weights if self._mix is None else weights @ self._mix) * self._scales

    @property
    def width(self) -> int:
        """d."""
        return self._gradients.shape[1]

    def combined(self, weights: Tensor) -> Tensor:
        """Σ λ_i v_i."""
        return pull(self._gradients, self.on_gradients(weights))

    def finite(self) -> bool:
        """Whether every gradient is."""
        return bool(self._gradients.isfinite().all())

    def messages(self) -> Tensor:
        """W S G."""
        dtype = self._gradients.dtype
        if self._mix is not None:
            return (self._mix * self._scales).to(dtype) @ self._gradients
        if self._unit:
            return self._gradients
        return self._gradients * self._scales.to(dtype)[:, None]

    def gram(self) -> Tensor:
        """W S G Gᵀ S Wᵀ."""
        if self._plain is None:
            self._plain = torch.outer(self._scales, self._scales) * gram(self._gradients)
        if self._mixed is None:
            self._mixed = self._plain if self._mix is None else self._mix @ self._plain @ self._mix.T
        return self._mixed

    def squared_norms(self) -> Tensor:
        """‖v_i‖²."""
        if self._mix is not None or self._plain is not None:
            return self.gram().diagonal()
        norms: Tensor = torch.linalg.vector_norm(self._gradients, dim=1).double()
        return (self._scales * norms).square()

    def times(self, weights: Tensor) -> Tensor:
        """M λ, by M if it is there or cheap, else by two passes over the gradients."""
        if self._plain is not None or self._mix is not None or len(weights) <= _FEW:
            return self.gram() @ weights
        point = pull(self._gradients, self._scales * weights)
        return self._scales * (self._gradients @ point).double()


def gram(gradients: Tensor) -> Tensor:
    """G Gᵀ in float64: computed so for few rows; for many, in the gradients' precision, one triangle and its mirror."""
    n = len(gradients)
    if n <= _FEW:
        return _exact(gradients)
    result = gradients.new_empty(n, n)
    step = -(-n // 4)
    for a in range(0, n, step):
        result[a : a + step, a:] = matmul(gradients[a : a + step], gradients[a:].T)
    upper = result.double().triu()
    return upper + upper.triu(1).T


def _exact(gradients: Tensor) -> Tensor:
    """G Gᵀ in float64 as a sum over blocks of columns.

    With few rows, many blocks at once are what keeps a GPU busy; on a CPU one after the other stays in the cache.
    Exactly symmetric, so that two clients nearest to each other tie, whatever the rounding.
    """
    n, d = gradients.shape
    if gradients.is_cuda:
        count = max(_BLOCKS, d // _WIDE)
        width = -(-d // count)
        padded = F.pad(gradients, (0, count * width - d)).double()
        blocks = padded.reshape(n, count, width).transpose(0, 1)
        M = torch.bmm(blocks, blocks.transpose(1, 2)).sum(0)
    else:
        M = torch.zeros((), dtype=torch.float64)
        for a in range(0, d, _WIDE):
            rows = gradients[:, a : a + _WIDE].double()
            M = M + rows @ rows.T
    return (M + M.T) / 2


def pull(gradients: Tensor, weights: Tensor) -> Tensor:
    """Gᵀ λ."""
    return weights.to(gradients.dtype) @ gradients
