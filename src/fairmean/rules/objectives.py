"""Client side: what a sample costs, how a client reduces its samples' losses, what it measures and remembers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fairmean.rules.context import Context, Means
from fairmean.rules.hyper import check_tilt
from fairmean.rules.registry import Parts
from fairmean.rules.round import State


@dataclass(frozen=True)
class Objective:
    """f_i = (1/t) log Σ ω exp(t ℓ) / Σ ω over the samples of client i, with ℓ from ``losses``; t = 0: Σ ω ℓ / Σ ω.

    Rows belong to several clients, one after the other; what a row gives may depend on that row, on its client and on
    the context alone. ``simple``: the class needs no context, and measures and remembers nothing (a subclass says so
    for itself).
    """

    simple: ClassVar[bool] = False

    @property
    def tilt(self) -> float:
        """t."""
        return 0.0

    @property
    def is_mean_cross_entropy(self) -> bool:
        """Whether f_i is the mean cross-entropy, of which the theory speaks."""
        weighted = type(self).weights is not Objective.weights
        return self.tilt == 0 and type(self).losses is CrossEntropy.losses and not weighted

    def losses(self, logits: Tensor, y: Tensor, context: Context) -> Tensor:
        """ℓ of every row of logits (rows × classes); it is differentiated with respect to the logits."""
        raise NotImplementedError

    def weights(self, logits: Tensor, y: Tensor, context: Context) -> Tensor | None:
        """ω ≥ 0 of every row, the sample's weight inside its client; None: all alike. Not differentiated."""
        return None

    def measure(self, logits: Tensor, y: Tensor, context: Context) -> State:
        """Values of every row (rows, or rows × k), by name, of which each client forms its means. Not differentiated.

        Logits are those of the broadcast model, before any local step; labels are the ones that the client trains on.
        """
        return {}

    def init(self, n: int, classes: int) -> State:
        """The memories of n clients before the first round: tensors with one row for each, by name."""
        return {}

    def remember(self, memory: State, means: Means, context: Context) -> State:
        """What the clients of the round remember from now on: the same names and shapes as ``memory``.

        It is called once a round, before the scale, and only says what follows: calling it twice changes nothing.
        """
        return memory


def entropy(logits: Tensor) -> Tensor:
    """Predictive entropy −Σ p log p of every row: label-free."""
    log_p = F.log_softmax(logits, 1)
    return -(log_p.exp() * log_p).sum(1)


OBJECTIVES = Parts("objective", Objective)
register_objective = OBJECTIVES.register


@register_objective("cross-entropy")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """ℓ = −log p_y, and f_i is the mean over a client's samples."""

    simple: ClassVar[bool] = True

    def losses(self, logits: Tensor, y: Tensor, context: Context) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")


@register_objective("tilted")
@dataclass(frozen=True)
class Tilted(CrossEntropy):
    """ℓ = −log p_y, and f_i is the tilted mean (1/t_in) log mean exp(t_in ℓ) over a client's samples."""

    simple: ClassVar[bool] = True
    t_in: float = -1.0

    @property
    def tilt(self) -> float:
        return self.t_in

    def __post_init__(self) -> None:
        check_tilt("t_in", self.t_in)
