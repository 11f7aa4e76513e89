"""Per-client gradients, for rules that look beyond losses; and clients' statistics by forward passes alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fairmean.engine.batch import Batch, Span
from fairmean.engine.cohort import Cohort
from fairmean.engine.layers.hooks import Capture
from fairmean.engine.losses import client_losses, client_means, joined, row_coefficients, sample_losses
from fairmean.engine.net import Net
from fairmean.rules.context import Context, Means
from fairmean.rules.method import Method
from fairmean.rules.round import NO_ACCESS, Access


class PerClient(Cohort):
    """Clients whose gradients are wanted one by one, in the rows of ``out``; passes are shared where possible."""

    owned = True

    def __init__(
        self,
        net: Net,
        batch: Batch,
        method: Method,
        context: Context,
        chunk: int,
        capture: Capture | None,
        out: Tensor,
        access: Access = NO_ACCESS,
    ) -> None:
        self._net, self._batch, self._method, self.context, self.access = net, batch, method, context, access
        self._chunk, self._capture, self._out = chunk, capture, out

    def statistics(self) -> tuple[Tensor, Means]:
        """Losses come with the gradients."""
        with self._net.passes():
            return client_gradients(
                self._net, self._batch, self._chunk, self._method, self.context, self._capture, self._out
            )

    def rows(self, senders: Tensor | None) -> Tensor:
        return self._out if senders is None else self._out[senders]


def client_gradients(
    net: Net, batch: Batch, chunk: int, method: Method, context: Context, capture: Capture | None, out: Tensor
) -> tuple[Tensor, Means]:
    """Every client's gradient into the rows of ``out``; returns losses and the means of what was measured.

    With ``capture``, clients share forward and backward passes; without, each client has its own.
    """
    losses, means = [], []
    alone = [batch.span(k, k + 1, chunk) for k in range(len(batch.clients))] if capture is None else []
    for span in alone or batch.spans(chunk):
        if capture is not None and len(span.parts) == 1:
            f, m = _together(net, batch, span, method, context, capture, out[span.clients])
        else:
            f, m = one_by_one(net, batch, span, method, context, out[span.clients])
        losses.append(f)
        means.append(m)
    return torch.cat(losses), {key: torch.cat([one[key] for one in means]) for key in means[0]}


def _together(
    net: Net, batch: Batch, span: Span, method: Method, context: Context, capture: Capture, out: Tensor
) -> tuple[Tensor, Means]:
    """All clients of a span by one pass."""
    with capture.recording():
        samples = sample_losses(net, batch, span.parts[0], method, context)
        f, share = client_losses(samples.losses, samples.weights, span, method.objective.tilt)
        rows = row_coefficients(torch.ones_like(f), share, span, samples.losses.dtype)
        bounds = (batch.offsets[span.clients.start : span.clients.stop + 1] - span.start).tolist()
        capture.gradients(samples.losses, rows, bounds, out)
    return f, client_means(samples.measured, span)


def one_by_one(
    net: Net, batch: Batch, span: Span, method: Method, context: Context, out: Tensor, measure: bool = True
) -> tuple[Tensor, Means]:
    """The span's one client, part after part.

    Without a tilt and weights a sample's share is known beforehand, so each part's graph is gone before the next; with
    one, all graphs wait for all losses.
    """
    net.aim(out[0].zero_())
    passes = []
    for part in span.parts:
        samples = sample_losses(net, batch, part, method, context, measure)
        if method.objective.tilt == 0 and samples.weights is None:
            net.accumulate(samples.losses, torch.full_like(samples.losses, 1 / span.count))
            samples = samples._replace(losses=samples.losses.detach())
        passes.append(samples)
    whole = joined(passes)
    f, share = client_losses(whole.losses, whole.weights, span, method.objective.tilt)
    if share is not None:
        net.accumulate(whole.losses, share.to(out.dtype))
    net.forget()
    return f, client_means(whole.measured, span)


def broadcast_statistics(
    net: Net, batch: Batch, chunk: int, method: Method, context: Context, measure: bool = True
) -> tuple[Tensor, Means]:
    """Each client's loss, and the means of what it measures, at the net's parameters, by forward passes alone."""
    parts = [slice(a, min(a + chunk, len(batch.x))) for a in range(0, len(batch.x), chunk)]
    with torch.no_grad(), net.passes():
        samples = joined([sample_losses(net, batch, part, method, context, measure) for part in parts])
    whole = batch.whole
    losses, _ = client_losses(samples.losses, samples.weights, whole, method.objective.tilt)
    return losses, client_means(samples.measured, whole)
