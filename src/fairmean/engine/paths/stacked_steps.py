"""Local training of networks of Linear layers and ReLUs: the clients of a group advance together.

Their parameters are the rows of a matrix P (clients × d), and a step is a few batched products with the backward pass
written out: δ_l = (δ_{l+1} W_{l+1}) ⊙ 1[h_l > 0], and W_l ← W_l − lr·δ_lᵀ h_{l−1} is one product that adds into P, so
no gradient is ever stored. All clients are at w in their first step, whose forward pass is one product for all of them.

Clients are sorted by size, so that those of a group have batches of about the same length: shorter ones are filled up
with rows whose δ is zero, and clients that have done their steps leave P from above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairmean.cpu_products import add_products, linear, matmul
from fairmean.engine.batch import Index, Span
from fairmean.engine.fleet.mlp_shape import Layer, linear_layers
from fairmean.engine.losses import client_losses, client_means, row_coefficients
from fairmean.engine.net import Net
from fairmean.engine.paths.local_steps import LocalTraining
from fairmean.engine.scoring import relabelled
from fairmean.rules.context import Context, Means
from fairmean.rules.objectives import CrossEntropy

Layers = list[tuple[Tensor, Tensor | None]]
_CPU_GROUP = 5 * 2**19  # bytes of parameters that advance together on a thread: they should stay in its cache
_CUDA_GROUP = 4 * 2**30


class StackedSteps(LocalTraining):
    """Groups of clients by batched products."""

    @staticmethod
    def takes(net: Net) -> bool:
        """Whether the model is made of Linear layers and ReLUs alone, at one precision."""
        return linear_layers(net.model) is not None and not net.precision.mixed

    def _groups(self) -> list[Index]:
        d, device = self._net.flat.numel() * self._net.flat.element_size(), self._net.flat.device.type
        most = max(1, (_CUDA_GROUP if device == "cuda" else _CPU_GROUP * torch.get_num_threads()) // d)
        order = np.argsort(self._steps.sizes, kind="stable")
        return [group for group in np.array_split(order, max(1, round(len(order) / most))) if len(group)]

    def _begin(self, group: Index, context: Context) -> tuple[Tensor, Means, Any]:
        rows = self._rows_at(group, 0)
        with torch.no_grad(), self._net.passes():
            hidden, logits = forward(self._layers(self._net.flat), rows.x)
            judged = self._judged(rows, logits, context, measure=True)
        assert judged.losses is not None
        return judged.losses, judged.means, _Begun(rows, hidden, judged.delta)

    def _finish(self, group: Index, context: Context, begun: Any, chosen: Index | None) -> Tensor:
        net, local = self._net, self._step
        if begun is None:
            part = group if chosen is None else group[chosen]
            context = context if chosen is None else context.only(_on(chosen, net.flat))
            first: _Begun = self._begin(part, context)[2]
        else:
            part, first = group, begun
            if chosen is not None:
                part, context, first = group[chosen], context.only(_on(chosen, net.flat)), first.only(chosen)
        w = net.flat
        P = net.scratch("stacked parameters", len(part))
        V = None if local.momentum == 0 else net.scratch("stacked velocities", len(part)).zero_()
        with torch.no_grad(), net.passes():
            stack = self._stack(P, V)
            self._backward(stack, first.delta, first.rows.x, first.hidden, first=True)
            counts, done = self._steps.counts[part], 0
            for step in range(1, int(counts.max())):
                alive = int(np.searchsorted(counts, step, side="right"))  # the first client that still has steps to do
                if alive > done:
                    stack, done = self._stack(P[alive:], None if V is None else V[alive:]), alive
                    context = context.only(slice(alive - len(counts), None))
                rows = self._rows_at(part[alive:], step)
                hidden, logits = forward(stack.parameters, rows.x)
                delta = self._judged(rows, logits, context, measure=False).delta
                self._backward(stack, delta, rows.x, hidden)
            return torch.sub(w, P, out=P)

    def _backward(self, stack: _Stack, delta: Tensor, x: Tensor, hidden: list[Tensor], first: bool = False) -> None:
        """One step of every row of P, from the last layer to the first; at first all rows are at w."""
        w, local, (P, V, parameters, velocities) = self._net.flat, self._step, stack
        weights = self._layers(w) if first else parameters
        start = into = parameters
        shrink, grow = 1 - local.lr * (local.decay + local.proximal), -local.lr
        if V is not None:
            if first:
                P.copy_(w)
            _pull(V, P, w, local.momentum, local.decay, local.proximal)
            start = into = velocities
            shrink, grow = 1.0, 1.0
        elif first:
            start, shrink = self._layers(w.expand(len(P), -1)), 1 - local.lr * local.decay
        for k in reversed(range(len(weights))):
            weight, below = weights[k][0], hidden[k - 1] if k else x
            lower = None
            if k:
                lower = matmul(delta.flatten(0, 1) if weight.dim() == 2 else delta, weight)
                lower = torch.ops.aten.threshold_backward(lower.view_as(below), below, 0)  # where the unit is on
            (before, bias), (target, bias_target) = start[k], into[k]
            add_products(before, delta.transpose(1, 2), below, shrink, grow, target)
            if bias is not None and bias_target is not None:
                bias = bias if shrink == 1 else shrink * bias
                torch.add(bias, delta.sum(1), alpha=grow, out=bias_target)
            if lower is not None:
                delta = lower
        if V is not None:
            P.add_(V, alpha=-local.lr)
        elif local.proximal and not first:
            P.add_(w, alpha=local.lr * local.proximal)

    def _judged(self, rows: _Rows, logits: Tensor, context: Context, measure: bool) -> _Judged:
        """The objective on logits (clients × rows × outputs): its gradient there, losses and means where wanted."""
        method, shape = self._method, logits.shape
        flat = logits.reshape(-1, shape[-1])
        flat = flat if rows.real is None else flat[rows.real]
        y = rows.y if rows.dynamic is None else relabelled(rows.dynamic, flat, rows.y)
        losses, means = None, {}
        if type(method.objective) is CrossEntropy and not (measure and method.measures):
            log_p = F.log_softmax(flat, -1)
            if measure:
                each = -log_p.gather(1, y[:, None])[:, 0]
                losses, _ = client_losses(each, None, rows.span, 0.0)
            delta = log_p.exp_().scatter_add_(1, y[:, None], self._minus_one.expand(len(y), 1))
            delta = delta.div_(rows.span.equal) if rows.inverse is None else delta.mul_(rows.inverse)
        else:
            owner = rows.owner
            here = replace(context, spread=lambda values: values[owner])
            with torch.enable_grad():
                leaf = flat.detach().requires_grad_()
                each = method.objective.losses(leaf, y, here)
            weights = method.objective.weights(flat, y, here)
            if measure and method.measures:
                means = client_means(method.measure(flat, y, here), rows.span)
            losses, share = client_losses(each, weights, rows.span, method.objective.tilt)
            coefficients = row_coefficients(torch.ones_like(losses), share, rows.span, flat.dtype)
            (delta,) = torch.autograd.grad(each, leaf, coefficients)
        if rows.real is not None:
            delta = delta.new_zeros(shape[0] * shape[1], shape[2]).index_copy_(0, rows.real, delta)
        return _Judged(delta.view(shape), losses, means)

    def _rows_at(self, part: Index, step: int) -> _Rows:
        """The samples of some clients in one step, those of each client in a row of a table."""
        chosen = [self._steps.rows[step][k] for k in part]
        lengths = np.array([len(rows) for rows in chosen])
        longest, device = int(lengths.max()), self._net.flat.device
        flat, filled = np.concatenate(chosen), padding(lengths)
        real, inverse = None, None
        samples = self._steps.samples(flat)
        x = samples["x"].flatten(1)
        if filled is not None:
            x, real = x[_on(filled.table, x)], _on(filled.real, x)
            inverse = _on(np.repeat(1 / lengths, lengths), x).to(self._net.flat.dtype)[:, None]
        equal = longest if filled is None else 0
        span = Span(slice(0, len(part)), 0, len(flat), [], torch.from_numpy(lengths).to(device), equal)
        return _Rows(x.view(len(part), longest, -1), samples["y"], samples["dynamic"], span, real, inverse)

    def _stack(self, P: Tensor, V: Tensor | None) -> _Stack:
        return _Stack(P, V, self._layers(P), [] if V is None else self._layers(V))

    def _layers(self, P: Tensor) -> Layers:
        return layers_of(self._shape, P)

    @cached_property
    def _shape(self) -> Sequence[Layer]:
        layers = linear_layers(self._net.model)
        assert layers is not None
        return layers

    @cached_property
    def _minus_one(self) -> Tensor:
        return self._net.flat.new_full((1, 1), -1.0)


@dataclass(frozen=True)
class _Rows:
    """Inputs (clients × longest × features); labels and marks of the real rows alone, which are at ``real`` among all.

    ``inverse`` is one over the number of the client's rows, for each real row. None: there are no others.
    """

    x: Tensor
    y: Tensor
    dynamic: Tensor | None
    span: Span
    real: Tensor | None
    inverse: Tensor | None

    @property
    def owner(self) -> Tensor:
        """For every real row, the place of its client."""
        lengths = self.span.lengths
        return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)


class _Judged(NamedTuple):
    delta: Tensor
    losses: Tensor | None
    means: Means


class _Stack(NamedTuple):
    """The parameters of clients that advance together, their velocities if there is momentum, and both layer by layer.

    The views into them are made once for many steps.
    """

    P: Tensor
    V: Tensor | None
    parameters: Layers
    velocities: Layers


class _Begun(NamedTuple):
    """The first forward pass of a group, at w."""

    rows: _Rows
    hidden: list[Tensor]
    delta: Tensor

    def only(self, chosen: Index) -> _Begun:
        """Of some of its clients, as far as the backward pass needs it."""
        places = _on(chosen, self.delta)
        rows = replace(self.rows, x=self.rows.x[places])
        return _Begun(rows, [h[places] for h in self.hidden], self.delta[places])


class Padding(NamedTuple):
    """Rows of several clients as a table (clients × longest): what stands where, and which places are real."""

    table: Index
    real: Index


def padding(lengths: Index) -> Padding | None:
    """The rows of clients with so many rows, short ones filled up with their last row; None: all have as many."""
    longest = int(lengths.max())
    if (lengths == longest).all():
        return None
    starts, place = np.cumsum(lengths) - lengths, np.arange(longest)
    table = starts[:, None] + np.minimum(place, lengths[:, None] - 1)
    return Padding(table.ravel(), np.flatnonzero((place < lengths[:, None]).ravel()))


def layers_of(shape: Sequence[Layer], P: Tensor) -> Layers:
    """Weights and biases in one vector, or in every row of a matrix."""
    shared = P.dim() == 1
    parts = []
    for layer in shape:
        size = (layer.outputs, layer.inputs) if shared else (-1, layer.outputs, layer.inputs)
        weight = P[..., layer.weight].view(size)
        parts.append((weight, None if layer.bias is None else P[..., layer.bias]))
    return parts


def forward(layers: Layers, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Hidden layers and logits, each clients × rows × units; weights are one for all clients, or one for each."""
    hidden: list[Tensor] = []
    h = x
    for weight, bias in layers[:-1]:
        h = linear(h, weight, bias, relu=True)
        hidden.append(h)
    weight, bias = layers[-1]
    return hidden, linear(h, weight, bias)


def _pull(V: Tensor, P: Tensor, w: Tensor, momentum: float, decay: float, proximal: float) -> None:
    """V ← βV + a·P + μ(P − w)."""
    V.mul_(momentum)
    if decay + proximal:
        V.add_(P, alpha=decay + proximal)
    if proximal:
        V.sub_(w, alpha=proximal)


def _on(values: Any, like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device)
