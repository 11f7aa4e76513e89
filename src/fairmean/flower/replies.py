"""The replies of a round as one more cohort: the server asks it as it asks the simulator's clients.

On rung 0 the clients have scaled their gradients themselves, and the replies are only added up. On the rungs above the
server gets gradients and scales, and its method is the same one with the scale that was received in place of the scale
that would be computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fairmean.engine.cohort import Cohort, Reporting, Sums
from fairmean.flower.checking import Accepted
from fairmean.rules.context import Context, Means
from fairmean.rules.method import Method
from fairmean.rules.objectives import CrossEntropy
from fairmean.rules.round import Access, Rung, State
from fairmean.rules.scales import Scale

_SCALE, _SIDE = "scale", "side/"
Noise = Callable[[Tensor, float], Tensor]
"""(the sum, what one client can have in it at most, as a share of the clip norm) → the sum with noise."""


class Replies(Cohort):
    """The clients whose replies were accepted, in order of their numbers."""

    owned = True

    def __init__(
        self, accepted: Sequence[Accepted], length: int, dtype: torch.dtype, context: Context, access: Access,
        noise: Noise | None = None,
    ) -> None:  # fmt: skip
        self._accepted, self._length, self._dtype = accepted, length, dtype
        self.context, self.access, self._noise = context, access, noise

    def _column(self, name: str) -> Tensor:
        return torch.tensor([getattr(one, name) for one in self._accepted], dtype=torch.float64)

    def _sides(self) -> State:
        names = self._accepted[0].side
        return {name: torch.stack([one.side[name] for one in self._accepted]) for name in names}

    def statistics(self) -> tuple[Tensor, Means]:
        sides = {_SIDE + name: values for name, values in self._sides().items()}
        return self._column("loss"), {_SCALE: self._column("scale"), **sides}

    def sums(self, weights: Tensor, report: Reporting) -> Sums:
        """What the clients sent, added up; they have used their statistics already, so ``report`` is not asked.

        Where no scale was sent, 1 stands for it: then only whether a client is out can matter to the server.
        """
        sent = torch.tensor([one.message is not None for one in self._accepted])
        scales = self._column("scale")
        scales = torch.where(scales.isnan(), sent.double(), scales)
        weights = weights.double()
        direction = torch.zeros(self._length, dtype=self._dtype)
        for one, weight in zip(self._accepted, weights.tolist(), strict=True):
            if one.message is not None:
                direction.add_(one.message, alpha=weight)
        if self._noise is not None:
            direction = self._noise(direction, float(weights.max()))
        side = {name: values.sum(0) for name, values in self._sides().items()}
        return Sums(weights * scales, side, self._column("loss"), {}, direction)

    def rows(self, senders: Tensor | None) -> Tensor:
        places = range(len(self._accepted)) if senders is None else senders.tolist()
        rows = torch.zeros(len(places), self._length, dtype=self._dtype)
        for row, place in zip(rows, places, strict=True):
            message = self._accepted[place].message
            if message is not None:
                row.copy_(message)
        return rows


@dataclass(frozen=True)
class Received(Scale):
    """s_i is what client i says: it computed it from its own statistics and memory."""

    inner: Scale
    simple: ClassVar[bool] = False

    def __call__(self, losses: Tensor, means: Means, context: Context) -> Tensor:
        return means[_SCALE]

    def side(self, scales: Tensor, means: Means, context: Context) -> State:
        return {name.removeprefix(_SIDE): values for name, values in means.items() if name.startswith(_SIDE)}

    def start(self, classes: int) -> State:
        return self.inner.start(classes)

    def broadcast(self, sums: State, before: State) -> State:
        return self.inner.broadcast(sums, before) if sums else before


def as_received(method: Method) -> Method:
    """The method as the server of a federation runs it: what clients do by themselves is left to them."""
    if method.rung == Rung.SUM:
        return method
    inner = method.scale
    same = {name: getattr(inner, name) for name in ("normalised", "unit", "fewest")}
    simple = bool(vars(type(inner)).get("simple", False))
    kind = type("Received", (Received,), {**same, "simple": simple, "__module__": Received.__module__})
    return replace(method, scale=kind(inner), objective=CrossEntropy())
