"""One pass: one forward and one backward over all samples, no per-client gradient.

Σ c_i ∇f_i is the gradient of Σ c_i f_i with the c_i held fixed, so a rule that needs only losses costs what plain
training costs. On the lowest rung a client's coefficient depends on its own loss alone: clients go through in groups
that fit the cache, forward and backward at once. On the next rung the coefficients need all losses first: the forward
graphs are kept while they fit in memory, and else recomputed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairmean.engine.batch import Batch, Span
from fairmean.engine.cohort import Cohort, Reporting, Sums, added
from fairmean.engine.descent import Direction, InPlace
from fairmean.engine.losses import Samples, client_losses, client_means, joined, row_coefficients, sample_losses
from fairmean.engine.net import Net
from fairmean.rules.context import Context, Means
from fairmean.rules.method import Method
from fairmean.rules.round import State


class OnePass(Cohort):
    """Clients whose gradients are only ever summed. ``chunk``: rows that go through at a time; ``keep``: rows whose
    graphs fit in memory. The direction is left in the net's gradients.
    """

    def __init__(self, net: Net, batch: Batch, method: Method, context: Context, chunk: int, keep: int) -> None:
        self._net, self._batch, self._method, self.context = net, batch, method, context
        self._chunk, self._keep = chunk, keep
        self._passed: tuple[Span, Tensor | None, list[Samples]] | None = None

    def sums(self, weights: Tensor, report: Reporting) -> Sums:
        net, batch, narrow = self._net, self._batch, self._method.remembers
        net.forget()
        told, scaled = [], []
        for span in batch.spans(self._chunk):
            f, means, share, graphs = self._forward(span)
            everybody = span.count == batch.offsets[-1]
            report_of = report(f, means, self.context.only(span.clients) if narrow and not everybody else self.context)
            mine = weights[span.clients] * report_of.scales
            self._backward(span, mine, share, graphs)
            told.append(report_of)
            scaled.append(mine)
        if not narrow:
            return Sums(_cat(scaled), {}, _cat([one.losses for one in told]), {}, InPlace(net))
        side, memory = (_rows([getattr(one, name) for one in told]) for name in ("side", "memory"))
        return Sums(_cat(scaled), added(side), _cat([one.losses for one in told]), memory, InPlace(net))

    def statistics(self) -> tuple[Tensor, Means]:
        span = self._batch.span(0, len(self._batch.clients), self._chunk)
        losses, means, share, graphs = self._forward(span)
        self._passed = span, share, graphs
        return losses, means

    def weighted_sum(self, coefficients: Tensor) -> Direction:
        if self._passed is None:
            self.statistics()
        assert self._passed is not None
        span, share, graphs = self._passed
        self._net.forget()
        self._backward(span, coefficients, share, graphs)
        return InPlace(self._net)

    def _forward(self, span: Span) -> tuple[Tensor, Means, Tensor | None, list[Samples]]:
        """Losses and means of the span's clients, samples' shares if unequal, graphs if they can be kept."""
        keep = span.count <= self._keep
        with self._net.passes(), torch.set_grad_enabled(keep):
            passes = [sample_losses(self._net, self._batch, part, self._method, self.context) for part in span.parts]
        whole = joined(passes)
        losses, share = client_losses(whole.losses, whole.weights, span, self._method.objective.tilt)
        return losses, client_means(whole.measured, span), share, passes if keep else []

    def _backward(self, span: Span, coefficients: Tensor, share: Tensor | None, graphs: list[Samples]) -> None:
        """Add Σ c_i ∇f_i over the span's clients to the net's gradient, last part first."""
        if self._method.may_be_out and self.looks and not coefficients.any():  # all of them are out: nobody trains
            return
        net, batch, method = self._net, self._batch, self._method
        rows = row_coefficients(coefficients, share, span, net.flat.dtype)
        with net.passes():
            for part in reversed(span.parts):
                samples = (
                    graphs.pop() if graphs else sample_losses(net, batch, part, method, self.context, measure=False)
                )
                net.accumulate(samples.losses, rows[part.start - span.start : part.stop - span.start])


def _rows(tables: list[State]) -> State:
    return {key: _cat([table[key] for table in tables]) for key in tables[0]}


def _cat(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
