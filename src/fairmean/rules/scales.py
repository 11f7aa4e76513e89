"""Client side: a client looks at its own statistics and scales its own gradient, v_i = s_i g_i."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairmean.checks import at_least
from fairmean.rules.context import Context, Means
from fairmean.rules.registry import Parts
from fairmean.rules.round import State
from fairmean.rules.search_space import KAPPAS, POWERS, TAUS, Search
from fairmean.transform import check_kappa_tau, marginal_weight


@dataclass(frozen=True)
class Scale:
    """s_i from what client i knows, elementwise over clients, outside the autograd graph; s_i = 0: the client is out.

    A client that is out of a round was measured at the broadcast model like the others; then it neither trains nor
    sends, and the server's rule sees the others alone. ``means`` holds what the objective measured, and "entropy" (the
    mean predictive entropy on the client's own inputs, label-free) for a scale that sets ``needs_entropy``.
    ``normalised`` asks the server for the ratio of two sums, Σ s_i g_i / Σ s_i. ``unit``: s_i is always 1.
    ``simple``: s_i is never 0 and needs no context (a subclass says so for itself). ``search``: see ``search_space``.

    A scale may have clients add small vectors to their messages (``side``). From their sums the server makes what it
    sends along with the next model (``broadcast``), unless fewer than ``fewest`` clients sent something.
    """

    needs_entropy: ClassVar[bool] = False
    normalised: ClassVar[bool] = False
    unit: ClassVar[bool] = False
    simple: ClassVar[bool] = False
    fewest: ClassVar[int] = 1
    search: ClassVar[Search] = {}

    def __call__(self, losses: Tensor, means: Means, context: Context) -> Tensor:
        """s, for every client of the round; ``context.memory`` is what the clients remember from now on."""
        raise NotImplementedError

    def trusted(self, context: Context) -> Tensor | None:
        """By which factor distrust lowers each client's scale; None: this scale distrusts nobody."""
        return None

    @property
    def largest(self) -> float:
        """No s_i is larger, so a server need not believe one that is."""
        return 1.0 if self.unit else math.inf

    def side_bounds(self) -> Mapping[str, tuple[float, float]]:
        """Between which numbers the entries of a client's ``side`` lie, by name; any, where a name is missing."""
        return {}

    def side(self, scales: Tensor, means: Means, context: Context) -> State:
        """What every client adds to its message, by name: one row (n, or n × k) for each."""
        return {}

    def start(self, classes: int) -> State:
        """What the server sends along with the first model."""
        return {}

    def broadcast(self, sums: State, before: State) -> State:
        """What the server sends along with the next model, made of the sums of ``side``: as in ``start``, by name."""
        return sums

    def shows(self, memory: State, broadcast: State) -> State:
        """What clients can tell about themselves, for the record: by name, one value for each. It never travels."""
        return {}


SCALES = Parts("scale", Scale)
register_scale = SCALES.register


@register_scale("none")
@dataclass(frozen=True)
class Unscaled(Scale):
    """s_i = 1."""

    unit: ClassVar[bool] = True
    simple: ClassVar[bool] = True

    def __call__(self, losses: Tensor, means: Means, context: Context) -> Tensor:
        return torch.ones_like(losses)


@register_scale("fairmean")
@dataclass(frozen=True)
class FairMean(Scale):
    """s_i = a(f_i) = 1 + κ f_i/(f_i+τ): a larger loss has more weight, but never more than 1 + κ."""

    simple: ClassVar[bool] = True
    search: ClassVar[Search] = {"kappa": KAPPAS, "tau": TAUS}
    kappa: float = 1.0
    tau: float = 1.0

    def __post_init__(self) -> None:
        check_kappa_tau(self.kappa, self.tau)

    @property
    def largest(self) -> float:
        return 1 + self.kappa

    def __call__(self, losses: Tensor, means: Means, context: Context) -> Tensor:
        return marginal_weight(losses, self.kappa, self.tau)


@register_scale("fairmean-normalised")
@dataclass(frozen=True)
class FairMeanNormalised(FairMean):
    """s_i = a(f_i), and d = Σ s_i g_i / Σ s_i: FairMean's weighting at Mean's step size."""

    search: ClassVar[Search] = {"kappa": (1.0, 4.0, 16.0, 64.0), "tau": TAUS}
    normalised: ClassVar[bool] = True
    simple: ClassVar[bool] = True


@register_scale("qffl")
@dataclass(frozen=True)
class QFFL(Scale):
    """s_i = (f_i + 1e-10)^q: a larger loss has more weight, without a bound."""

    simple: ClassVar[bool] = True
    search: ClassVar[Search] = {"q": POWERS}
    q: float = 1.0

    def __post_init__(self) -> None:
        at_least("q", self.q, 0, "0 is the plain mean")

    def __call__(self, losses: Tensor, means: Means, context: Context) -> Tensor:
        return (losses + 1e-10) ** self.q


@register_scale("fairmean-split")
@dataclass(frozen=True)
class FairMeanSplit(Scale):
    """s_i = (1 + κ H_i/(H_i+τ)) exp(−β max(0, f_i − H_i)), and d = Σ s_i g_i / Σ s_i.

    A client's priority comes from the entropy H_i of its predictions, which needs no labels. It is the mean of
    −Σ_c p_c log p_c over its samples, where p_c is the probability that the model gives to class c. The trust in the
    client comes from the excess f_i − H_i of its loss over that entropy, which is positive when its labels contradict
    the model. Always 0 < s_i < 1 + κ.
    """

    kappa: float = 16.0
    tau: float = 1.0
    beta: float = 1.0
    search: ClassVar[Search] = {"kappa": (1.0, 4.0, 16.0, 64.0), "tau": TAUS, "beta": (0.25, 0.5, 1.0, 2.0, 4.0)}
    needs_entropy: ClassVar[bool] = True
    normalised: ClassVar[bool] = True
    simple: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_kappa_tau(self.kappa, self.tau)
        at_least("beta", self.beta, 0, "0 gives every client full trust")

    @property
    def largest(self) -> float:
        return 1 + self.kappa

    def __call__(self, losses: Tensor, means: Means, context: Context) -> Tensor:
        entropies = means["entropy"]
        return marginal_weight(entropies, self.kappa, self.tau) * self.usual_trust(losses, entropies)

    def usual_trust(self, losses: Tensor, entropies: Tensor) -> Tensor:
        """exp(−β max(0, f_i − H_i)), from a model that the client itself has trained."""
        distrust = (self.beta * (losses - entropies)).clamp(min=0, max=60)  # e^-60: nothing, and never all zeros
        return torch.exp(-distrust)
