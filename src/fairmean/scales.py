"""Client side: a client looks at its own statistics and scales its own gradient, v_i = s_i g_i."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from fairmean.hyper import at_least
from fairmean.transform import check_kappa_tau, marginal_weight


@dataclass(frozen=True)
class Scale:
    """s_i from the statistics of client i alone, elementwise over clients, outside the autograd graph.

    ``entropies`` (mean predictive entropy on the client's own inputs, label-free) is given only to a scale that sets
    ``needs_entropy``. ``normalised`` asks the server for the ratio of two sums, Σ s_i g_i / Σ s_i.
    """

    needs_entropy: ClassVar[bool] = False
    normalised: ClassVar[bool] = False

    def __call__(self, losses: Tensor, entropies: Tensor | None) -> Tensor:
        raise NotImplementedError


SCALES: dict[str, type[Scale]] = {}
S = TypeVar("S", bound=type[Scale])


def register_scale(name: str) -> Callable[[S], S]:
    """Make a scale available under ``name``."""

    def add(cls: S) -> S:
        SCALES[name] = cls
        return cls

    return add


@register_scale("none")
@dataclass(frozen=True)
class Unscaled(Scale):
    """s_i = 1."""

    def __call__(self, losses: Tensor, entropies: Tensor | None) -> Tensor:
        return torch.ones_like(losses)


@register_scale("fairmean")
@dataclass(frozen=True)
class FairMean(Scale):
    """s_i = a(f_i) = 1 + κ f_i/(f_i+τ): more weight to larger losses, never more than 1 + κ."""

    kappa: float = 1.0
    tau: float = 1.0

    def __post_init__(self) -> None:
        check_kappa_tau(self.kappa, self.tau)

    def __call__(self, losses: Tensor, entropies: Tensor | None) -> Tensor:
        return marginal_weight(losses, self.kappa, self.tau)


@register_scale("fairmean-normalised")
@dataclass(frozen=True)
class FairMeanNormalised(FairMean):
    """s_i = a(f_i), direction Σ s_i g_i / Σ s_i: FairMean's weighting at Mean's step size."""

    normalised: ClassVar[bool] = True


@register_scale("qffl")
@dataclass(frozen=True)
class QFFL(Scale):
    """s_i = (f_i + 1e-10)^q: more weight to larger losses, without a bound."""

    q: float = 1.0

    def __post_init__(self) -> None:
        at_least("q", self.q, 0, "0 is the plain mean")

    def __call__(self, losses: Tensor, entropies: Tensor | None) -> Tensor:
        return (losses + 1e-10) ** self.q
