"""Server optimisers: what the server makes of the rule's direction before it steps along it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fairmean.checks import at_least, within
from fairmean.errors import UserError, unknown
from fairmean.rules.hyper import hyper_parameters, typed
from fairmean.rules.plugins import load_plugins
from fairmean.rules.registry import Parts
from fairmean.rules.round import State


@dataclass(frozen=True)
class Optimiser:
    """A direction d of a rule becomes the direction of the step, w ← w − lr·d′, coordinate by coordinate.

    It never looks at a number on the host, so that a round can be recorded on a GPU. ``plain``: d′ is d.
    """

    plain: ClassVar[bool] = False

    def init(self, d: int) -> State:
        """The state before the first round, for d parameters: tensors of length d, or single numbers."""
        return {}

    def __call__(self, direction: Tensor, state: State) -> tuple[Tensor, State]:
        """(d′, the next state)."""
        raise NotImplementedError


OPTIMISERS = Parts("server optimiser", Optimiser)
register_optimiser = OPTIMISERS.register


@register_optimiser("plain")
@dataclass(frozen=True)
class Plain(Optimiser):
    """d′ = d."""

    plain: ClassVar[bool] = True

    def __call__(self, direction: Tensor, state: State) -> tuple[Tensor, State]:
        return direction, state


@register_optimiser("momentum")
@dataclass(frozen=True)
class Momentum(Optimiser):
    """m ← βm + d, d′ = m: the heavy ball; with local steps, FedAvgM (Hsu, Qi & Brown 2019)."""

    beta: float = 0.9

    def __post_init__(self) -> None:
        within("server.beta", self.beta, 0, 1, "0 is the plain step")

    def init(self, d: int) -> State:
        return {"m": torch.zeros(d)}

    def __call__(self, direction: Tensor, state: State) -> tuple[Tensor, State]:
        m = self.beta * state["m"] + direction
        return m, {"m": m}


@register_optimiser("adam")
@dataclass(frozen=True)
class Adam(Optimiser):
    """m ← β₁m + (1−β₁)d, v ← β₂v + (1−β₂)d², d′ = m/(√v + ε): FedAdam (Reddi et al. 2021), v = ε² at the start."""

    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        within("server.beta1", self.beta1, 0, 1)
        within("server.beta2", self.beta2, 0, 1)
        at_least("server.epsilon", self.epsilon, 1e-12, "how far steps adapt: small is much")

    def init(self, d: int) -> State:
        return {"m": torch.zeros(d), "v": torch.full((d,), self.epsilon**2)}

    def __call__(self, direction: Tensor, state: State) -> tuple[Tensor, State]:
        m = self.beta1 * state["m"] + (1 - self.beta1) * direction
        v = self._second(state["v"], direction * direction)
        return m / (v.sqrt() + self.epsilon), {"m": m, "v": v}

    def _second(self, v: Tensor, squares: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * squares


@register_optimiser("yogi")
@dataclass(frozen=True)
class Yogi(Adam):
    """As Adam, but v ← v − (1−β₂) sign(v − d²) d²: FedYogi (Reddi et al. 2021)."""

    def _second(self, v: Tensor, squares: Tensor) -> Tensor:
        return v - (1 - self.beta2) * torch.sign(v - squares) * squares


def optimiser(name: str = "plain", **hyper: Any) -> Optimiser:
    """A server optimiser of the registry, by name.

    >>> optimiser("momentum", beta=0.5)
    Momentum(beta=0.5)
    """
    load_plugins()
    if name not in OPTIMISERS:
        raise unknown("server optimiser", name, OPTIMISERS)
    defaults = hyper_parameters(OPTIMISERS[name])
    for key in hyper:
        if key not in defaults:
            if not defaults:
                raise UserError(f"unknown key 'server.{key}': the server optimiser '{name}' has no hyper-parameters")
            raise unknown(f"hyper-parameter of the server optimiser {name}", key, defaults)
    given = {key: typed(f"server '{name}'", key, value, defaults[key]) for key, value in hyper.items()}
    return OPTIMISERS[name](**given)
