"""What rules on the top rung may try: losses after a step, of the clients or on the server's own clean data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fairmean.data.federation import Federation
from fairmean.engine.batch import Batch
from fairmean.engine.net import Net
from fairmean.engine.paths.per_client import broadcast_statistics
from fairmean.engine.ranks import ALONE, World
from fairmean.rules.objectives import Objective
from fairmean.rules.round import Access


class Reach:
    """Trials around the net's parameters, which are the same afterwards. ``batch`` is the round's."""

    batch: Batch

    def __init__(
        self, net: Net, federation: Federation, chunk: int, objective: Objective, world: World = ALONE
    ) -> None:
        self._net, self._federation, self._chunk, self._world = net, federation, chunk, world
        self._objective = objective

    def access(self) -> Access:
        """As the rules see it."""
        return Access(
            layers=self._net.layers,
            output=self._net.output_rows,
            trial=self.trial,
            trust=self.trust if self._federation.trust_x is not None else None,
        )

    def trial(self, direction: Tensor, step: float) -> Tensor:
        """Every participant's loss at w − step·direction, on the round's batch."""
        with self._moved(direction, step):
            losses = broadcast_statistics(self._net, self.batch, self._chunk, self._objective)[0]
            joined: Tensor = self._world.join(self.batch.bounds, losses)[0]
            return joined

    def trust(self, direction: Tensor | None, step: float) -> Tensor:
        """The loss at w − step·direction on clean data that the server owns."""
        x, y = self._federation.trust_x, self._federation.trust_y
        assert x is not None
        assert y is not None
        with self._net.evaluating(), self._moved(direction, step), torch.no_grad():
            return self._objective.losses(self._net.model(self._net.layout(x)), y).mean().double()

    @contextmanager
    def _moved(self, direction: Tensor | None, step: float) -> Iterator[None]:
        w = self._net.flat
        before = w.clone()
        if direction is not None:
            w.add_(direction, alpha=-step)
        try:
            yield
        finally:
            w.copy_(before)
