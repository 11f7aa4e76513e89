"""A cohort: the clients of one round at the model w, and what can be had of them, rung by rung.

This is the engine's inner border. On one side are the ways to compute (``paths``), each of which is a cohort; on the
other is the server, which asks for what its rule may see, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from fairmean.engine.descent import Direction
from fairmean.rules.context import Context, Means
from fairmean.rules.method import Report
from fairmean.rules.products import Products, pull
from fairmean.rules.round import NO_ACCESS, Access, State

Reporting = Callable[[Tensor, Means, Context], Report]
"""What clients make of their losses and means: ``Method.report``."""


class Sums(NamedTuple):
    """Rung 0: Σ λ_i s_i g_i, where the cohort has formed it on the way, and the sums of what was added to messages.

    ``scaled`` are the single λ_i s_i, ``losses`` and ``memory`` the single clients'. A server behind secure aggregation
    sees none of them; they are for the record, and for the clients' next round.
    """

    scaled: Tensor
    side: State
    losses: Tensor
    memory: State
    direction: Direction | None = None


class Cohort:
    """One round's clients at w. A path gives ``statistics`` and either ``rows`` or what replaces them.

    ``senders`` are the places of clients that are not out of the round; None stands for all.
    """

    context: Context
    access: Access = NO_ACCESS
    looks = True  # numbers may be looked at on the host: not where many runs go through one call
    owned = False  # nobody else needs the rows: they may be scaled in place

    def statistics(self) -> tuple[Tensor, Means]:
        """Rung 1: every client's loss at w, and the means of what it measured there."""
        raise NotImplementedError

    def sums(self, weights: Tensor, report: Reporting) -> Sums:
        """Rung 0: the clients use their statistics themselves, and what they send is added up."""
        losses, means = self.statistics()
        told = report(losses, means, self.context)
        return Sums(weights * told.scales, added(told.side), losses, told.memory)

    def weighted_sum(self, coefficients: Tensor) -> Direction:
        """Σ c_i g_i: the end of every linear rule."""
        return pull(self.rows(None), coefficients)

    def products(self, scales: Tensor, unit: bool, senders: Tensor | None) -> Products:
        """Rung 2: inner products of the messages s_i g_i."""
        return Products(self.rows(senders), scales, unit)

    def rows(self, senders: Tensor | None) -> Tensor:
        """Rung 3: the gradients, one row for each client."""
        raise NotImplementedError

    def blocks(self, senders: Tensor | None) -> Iterator[Tensor]:
        """The same in blocks of columns, from left to right, for rules to which every coordinate is alike."""
        yield self.rows(senders)


class Gathered(Cohort):
    """Clients whose gradients are in hand: n×d numbers."""

    def __init__(
        self,
        gradients: Tensor,
        losses: Tensor,
        means: Means,
        context: Context,
        access: Access = NO_ACCESS,
        owned: bool = False,
        looks: bool = True,
    ) -> None:
        self._gradients, self._losses, self._means, self.context = gradients, losses, means, context
        self.access, self.owned, self.looks = access, owned, looks

    def statistics(self) -> tuple[Tensor, Means]:
        return self._losses, self._means

    def rows(self, senders: Tensor | None) -> Tensor:
        return self._gradients if senders is None else self._gradients[senders]


class Told(Cohort):
    """Clients of which only losses and means are known yet: for coefficients, whose weighted sum comes afterwards."""

    def __init__(self, losses: Tensor, means: Means, context: Context) -> None:
        self._losses, self._means, self.context = losses, means, context

    def statistics(self) -> tuple[Tensor, Means]:
        return self._losses, self._means


class WithProducts(Told):
    """The same, and the inner products G Gᵀ of the gradients."""

    def __init__(self, gram: Tensor, losses: Tensor, means: Means, context: Context) -> None:
        super().__init__(losses, means, context)
        self._gram = gram

    def products(self, scales: Tensor, unit: bool, senders: Tensor | None) -> Products:
        return known_products(self._gram, scales, unit, senders)


def known_products(gram: Tensor, scales: Tensor, unit: bool, senders: Tensor | None) -> Products:
    """Products of messages from those of all gradients."""
    gram = gram if senders is None else gram[senders][:, senders]
    return Products(gram, scales, unit, known=gram)


def added(side: State) -> State:
    """Sums over clients."""
    return {key: value.sum(0) for key, value in side.items()}
