"""Per-client gradients, for rules that look beyond losses; and local training of several steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairmean.aggregators import Rung, State
from fairmean.engine.batch import Batch
from fairmean.engine.losses import client_means, entropy, sample_losses
from fairmean.engine.net import Net
from fairmean.methods import Method, Outcome


def client_gradient(net: Net, batch: Batch, k: int, chunk: int, out: Tensor) -> tuple[Tensor, Tensor]:
    """∇f_k at the net's parameters, added into ``out``; returns the client's loss and mean predictive entropy."""
    net.aim(out)
    span = batch.part(k, k + 1)
    m = span.stop - span.start
    loss = torch.zeros((), dtype=torch.float64, device=out.device)
    uncertainty = torch.zeros_like(loss)
    for a in range(span.start, span.stop, chunk):
        losses, logits = sample_losses(net, batch, slice(a, min(a + chunk, span.stop)))
        losses.backward(torch.full_like(losses, 1 / m))  # type: ignore[no-untyped-call]
        loss += losses.detach().double().sum()
        uncertainty += entropy(logits).double().sum()
    net.forget()
    return loss / m, uncertainty / m


def client_gradients(net: Net, batch: Batch, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """(G, losses, entropies): the n×d matrix of gradients, client after client."""
    gradients = net.flat.new_zeros(len(batch.clients), len(net.flat))
    stats = [client_gradient(net, batch, k, chunk, gradients[k]) for k in range(len(batch.clients))]
    losses, entropies = (torch.stack(column) for column in zip(*stats, strict=True))
    return gradients, losses, entropies


def local_round(
    net: Net, steps: list[Batch], method: Method, lr: float, local_lr: float, state: State, chunk: int
) -> tuple[Tensor, Outcome]:
    """Every client takes several steps from w; its message is the pseudo-gradient (w − w_k)/local_lr.

    The loss that decides scales and weights is the one at the broadcast w, on the batch of the first step. Rules that
    need only losses see one client's update at a time: no n×d matrix is kept.
    """
    first, w = steps[0], net.flat.clone()
    n = len(first.clients)
    known: dict[str, Any] = {"clients": first.ids, "lr": lr, "state": state}
    if method.rung <= Rung.LOSSES:
        losses, entropies = broadcast_statistics(net, first, chunk)
        coefficients, state = method.coefficients(losses, first.sizes, entropies, **known)
        direction = torch.zeros_like(w)
        for k, c in enumerate(coefficients.tolist()):
            direction.add_(_local_update(net, steps, k, w, local_lr, chunk), alpha=c)
        return losses, Outcome(direction, coefficients, state)
    gradients = torch.stack([_local_update(net, steps, k, w, local_lr, chunk) for k in range(n)])
    losses, entropies = broadcast_statistics(net, first, chunk)
    return losses, method.combine(gradients, losses, first.sizes, entropies, layers=net.layers, **known)


def broadcast_statistics(net: Net, batch: Batch, chunk: int) -> tuple[Tensor, Tensor]:
    """Each client's loss and mean predictive entropy at the net's parameters, by forward passes alone."""
    with torch.no_grad():
        parts = [slice(a, min(a + chunk, len(batch.x))) for a in range(0, len(batch.x), chunk)]
        pieces = [(losses, entropy(logits)) for losses, logits in (sample_losses(net, batch, part) for part in parts)]
    losses, entropies = (client_means(torch.cat(column), batch.lengths) for column in zip(*pieces, strict=True))
    return losses, entropies


def _local_update(net: Net, steps: list[Batch], k: int, w: Tensor, local_lr: float, chunk: int) -> Tensor:
    """(w − w_k)/local_lr; the net is at w again afterwards."""
    gradient = torch.empty_like(w)
    for batch in steps:
        client_gradient(net, batch, k, chunk, gradient.zero_())
        net.flat.add_(gradient, alpha=-local_lr)
    update = (w - net.flat) / local_lr
    net.flat.copy_(w)
    return update
