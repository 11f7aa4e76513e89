"""The clients of every rank as one cohort: each rank computes on its own, and what the server must see is exchanged."""

from __future__ import annotations

import torch
from torch import Tensor

from fairmean.engine.batch import Index
from fairmean.engine.cohort import Cohort, Reporting, Sums
from fairmean.engine.descent import Direction, flattened
from fairmean.engine.ranks import World
from fairmean.rules.context import Context, Means
from fairmean.rules.round import Access


class AllRanks(Cohort):
    """A cohort of this rank's clients, completed by those of the other ranks.

    ``context`` is of all clients of the round, of which rank r has those from ``bounds[r]`` to ``bounds[r+1]``;
    ``room`` holds the rows of all, where the rule looks at them.
    """

    owned = True

    def __init__(
        self, own: Cohort, world: World, context: Context, bounds: Index, access: Access, room: Tensor | None
    ) -> None:
        self._own, self._world, self.context, self._bounds = own, world, context, bounds
        self.access, self._room, self._complete = access, room, False
        self._mine = slice(*bounds[world.rank : world.rank + 2].tolist())

    def statistics(self) -> tuple[Tensor, Means]:
        losses, means = self._own.statistics()
        return self._all(losses), {key: self._all(means[key]) for key in sorted(means)}

    def sums(self, weights: Tensor, report: Reporting) -> Sums:
        own = self._own.sums(weights[self._mine], report)
        direction = self._own.weighted_sum(own.scaled) if own.direction is None else own.direction
        direction = self._summed(direction)
        scaled, losses = self._world.join(self._bounds, own.scaled, own.losses)
        for key in sorted(own.side):
            self._world.sum(own.side[key])
        memory = {key: self._all(own.memory[key]) for key in sorted(own.memory)}
        return Sums(scaled, own.side, losses, memory, direction)

    def weighted_sum(self, coefficients: Tensor) -> Direction:
        if self._complete:
            return super().weighted_sum(coefficients)
        return self._summed(self._own.weighted_sum(coefficients[self._mine]))

    def rows(self, senders: Tensor | None) -> Tensor:
        room, first = self._room, self._mine.start
        assert room is not None
        if not self._complete:
            here = None
            if senders is not None:
                here = senders[(senders >= first) & (senders < self._mine.stop)] - first
            rows = self._own.rows(here)
            mine = room[self._mine]
            if here is not None:
                mine.zero_().index_copy_(0, here, rows)
            elif rows.data_ptr() != mine.data_ptr():
                mine.copy_(rows)
            self._world.complete(room, self._bounds)
            self._complete = True
        return room if senders is None else room[senders]

    def _summed(self, direction: Direction) -> Tensor:
        flat = flattened(direction)
        self._world.sum(flat)
        return flat

    def _all(self, values: Tensor) -> Tensor:
        """Values of all clients of the round, from those of this rank's."""
        table = values.new_empty(int(self._bounds[-1]), *values.shape[1:])
        table[self._mine] = values
        self._world.complete(table, self._bounds)
        return table


class Nobody(Cohort):
    """The clients of a rank that has none in this round: it takes part in the exchanges with nothing to say.

    ``measured`` are the names of what clients measure, and the shape of one value of each.
    """

    def __init__(self, w: Tensor, context: Context, measured: dict[str, torch.Size]) -> None:
        self._w, self.context, self._measured = w, context, measured

    def statistics(self) -> tuple[Tensor, Means]:
        losses = self._w.new_empty(0, dtype=torch.float64)
        return losses, {key: losses.new_empty(0, *shape) for key, shape in self._measured.items()}

    def weighted_sum(self, coefficients: Tensor) -> Direction:
        return torch.zeros_like(self._w)

    def rows(self, senders: Tensor | None) -> Tensor:
        return self._w.new_empty(0, len(self._w))
