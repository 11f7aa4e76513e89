"""What rules on the top rung may try: losses after a step, of the clients or on the server's own clean data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from fairmean.data.federation import Federation
from fairmean.engine.batch import Batch
from fairmean.engine.descent import descend
from fairmean.engine.net import Net
from fairmean.engine.paths.per_client import broadcast_statistics
from fairmean.engine.ranks import ALONE, World
from fairmean.errors import UserError
from fairmean.rules.context import Context
from fairmean.rules.method import Method
from fairmean.rules.round import Access


def losses_now(net: Net, batch: Batch, chunk: int, method: Method, context: Context, world: World) -> Tensor:
    """The losses of all clients of a batch at the net's parameters; ``context`` is of all of them."""
    own = net.flat.new_empty(0, dtype=torch.float64)
    if len(batch.clients):
        own = broadcast_statistics(net, batch, chunk, method, context.only(batch.mine), measure=False)[0]
    joined: Tensor = world.join(batch.bounds, own)[0]
    return joined


class Reach:
    """Trials around the net's parameters, which are the same afterwards. ``batch`` and ``context`` are the round's."""

    batch: Batch
    context: Context

    def __init__(self, net: Net, federation: Federation, chunk: int, method: Method, world: World = ALONE) -> None:
        self._net, self._federation, self._chunk, self._world = net, federation, chunk, world
        self._method = method

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
            return losses_now(self._net, self.batch, self._chunk, self._method, self.context, self._world)

    def trust(self, direction: Tensor | None, step: float) -> Tensor:
        """The loss at w − step·direction on clean data that the server owns."""
        x, y = self._federation.trust_x, self._federation.trust_y
        assert x is not None
        assert y is not None
        with self._net.evaluating(), self._moved(direction, step), torch.no_grad():
            logits = self._net.model(self._net.layout(x))
            context = replace(self.context, spread=self._of_nobody)
            return self._method.objective.losses(logits, y, context).mean().double()

    def _of_nobody(self, values: Tensor) -> Tensor:
        raise UserError(
            f"{self._method.name} looks at samples that the server owns, and its objective asks whose they are; "
            "choose another objective, or a rule without clean data"
        )

    @contextmanager
    def _moved(self, direction: Tensor | None, step: float) -> Iterator[None]:
        w = self._net.flat
        before = w.clone()
        if direction is not None:
            descend(w, self._net.held(direction), step)
        try:
            yield
        finally:
            w.copy_(before)
