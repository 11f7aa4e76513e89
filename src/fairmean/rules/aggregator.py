"""Server side: what a rule declares and returns, and the registry of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from torch import Tensor

from fairmean.errors import UserError
from fairmean.rules.hyper import check_rule
from fairmean.rules.registry import Registry
from fairmean.rules.round import Round, Rung, State
from fairmean.rules.search_space import Search


@dataclass(frozen=True)
class Aggregator:
    """A rule: hyper-parameters as fields, its rung, and one function of a round.

    Linear rules (all but those on coordinates) give weights λ, and the direction is Σ λ_i v_i. ``separable``: each
    coordinate of the direction comes from that coordinate of the messages alone. ``reads``: names of what the objective
    measures that clients send to the server, which then are in ``round.means``. ``search``: see ``search_space``. A
    rule never changes its inputs and never learns which client is poisoned.
    """

    rung: ClassVar[Rung]
    assumes: ClassVar[str] = ""
    linear: ClassVar[bool] = True
    separable: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()
    search: ClassVar[Search] = {}

    @property
    def needs_sizes(self) -> bool:
        """Whether clients are weighted by their sample counts, so that these cannot be left out."""
        return False

    @property
    def remembers(self) -> bool:
        """Whether it may hold a state: a rule that only has ``weights`` or ``direction`` never does."""
        return type(self).__call__ not in (Aggregator.__call__, CoordinateRule.__call__)

    @property
    def requires(self) -> tuple[str, ...]:
        """What it needs beside messages, losses and counts: names of ``Access``."""
        return ()

    def check(self, n: int) -> None:
        """Raise a UserError if the rule cannot work with n clients in a round."""

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


def knows_f(f: int, n: int, most: int) -> None:
    """0 ≤ f ≤ most."""
    if not 0 <= f <= most:
        raise UserError(f"f = {f}: with {n} clients in a round, this rule takes f from 0 to {max(most, 0)}")


@dataclass(frozen=True)
class Entry:
    """An aggregator of the registry; ``named``: whether it is a method of its own, without a scale."""

    rule: type[Aggregator]
    reference: str
    when: str
    named: bool


AGGREGATORS: Registry[Entry] = Registry("aggregator")
A = TypeVar("A", bound=type[Aggregator])


def register(
    name: str, *, reference: str, when: str = "", named: bool = True, replace: bool = False
) -> Callable[[A], A]:
    """Make an aggregator available under ``name``: to compose with any scale and, if ``named``, as a method alone.

    ``when``: one sentence on when to use it, for the docs. A name that is taken is refused, unless ``replace`` is set.
    """

    def add(cls: A) -> A:
        check_rule(name, cls, Aggregator)
        AGGREGATORS.add(name, cls, Entry(cls, reference, when, named), replace)
        return cls

    return add
