"""The fused round: one forward and one backward over all samples, no per-client gradient.

Σ c_i ∇f_i is the gradient of Σ c_i f_i with the c_i held fixed, so a rule that needs only losses costs what plain
training costs. On the lowest rung a client's coefficient depends on its own loss alone: clients go through in groups
that fit the cache, forward and backward at once. On the next rung the coefficients need all losses first: the forward
graphs are kept while they fit in memory, and else recomputed. With several ranks, each goes through its own clients,
and the ranks' gradients are summed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairmean.engine.batch import Batch, Span
from fairmean.engine.losses import client_losses, client_means, entropy, row_coefficients, sample_losses
from fairmean.engine.net import Net
from fairmean.engine.ranks import ALONE, World
from fairmean.rules.method import Method, Outcome
from fairmean.rules.round import Round, Rung, State


def fused_round(
    net: Net, batch: Batch, method: Method, lr: float, state: State, chunk: int, keep: int, world: World = ALONE
) -> tuple[Tensor, Outcome]:
    """(losses, outcome); the direction is left as the net's gradient, and None in the outcome of a single process."""
    net.forget()
    direction = None
    if world.size > 1:
        direction = torch.zeros_like(net.flat)
        net.aim(direction)
    if method.rung >= Rung.LOSSES:
        span = batch.span(0, len(batch.clients), chunk)
        losses, entropies, share, graphs = _forward(net, batch, span, method, span.count <= keep)
        losses, entropies = world.join(batch.bounds, losses, entropies)
        coefficients, state = method.coefficients(losses, batch.sizes, entropies, clients=batch.ids, lr=lr, state=state)
        _backward(net, batch, span, method, coefficients[batch.mine], share, graphs)
        return losses, Outcome(_summed(direction, world), coefficients, state)

    weights, state = method.decide(Round(sizes=batch.sizes, clients=batch.ids, lr=lr), state)
    each_losses, each_scaled, mine = [], [], weights[batch.mine]
    for span in batch.spans(chunk) or [batch.span(0, 0, chunk)]:
        losses, entropies, share, graphs = _forward(net, batch, span, method, span.count <= keep)
        scaled = mine[span.clients] * method.scales(losses, entropies)
        _backward(net, batch, span, method, scaled, share, graphs)
        each_losses.append(losses)
        each_scaled.append(scaled)
    losses, coefficients = world.join(batch.bounds, _cat(each_losses), _cat(each_scaled))
    if method.scale.normalised:
        factor = method.normaliser(weights, coefficients)
        coefficients = coefficients * factor
        net.scale_gradient(factor)
    return losses, Outcome(_summed(direction, world), coefficients, state)


def _forward(
    net: Net, batch: Batch, span: Span, method: Method, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, list[Tensor]]:
    """Losses of the span's clients, their entropies if asked for, samples' shares if unequal, graphs if kept."""
    if not span.parts:  # a rank without a client in this round
        nothing = net.flat.new_empty(0, dtype=torch.float64)
        return nothing, nothing if method.needs_entropy else None, None, []
    graphs, uncertainties = [], []
    with torch.set_grad_enabled(keep):
        for part in span.parts:
            loss, logits = sample_losses(net, batch, part, method.objective)
            graphs.append(loss)
            if method.needs_entropy:
                uncertainties.append(entropy(logits))
    losses, share = client_losses(_cat(graphs), span, method.objective.tilt)
    entropies = client_means(_cat(uncertainties), span) if method.needs_entropy else None
    return losses, entropies, share, graphs if keep else []


def _backward(
    net: Net,
    batch: Batch,
    span: Span,
    method: Method,
    coefficients: Tensor,
    share: Tensor | None,
    graphs: list[Tensor],
) -> None:
    """Add Σ c_i ∇f_i over the span's clients to the net's gradient, last part first."""
    rows = row_coefficients(coefficients, share, span, net.flat.dtype)
    for part in reversed(span.parts):
        loss = graphs.pop() if graphs else sample_losses(net, batch, part, method.objective)[0]
        net.accumulate(loss, rows[part.start - span.start : part.stop - span.start])


def _summed(direction: Tensor | None, world: World) -> Tensor | None:
    if direction is not None:
        world.sum(direction)
    return direction


def _cat(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
