"""Per-sample and per-client losses of one forward pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmean.engine.batch import Batch, Span
from fairmean.engine.net import Net
from fairmean.rules.objectives import Objective


def sample_losses(net: Net, batch: Batch, part: slice, objective: Objective) -> tuple[Tensor, Tensor]:
    """The loss of every sample (with its graph, where gradients are on) and the logits (without).

    A poisoned client under a dynamic attack relabels here, by the very logits it is about to train on.
    """
    logits = net.logits(batch.x[part], batch.rows[part], batch.key)
    y = batch.y[part]
    if batch.dynamic is not None:
        y = torch.where(batch.dynamic[part], logits.detach().argmin(1), y)
    return objective.losses(logits, y), logits.detach()


def entropy(logits: Tensor) -> Tensor:
    """Predictive entropy −Σ p log p per sample: label-free."""
    log_p = F.log_softmax(logits, 1)
    return -(log_p.exp() * log_p).sum(1)


def client_sums(values: Tensor, span: Span) -> Tensor:
    """Sum per client of values sorted by client."""
    if span.equal:
        return values.view(-1, span.equal).sum(1)
    return torch.segment_reduce(values, "sum", lengths=span.lengths, unsafe=True)


def client_means(values: Tensor, span: Span) -> Tensor:
    """Mean per client, in float64."""
    return client_sums(values.detach().double(), span) / span.lengths


def per_row(values: Tensor, span: Span) -> Tensor:
    """One value per client, repeated for each of its samples."""
    if span.equal:
        return values[:, None].expand(-1, span.equal).reshape(-1)
    return torch.repeat_interleave(values, span.lengths, output_size=span.count)


def client_losses(values: Tensor, span: Span, tilt: float) -> tuple[Tensor, Tensor | None]:
    """Each client's loss, and the share of each sample in its gradient (None: all of a client's equal).

    R_i = (1/t) log mean exp(t ℓ), shares softmax(t ℓ) within the client; t = 0: the mean.
    """
    if tilt == 0:
        return client_means(values, span), None
    tilted = tilt * values.detach().double()
    if span.equal:
        top = tilted.view(-1, span.equal).max(1).values
    else:
        top = torch.segment_reduce(tilted, "max", lengths=span.lengths, unsafe=True)
    powers = torch.exp(tilted - per_row(top, span))
    sums = client_sums(powers, span)
    return (top + torch.log(sums / span.lengths)) / tilt, powers / per_row(sums, span)


def row_coefficients(coefficients: Tensor, share: Tensor | None, span: Span, dtype: torch.dtype) -> Tensor:
    """c_i times the sample's share in its client's gradient, for every sample."""
    if share is None:
        return per_row((coefficients / span.lengths).to(dtype), span)
    return (per_row(coefficients, span) * share).to(dtype)
