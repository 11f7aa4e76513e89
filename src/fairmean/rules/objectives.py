"""Client side: what a sample costs, how a client reduces its samples' losses, what it measures and remembers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmean.errors import UserError
from fairmean.rules.context import Context, Means
from fairmean.rules.hyper import check_tilt
from fairmean.rules.registry import Parts
from fairmean.rules.round import State
from fairmean.rules.search_space import Search


@dataclass(frozen=True)
class Objective:
    """f_i = (1/t) log Σ ω exp(t ℓ) / Σ ω over the samples of client i, with ℓ from ``losses``; t = 0: Σ ω ℓ / Σ ω.

    Rows belong to several clients, one after the other; what a row gives may depend on that row, on its client and on
    the context alone. ``simple``: the class needs no context, and measures and remembers nothing (a subclass says so
    for itself).
    """

    simple: ClassVar[bool] = False
    search: ClassVar[Search] = {}

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

    def entropy(self, logits: Tensor) -> Tensor:
        """How unsure the model is of every row, without looking at labels: −Σ p log p of its class probabilities.

        Of a sequence it is the mean over tokens.
        """
        log_p = F.log_softmax(logits, -1)
        return _per_sample(-(log_p.exp() * log_p).sum(-1))

    def init(self, n: int, classes: int) -> State:
        """The memories of n clients before the first round: tensors with one row for each, by name."""
        return {}

    def remember(self, memory: State, means: Means, context: Context) -> State:
        """What the clients of the round remember from now on: the same names and shapes as ``memory``.

        It is called once a round, before the scale, and only says what follows: calling it twice changes nothing.
        """
        return memory


def _per_sample(values: Tensor) -> Tensor:
    """One value for each sample: of a sequence, the mean over its tokens."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values


OBJECTIVES = Parts("objective", Objective)
register_objective = OBJECTIVES.register


def of_classes(logits: Tensor) -> Tensor:
    """Logits of all classes; where a model returns a single number, the first class has 0."""
    if logits.shape[-1] != 1:
        return logits
    return torch.cat([torch.zeros_like(logits), logits], -1)


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
    search: ClassVar[Search] = {"t_in": (-2.0, -1.0, -0.5, -0.25)}

    @property
    def tilt(self) -> float:
        return self.t_in

    def __post_init__(self) -> None:
        check_tilt("t_in", self.t_in)


@register_objective("next-token")
@dataclass(frozen=True)
class NextToken(Objective):
    """ℓ = −(1/L) Σ log p of the next token, over the L tokens of a sequence."""

    simple: ClassVar[bool] = True

    def losses(self, logits: Tensor, y: Tensor, context: Context) -> Tensor:
        of_tokens = F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="none")
        return _per_sample(of_tokens.view(logits.shape[:-1]))


@register_objective("binary-cross-entropy")
@dataclass(frozen=True)
class BinaryCrossEntropy(Objective):
    """ℓ = −y ω₊ log σ(z) − (1−y) log(1−σ(z)): one output z, and positive samples count pos_weight = ω₊ times."""

    simple: ClassVar[bool] = True
    pos_weight: float = 1.0
    search: ClassVar[Search] = {"pos_weight": ()}

    def __post_init__(self) -> None:
        if not 0 < self.pos_weight < float("inf"):
            raise UserError(f"pos_weight = {self.pos_weight}: must be a finite number > 0 (1 counts all samples alike)")

    def losses(self, logits: Tensor, y: Tensor, context: Context) -> Tensor:
        z = logits[..., 0]
        return self.pos_weight * y * F.softplus(-z) + (1 - y) * F.softplus(z)

    def entropy(self, logits: Tensor) -> Tensor:
        z = logits[..., 0]
        p = torch.sigmoid(z)
        return p * F.softplus(-z) + (1 - p) * F.softplus(z)


@dataclass(frozen=True)
class Distance(Objective):
    """ℓ is a function of the error z − y of a predicted number."""

    simple: ClassVar[bool] = True

    def of_error(self, error: Tensor) -> Tensor:
        """ℓ of an error."""
        raise NotImplementedError

    def losses(self, logits: Tensor, y: Tensor, context: Context) -> Tensor:
        return self.of_error(logits[..., 0] - y)

    def entropy(self, logits: Tensor) -> Tensor:
        raise UserError("a predicted number has no entropy; choose a method that does not ask for it, as fairmean")


@register_objective("squared")
@dataclass(frozen=True)
class Squared(Distance):
    """ℓ = (z − y)²."""

    simple: ClassVar[bool] = True

    def of_error(self, error: Tensor) -> Tensor:
        return error.square()


@register_objective("absolute")
@dataclass(frozen=True)
class Absolute(Distance):
    """ℓ = |z − y|: a few large errors count less than in the squared one."""

    simple: ClassVar[bool] = True

    def of_error(self, error: Tensor) -> Tensor:
        return error.abs()


@register_objective("huber")
@dataclass(frozen=True)
class Huber(Distance):
    """ℓ = e²/2 for errors |e| ≤ δ, and δ(|e| − δ/2) beyond: squared near zero, absolute far away."""

    simple: ClassVar[bool] = True
    delta: float = 1.0
    search: ClassVar[Search] = {"delta": ()}

    def __post_init__(self) -> None:
        if not 0 < self.delta < float("inf"):
            raise UserError(f"delta = {self.delta}: must be a finite number > 0 (where the slope stops growing)")

    def of_error(self, error: Tensor) -> Tensor:
        return F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=self.delta)
