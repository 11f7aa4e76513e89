"""Per-sample and per-client losses of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fairmean.engine.batch import Batch, Span
from fairmean.engine.net import Net
from fairmean.engine.scoring import relabelled
from fairmean.rules.context import Context
from fairmean.rules.method import Method
from fairmean.rules.round import State


class Samples(NamedTuple):
    """A forward pass, row by row: losses (with their graph, where gradients are on), weights inside the client (None:
    all alike), and what was measured, by name.
    """

    losses: Tensor
    weights: Tensor | None
    measured: State


def sample_losses(
    net: Net, batch: Batch, part: slice, method: Method, context: Context, measure: bool = True
) -> Samples:
    """The objective on some rows of a batch. ``context`` is of the clients of the whole batch.

    A poisoned client under a dynamic attack relabels here, by the very logits it is about to train on.
    """
    logits = net.logits(batch.x[part], batch.rows[part], batch.key)
    y = batch.y[part]
    if batch.dynamic is not None:
        y = relabelled(batch.dynamic[part], logits.detach(), y)
    if method.remembers:
        context = replace(context, spread=lambda values: values[batch.owner[part]])
    losses = method.objective.losses(logits, y, context)
    if method.plain_mean and not method.measures:
        return Samples(losses, None, {})
    with torch.no_grad():
        weights = method.objective.weights(logits.detach(), y, context)
        measured = method.measure(logits.detach(), y, context) if measure and method.measures else {}
    return Samples(losses, weights, measured)


def joined(parts: Sequence[Samples]) -> Samples:
    """The passes of several parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    weights = [part.weights for part in parts if part.weights is not None]
    return Samples(
        torch.cat([part.losses for part in parts]),
        torch.cat(weights) if weights else None,
        {key: torch.cat([part.measured[key] for part in parts]) for key in parts[0].measured},
    )


def client_sums(values: Tensor, span: Span) -> Tensor:
    """Sum per client of values (or rows of values) sorted by client."""
    if span.equal:
        return values.view(-1, span.equal, *values.shape[1:]).sum(1)
    return torch.segment_reduce(values, "sum", lengths=span.lengths, unsafe=True)


def client_means(measured: State, span: Span) -> State:
    """Means per client of what was measured, in float64."""
    if not measured:
        return measured
    return {
        key: client_sums(values.detach().double(), span) / span.lengths.view(-1, *[1] * (values.dim() - 1))
        for key, values in measured.items()
    }


def per_row(values: Tensor, span: Span) -> Tensor:
    """One value per client, repeated for each of its samples."""
    if span.equal:
        return values[:, None].expand(-1, span.equal).reshape(-1)
    return torch.repeat_interleave(values, span.lengths, output_size=span.count)


def client_losses(values: Tensor, weights: Tensor | None, span: Span, tilt: float) -> tuple[Tensor, Tensor | None]:
    """Each client's loss, and the share of each sample in its gradient (None: all of a client's equal).

    f_i = (1/t) log (Σ ω exp(t ℓ) / Σ ω), shares ω exp(t ℓ) / Σ ω exp(t ℓ) within the client; t = 0: Σ ω ℓ / Σ ω.
    """
    values = values.detach().double()
    if weights is not None:
        weights = weights.detach().double()
    if tilt == 0:
        if weights is None:
            return client_sums(values, span) / span.lengths, None
        share = weights / per_row(client_sums(weights, span).clamp(min=1e-300), span)
        return client_sums(share * values, span), share
    tilted = tilt * values
    if span.equal:
        top = tilted.view(-1, span.equal).max(1).values
    else:
        top = torch.segment_reduce(tilted, "max", lengths=span.lengths, unsafe=True)
    powers = torch.exp(tilted - per_row(top, span))
    total = span.lengths
    if weights is not None:
        powers, total = weights * powers, client_sums(weights, span).clamp(min=1e-300)
    sums = client_sums(powers, span).clamp(min=1e-300)
    return (top + torch.log(sums / total)) / tilt, powers / per_row(sums, span)


def row_coefficients(coefficients: Tensor, share: Tensor | None, span: Span, dtype: torch.dtype) -> Tensor:
    """c_i times the sample's share in its client's gradient, for every sample."""
    if share is None:
        return per_row((coefficients / span.lengths).to(dtype), span)
    return (per_row(coefficients, span) * share).to(dtype)
