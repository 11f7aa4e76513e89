"""Local training of several steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairmean.engine.batch import Batch
from fairmean.engine.net import Net
from fairmean.engine.paths.per_client import broadcast_statistics, one_by_one
from fairmean.engine.ranks import ALONE, World
from fairmean.rules.method import Method, Outcome
from fairmean.rules.objectives import Objective
from fairmean.rules.round import Access, Rung, State


def local_round(
    net: Net,
    steps: list[Batch],
    method: Method,
    lr: float,
    local_lr: float,
    state: State,
    chunk: int,
    access: Access,
    world: World = ALONE,
) -> tuple[Tensor, Outcome]:
    """Every client takes several steps from w; its message is the pseudo-gradient (w − w_k)/local_lr.

    The loss that decides scales and weights is the one at the broadcast w, on the batch of the first step. Rules that
    need only losses see one client's update at a time: no n×d matrix is kept.
    """
    first, w, objective = steps[0], net.flat.clone(), method.objective
    known: dict[str, Any] = {"clients": first.ids, "lr": lr, "state": state}
    losses, entropies = world.join(first.bounds, *broadcast_statistics(net, first, chunk, objective))
    if method.rung <= Rung.LOSSES:
        coefficients, state = method.coefficients(losses, first.sizes, entropies, **known)
        direction = torch.zeros_like(w)
        for k, c in enumerate(coefficients[first.mine].tolist()):
            direction.add_(_local_update(net, steps, k, w, local_lr, chunk, objective), alpha=c)
        world.sum(direction)
        return losses, Outcome(direction, coefficients, state)
    gradients = w.new_empty(len(first.ids), len(w))
    for k, row in enumerate(gradients[first.mine]):
        row.copy_(_local_update(net, steps, k, w, local_lr, chunk, objective))
    world.complete(gradients, first.bounds)
    return losses, method.combine(gradients, losses, first.sizes, entropies, access=access, owned=True, **known)


def _local_update(
    net: Net, steps: list[Batch], k: int, w: Tensor, local_lr: float, chunk: int, objective: Objective
) -> Tensor:
    """(w − w_k)/local_lr; the net is at w again afterwards."""
    gradient = torch.empty(1, len(w), dtype=w.dtype, device=w.device)
    for batch in steps:
        with net.passes():
            one_by_one(net, batch, batch.span(k, k + 1, chunk), objective, gradient)
        net.flat.add_(gradient[0], alpha=-local_lr)
    update = (w - net.flat) / local_lr
    net.flat.copy_(w)
    return update
