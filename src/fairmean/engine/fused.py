"""The fused round: one forward and one backward over all samples, no per-client gradient.

Σ c_i ∇f_i is the gradient of Σ c_i f_i with the c_i held fixed, so a rule that needs only losses costs what plain
training costs. On the lowest rung a client's coefficient depends on its own loss alone: clients go through in groups
that fit the cache, forward and backward at once. On the next rung the coefficients need all losses first: the forward
graphs are kept while they fit in memory, and else recomputed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairmean.aggregators import Round, Rung, State
from fairmean.engine.batch import Batch
from fairmean.engine.losses import client_means, entropy, sample_losses
from fairmean.engine.net import Net
from fairmean.methods import Method, Outcome


def fused_round(
    net: Net, batch: Batch, method: Method, lr: float, state: State, chunk: int, keep: int
) -> tuple[Tensor, Outcome]:
    """(losses, outcome); the outcome's direction is ``net.grad``, overwritten by the next round."""
    net.grad.zero_()
    n = len(batch.clients)
    if method.rung >= Rung.LOSSES:
        group = _Group(net, batch, method, 0, n, chunk, keep)
        coefficients, state = method.coefficients(
            group.losses, batch.sizes, group.entropies, clients=batch.ids, lr=lr, state=state
        )
        group.backward(coefficients)
        return group.losses, Outcome(net.grad, coefficients, state)

    weights, state = method.aggregator(Round(sizes=batch.sizes, clients=batch.ids, lr=lr), state)
    losses, scaled = [], []
    for first, last in _groups(batch, chunk):
        group = _Group(net, batch, method, first, last, chunk, keep)
        losses.append(group.losses)
        scaled.append(weights[first:last] * method.scale(group.losses, group.entropies))
        group.backward(scaled[-1])
    coefficients = torch.cat(scaled)
    if method.scale.normalised:
        factor = weights.sum() / coefficients.sum()
        coefficients = coefficients * factor
        net.grad.mul_(factor)
    return torch.cat(losses), Outcome(net.grad, coefficients, state)


def _groups(batch: Batch, chunk: int) -> list[tuple[int, int]]:
    """Runs of whole clients of about ``chunk`` rows; a larger client is a group of its own."""
    n = len(batch.clients)
    groups, first = [], 0
    while first < n:
        last = int(batch.offsets.searchsorted(batch.offsets[first] + chunk, side="right")) - 1
        last = min(max(last, first + 1), n)
        groups.append((first, last))
        first = last
    return groups


class _Group:
    """Clients ``first`` … ``last − 1``: their losses now, their share of the gradient on request."""

    def __init__(self, net: Net, batch: Batch, method: Method, first: int, last: int, chunk: int, keep: int) -> None:
        self._net, self._batch = net, batch
        span = batch.part(first, last)
        self._parts = [slice(a, min(a + chunk, span.stop)) for a in range(span.start, span.stop, chunk)]
        self._kept = span.stop - span.start <= keep
        self._lengths = batch.lengths[first:last]
        sizes = batch.offsets[first + 1 : last + 1] - batch.offsets[first:last]
        equal = int(sizes[0]) if (sizes == sizes[0]).all() else 0
        with torch.set_grad_enabled(self._kept):
            pieces = [sample_losses(net, batch, part) for part in self._parts]
        self._graphs = [loss for loss, _ in pieces]
        self.losses = client_means(_cat(self._graphs), self._lengths, equal)
        self.entropies = None
        if method.needs_entropy:
            self.entropies = client_means(_cat([entropy(logits) for _, logits in pieces]), self._lengths, equal)

    def backward(self, coefficients: Tensor) -> None:
        """Add Σ c_i ∇f_i to ``net.grad``."""
        rows = sum(part.stop - part.start for part in self._parts)
        each = (coefficients / self._lengths).to(self._net.flat.dtype)
        per_row = torch.repeat_interleave(each, self._lengths, output_size=rows)
        start = self._parts[0].start
        for k in reversed(range(len(self._parts))):
            part = self._parts[k]
            loss = self._graphs.pop() if self._kept else sample_losses(self._net, self._batch, part)[0]
            loss.backward(per_row[part.start - start : part.stop - start])  # type: ignore[no-untyped-call]


def _cat(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
