"""Inner products and combinations of the clients' messages, formed only as far as they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairmean.aggregators import Mixing
from fairmean.aggregators.mixing import squared_distances

_FEW = 64  # up to so many clients, the Gram matrix costs next to nothing


class Products:
    """Inner products of the messages s_i g_i, after mixing."""

    def __init__(self, gradients: Tensor, scales: Tensor) -> None:
        self._gradients, self._scales = gradients, scales
        self._mix: Tensor | None = None
        self._plain: Tensor | None = None
        self.lazy: dict[str, Callable[[], Any]] = {
            "squared_norms": self.squared_norms,
            "gram": self.gram,
            "squared_distances": lambda: squared_distances(self.gram()),
        }

    def mix(self, mixings: Sequence[Mixing]) -> Tensor | None:
        """W of all pre-aggregations, one after the other; None without any."""
        for mixing in mixings:
            step = mixing.matrix(self.gram())
            self._mix = step if self._mix is None else step @ self._mix
        return self._mix

    def gram(self) -> Tensor:
        """W S G Gᵀ S Wᵀ: products in the gradients' precision, the matrix in float64."""
        if self._plain is None:
            self._plain = torch.outer(self._scales, self._scales) * gram(self._gradients)
        return self._plain if self._mix is None else self._mix @ self._plain @ self._mix.T

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
    """G Gᵀ in float64, from products in the gradients' precision; for many rows, one triangle and its mirror."""
    n = len(gradients)
    if n <= 4 * _FEW:
        return (gradients @ gradients.T).double()
    result = gradients.new_empty(n, n)
    step = -(-n // 4)
    for a in range(0, n, step):
        result[a : a + step, a:] = gradients[a : a + step] @ gradients[a:].T
    upper = result.double().triu()
    return upper + upper.triu(1).T


def pull(gradients: Tensor, weights: Tensor) -> Tensor:
    """Gᵀ λ."""
    return weights.to(gradients.dtype) @ gradients


def messages_of(gradients: Tensor, scales: Tensor, mix: Tensor | None, in_place: bool) -> Tensor:
    """W S G."""
    if mix is not None:
        return (mix * scales).to(gradients.dtype) @ gradients
    if bool((scales == 1).all()):
        return gradients
    factors = scales.to(gradients.dtype)[:, None]
    return gradients.mul_(factors) if in_place else gradients * factors
