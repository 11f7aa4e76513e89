"""Per-client gradients, for rules that look beyond losses; and clients' statistics by forward passes alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fairmean.engine.batch import Batch, Span
from fairmean.engine.layers.hooks import Capture
from fairmean.engine.losses import client_losses, client_means, entropy, row_coefficients, sample_losses
from fairmean.engine.net import Net
from fairmean.rules.objectives import Objective


def client_gradients(
    net: Net, batch: Batch, chunk: int, objective: Objective, capture: Capture | None, out: Tensor
) -> tuple[Tensor, Tensor]:
    """Every client's gradient into the rows of ``out``; returns losses and mean predictive entropies.

    With ``capture``, clients share forward and backward passes; without, each client has its own.
    """
    if not len(batch.clients):
        return _nothing(net)
    losses, entropies = [], []
    alone = [batch.span(k, k + 1, chunk) for k in range(len(batch.clients))] if capture is None else []
    for span in alone or batch.spans(chunk):
        if capture is not None and len(span.parts) == 1:
            f, h = _together(net, batch, span, objective, capture, out[span.clients])
        else:
            f, h = one_by_one(net, batch, span, objective, out[span.clients])
        losses.append(f)
        entropies.append(h)
    return torch.cat(losses), torch.cat(entropies)


def _together(
    net: Net, batch: Batch, span: Span, objective: Objective, capture: Capture, out: Tensor
) -> tuple[Tensor, Tensor]:
    """All clients of a span by one pass."""
    with capture.recording():
        values, logits = sample_losses(net, batch, span.parts[0], objective)
        f, share = client_losses(values, span, objective.tilt)
        rows = row_coefficients(torch.ones_like(f), share, span, values.dtype)
        bounds = (batch.offsets[span.clients.start : span.clients.stop + 1] - span.start).tolist()
        capture.gradients(values, rows, bounds, out)
    return f, client_means(entropy(logits), span)


def one_by_one(net: Net, batch: Batch, span: Span, objective: Objective, out: Tensor) -> tuple[Tensor, Tensor]:
    """The span's one client, part after part.

    Without a tilt a sample's share is known beforehand, so each part's graph is gone before the next; with one, all
    graphs wait for all losses.
    """
    net.aim(out[0].zero_())
    values, uncertainties = [], []
    for part in span.parts:
        losses, logits = sample_losses(net, batch, part, objective)
        if objective.tilt == 0:
            net.accumulate(losses, torch.full_like(losses, 1 / span.count))
            losses = losses.detach()
        values.append(losses)
        uncertainties.append(entropy(logits))
    f, share = client_losses(torch.cat(values), span, objective.tilt)
    if share is not None:
        net.accumulate(torch.cat(values), share.to(out.dtype))
    net.forget()
    return f, client_means(torch.cat(uncertainties), span)


def broadcast_statistics(net: Net, batch: Batch, chunk: int, objective: Objective) -> tuple[Tensor, Tensor]:
    """Each client's loss and mean predictive entropy at the net's parameters, by forward passes alone."""
    if not len(batch.clients):
        return _nothing(net)
    with torch.no_grad(), net.passes():
        parts = [slice(a, min(a + chunk, len(batch.x))) for a in range(0, len(batch.x), chunk)]
        pieces = [
            (losses, entropy(logits))
            for losses, logits in (sample_losses(net, batch, part, objective) for part in parts)
        ]
    losses, entropies = (torch.cat(column) for column in zip(*pieces, strict=True))
    return client_losses(losses, batch.whole, objective.tilt)[0], client_means(entropies, batch.whole)


def _nothing(net: Net) -> tuple[Tensor, Tensor]:
    """Losses and entropies of no client: a rank may have none in a round."""
    return net.flat.new_empty(0, dtype=torch.float64), net.flat.new_empty(0, dtype=torch.float64)
