"""Local training of several steps."""

from __future__ import annotations

import torch
from torch import Tensor

from fairmean.engine.batch import Batch
from fairmean.engine.cohort import Cohort
from fairmean.engine.descent import Direction, descend
from fairmean.engine.net import Net
from fairmean.engine.paths.per_client import broadcast_statistics, one_by_one
from fairmean.rules.context import Context, Means
from fairmean.rules.method import Method
from fairmean.rules.round import Access


class LocalSteps(Cohort):
    """Clients that take several steps from w; a client's message is the pseudo-gradient (w − w_k)/local_lr.

    The loss that decides scales and weights is the one at the broadcast w, on the batch of the first step. Rules that
    need only losses see one client's update at a time: no n×d matrix is kept. A client that is out does not train.
    """

    owned = True

    def __init__(
        self,
        net: Net,
        steps: list[Batch],
        method: Method,
        context: Context,
        local_lr: float,
        chunk: int,
        access: Access,
    ) -> None:
        self._net, self._steps, self._method, self.context, self.access = net, steps, method, context, access
        self._local_lr, self._chunk = local_lr, chunk

    def statistics(self) -> tuple[Tensor, Means]:
        return broadcast_statistics(self._net, self._steps[0], self._chunk, self._method, self.context)

    def weighted_sum(self, coefficients: Tensor) -> Direction:
        w = self._net.flat.clone()
        direction = torch.zeros_like(w)
        for k, c in enumerate(coefficients.tolist()):
            if c != 0 or not self._method.may_be_out:
                direction.add_(self._trained(k, w), alpha=c)
        return direction

    def rows(self, senders: Tensor | None) -> Tensor:
        w = self._net.flat.clone()
        chosen = range(len(self._steps[0].clients)) if senders is None else senders.tolist()
        updates = w.new_empty(len(chosen), len(w))
        for row, k in zip(updates, chosen, strict=True):
            row.copy_(self._trained(k, w))
        return updates

    def _trained(self, k: int, w: Tensor) -> Tensor:
        """(w − w_k)/local_lr of the k-th client; the net is at w again afterwards."""
        net = self._net
        gradient = torch.empty(1, len(w), dtype=w.dtype, device=w.device)
        for batch in self._steps:
            span = batch.span(k, k + 1, self._chunk)
            with net.passes():
                one_by_one(net, batch, span, self._method, self.context, gradient, measure=False)
            descend(net.flat, gradient[0], self._local_lr)
        update = (w - net.flat) / self._local_lr
        net.flat.copy_(w)
        return update
