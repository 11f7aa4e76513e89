"""Before aggregating: messages replaced by combinations of messages. Each is a matrix W from the Gram matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairmean.rules.aggregator import knows_f
from fairmean.rules.registry import Parts
from fairmean.rules.search_space import RADII, Search
from fairmean.rules.servers.clipping import check_radius


@dataclass(frozen=True)
class Mixing:
    """v' = W v, W from the inner products of the messages alone."""

    assumes: ClassVar[str] = ""
    search: ClassVar[Search] = {}

    def check(self, n: int) -> None:
        """Raise if n clients are too few."""

    def matrix(self, gram: Tensor) -> Tensor:
        """W (n×n)."""
        raise NotImplementedError


MIXINGS = Parts("pre-aggregation", Mixing)
register_mixing = MIXINGS.register


def with_diagonal(matrix: Tensor, value: float) -> Tensor:
    """The matrix with another diagonal."""
    return torch.where(torch.eye(len(matrix), dtype=torch.bool, device=matrix.device), value, matrix)


def squared_distances(gram: Tensor) -> Tensor:
    """‖v_i − v_j‖² from inner products."""
    norms = gram.diagonal()
    return with_diagonal((norms[:, None] + norms[None] - 2 * gram).clamp(min=0), 0)


@register_mixing("nnm")
@dataclass(frozen=True)
class NearestNeighbourMixing(Mixing):
    """v'_i is the mean of the n − f messages nearest to v_i, itself included (Allouah et al. 2023)."""

    f: int = 2
    assumes: ClassVar[str] = "knows f"

    def check(self, n: int) -> None:
        knows_f(self.f, n, n - 1)

    def matrix(self, gram: Tensor) -> Tensor:
        n = len(gram)
        distances = with_diagonal(squared_distances(gram), -1)  # itself first, whatever the rounding
        nearest = distances.sort(dim=1, stable=True).indices[:, : n - self.f]
        return torch.zeros_like(gram).scatter(1, nearest, torch.full_like(gram, 1 / (n - self.f)))


@register_mixing("clip")
@dataclass(frozen=True)
class NormClipping(Mixing):
    """v'_i = v_i min(1, r/‖v_i‖)."""

    radius: float = 1.0
    search: ClassVar[Search] = {"radius": RADII}

    def __post_init__(self) -> None:
        check_radius(self.radius)

    def matrix(self, gram: Tensor) -> Tensor:
        norms = gram.diagonal().clamp(min=0).sqrt()
        return torch.diag((self.radius / norms.clamp(min=1e-300)).clamp(max=1))
