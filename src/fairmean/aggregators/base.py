"""Server side: what a rule may see, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, TypeVar

from torch import Tensor

State = dict[str, Tensor]
"""What a rule remembers between rounds; empty for most. Saved in checkpoints."""


class Rung(IntEnum):
    """The ladder: what the server must see. It is the cost ladder and the privacy ladder at once."""

    SUM = 0
    LOSSES = 1
    GRAM = 2
    COORDINATES = 3
    EXTRA = 4

    @property
    def sees(self) -> str:
        """In words."""
        return ("the sum only", "losses", "inner products", "every message", "extra data or trial losses")[self]


class Round:
    """One round as a rule sees it: exactly what its rung allows; looking at more is an error.

    ``sizes`` (n,) sample counts · ``clients`` (n,) ids of those taking part · ``lr`` · ``losses`` (n,) ·
    ``squared_norms`` (n,) and ``gram`` (n×n) inner products of messages, float64, computed when looked at ·
    ``messages`` (n×d) · ``layers`` column slices, one per layer ·
    ``trial(direction, step)`` the clients' losses after a trial step.
    """

    sizes: Tensor
    clients: Tensor
    lr: float
    losses: Tensor
    squared_norms: Tensor
    gram: Tensor
    messages: Tensor
    layers: tuple[slice, ...]
    trial: Callable[[Tensor, float], Tensor]

    def __init__(self, lazy: dict[str, Callable[[], Any]] | None = None, **seen: Any) -> None:
        self.__dict__.update(seen, _lazy=lazy or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._lazy:
            raise AttributeError(f"round.{name} is not visible on this rule's rung; declare a higher one")
        value = self.__dict__[name] = self._lazy[name]()
        return value


@dataclass(frozen=True)
class Aggregator:
    """A rule: hyper-parameters as fields, its rung, and one function of a round.

    Linear rules (all but those on coordinates) give weights λ, and the direction is Σ λ_i v_i. A rule never changes its
    inputs and never learns which client is poisoned.
    """

    rung: ClassVar[Rung]
    assumes: ClassVar[str] = ""
    linear: ClassVar[bool] = True

    def init(self, n: int) -> State:
        """The state before the first round, for n clients in all."""
        return {}

    def weights(self, round: Round) -> Tensor:
        """λ of a stateless linear rule."""
        raise NotImplementedError

    def __call__(self, round: Round, state: State) -> tuple[Tensor, State]:
        """(weights, or the direction when not linear; the next state)."""
        return self.weights(round), state


@dataclass(frozen=True)
class SumRule(Aggregator):
    """The server sees only the (count-weighted) sum of messages: fits secure aggregation."""

    rung: ClassVar[Rung] = Rung.SUM


@dataclass(frozen=True)
class LossRule(Aggregator):
    """The server also sees every client's loss."""

    rung: ClassVar[Rung] = Rung.LOSSES


@dataclass(frozen=True)
class GramRule(Aggregator):
    """The server sees the losses and the inner products of messages."""

    rung: ClassVar[Rung] = Rung.GRAM


@dataclass(frozen=True)
class CoordinateRule(Aggregator):
    """The server sees every message, coordinate by coordinate."""

    rung: ClassVar[Rung] = Rung.COORDINATES
    linear: ClassVar[bool] = False

    def direction(self, round: Round) -> Tensor:
        """The direction of a stateless rule."""
        raise NotImplementedError

    def __call__(self, round: Round, state: State) -> tuple[Tensor, State]:
        return self.direction(round), state


AGGREGATORS: dict[str, type[Aggregator]] = {}
REFERENCES: dict[str, str] = {}
A = TypeVar("A", bound=type[Aggregator])


def register(name: str, *, reference: str) -> Callable[[A], A]:
    """Make an aggregator available under ``name``, as a method of its own and to compose with any scale."""

    def add(cls: A) -> A:
        AGGREGATORS[name] = cls
        REFERENCES[name] = reference
        return cls

    return add
