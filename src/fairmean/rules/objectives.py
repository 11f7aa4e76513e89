"""Client side: what a sample costs a client, and how the client reduces its samples' losses to one number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor

from fairmean.rules.hyper import check_rule, check_tilt
from fairmean.rules.registry import Registry


@dataclass(frozen=True)
class Objective:
    """f_i = (1/t) log mean exp(t ℓ) over the samples of client i, with ℓ from ``losses``; t = 0 is their mean.

    ``losses`` gets logits (rows × classes) and labels (rows) and returns one loss for each row, which depends on that
    row alone. It is differentiated with respect to the logits.
    """

    @property
    def tilt(self) -> float:
        """t."""
        return 0.0

    @property
    def is_mean_cross_entropy(self) -> bool:
        """Whether f_i is the mean cross-entropy, of which the theory speaks."""
        return self.tilt == 0 and type(self).losses is CrossEntropy.losses

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """ℓ of every row."""
        raise NotImplementedError


OBJECTIVES: Registry[type[Objective]] = Registry("objective")
Kind = TypeVar("Kind", bound=type[Objective])


def register_objective(name: str, *, replace: bool = False) -> Callable[[Kind], Kind]:
    """Make an objective available under ``name``; one that is taken is refused, unless ``replace`` is set."""

    def add(cls: Kind) -> Kind:
        check_rule(name, cls, Objective)
        OBJECTIVES.add(name, cls, cls, replace)
        return cls

    return add


@register_objective("cross-entropy")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """ℓ = −log p_y, and f_i is the mean over a client's samples."""

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")


@register_objective("tilted")
@dataclass(frozen=True)
class Tilted(CrossEntropy):
    """ℓ = −log p_y, and f_i is the tilted mean (1/t_in) log mean exp(t_in ℓ) over a client's samples."""

    t_in: float = -1.0

    @property
    def tilt(self) -> float:
        return self.t_in

    def __post_init__(self) -> None:
        check_tilt("t_in", self.t_in)
