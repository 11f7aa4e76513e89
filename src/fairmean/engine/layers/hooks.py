"""Gradients of every client from one pass: a layer's inputs and output gradients are enough.

For y = W x + b, the gradient of Σ_s c_s ℓ_s with respect to W is Σ_s δ_s x_sᵀ with δ_s = c_s ∂ℓ_s/∂y_s. So one forward
and one backward to the layers' outputs give every client's gradient as a product of its own rows, at the cost of plain
training. Each layer has its rule (``registry``), or is differentiated by autograd; whether the model's gradients can be
had so is tried on the model itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fairmean.engine.layers.by_autograd import by_autograd, tensors_of
from fairmean.engine.layers.registry import rule_of, units
from fairmean.engine.net import Net
from fairmean.engine.precision import matmul_tf32


class Seen(NamedTuple):
    """A layer's forward pass: its inputs (args, kwargs), its outputs, and how often these had been written to."""

    inputs: tuple[Any, Any]
    outputs: list[Tensor]
    versions: list[int]


class Capture:
    """Records inputs and outputs of the layers that are trained during a forward pass."""

    def __init__(self, net: Net) -> None:
        self._net = net
        layers = units(net.model)
        place = {id(p): i for i, p in enumerate(net.model.parameters())}
        self._places = {layer: [place[id(p)] for p in layer.parameters()] for layer in layers}
        self._layers = [layer for layer in layers if any(p.requires_grad for p in layer.parameters())]
        self._seen: dict[nn.Module, Seen] = {}
        self._plain: set[nn.Module] = set()
        self._twice = False
        self._slack = 3e-2 if net.precision.mixed else 1e-5

    def fits(self, x: Tensor) -> bool:
        """Whether this model's gradients can be had so: compared with autograd on two samples."""
        places = [place for inside in self._places.values() for place in inside]
        if sorted(places) != list(range(len(list(self._net.model.parameters())))):
            return False  # a parameter that two layers share
        with matmul_tf32(False):
            return self._fits(self._net.layout(_two(x)))

    def _fits(self, sample: Tensor) -> bool:
        rows = torch.arange(2, device=sample.device)
        got = torch.zeros(2, len(self._net.flat), device=sample.device, dtype=self._net.flat.dtype)
        try:
            with self.recording():
                value = self._net.logits(sample, rows, 0).square().flatten(1).sum(1)
                written = any(seen.versions != [o._version for o in seen.outputs] for seen in self._seen.values())
                if self._twice or written or len(self._seen) != len(self._layers):
                    return False
                self.gradients(value, torch.ones_like(value), [0, 1, 2], got)
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False
        for k in range(2):
            expected = torch.zeros_like(got[k])
            self._net.aim(expected)
            self._net.logits(sample[k : k + 1], rows[k : k + 1], 0).square().sum().backward()  # type: ignore[no-untyped-call]
            self._net.forget()
            if not torch.allclose(got[k], expected, rtol=1e-3, atol=self._slack * float(expected.abs().max())):
                return False
        return True

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Forward passes inside are recorded; the last one counts."""

        def hook(layer: nn.Module, arguments: Any, named: Any, output: Any) -> None:
            self._twice |= layer in self._seen
            outputs = tensors_of(output)
            inputs = tree_map_only(Tensor, Tensor.detach, (arguments, named))
            self._seen[layer] = Seen(inputs, outputs, [tensor._version for tensor in outputs])

        handles = [layer.register_forward_hook(hook, with_kwargs=True) for layer in self._layers]
        keeping: list[Any] = [layer for layer in self._layers if hasattr(layer, "capturing")]
        for layer in keeping:
            layer.capturing = True
        try:
            yield
        finally:
            for layer in keeping:
                layer.capturing, layer.kept = False, None
            for handle in handles:
                handle.remove()
            self._seen.clear()

    def gradients(self, losses: Tensor, per_row: Tensor, bounds: list[int], out: Tensor) -> None:
        """``out[k]`` = the gradient of Σ per_row·losses over rows ``bounds[k]:bounds[k+1]`` of the last pass."""
        every = [output for seen in self._seen.values() for output in seen.outputs]
        deltas = iter(torch.autograd.grad(losses, every, per_row, allow_unused=True))
        for layer, seen in self._seen.items():
            own: list[Tensor | None] = [next(deltas) for _ in seen.outputs]  # None for an output that nobody uses
            views = [self._net.rows(out, place) for place in self._places[layer]]
            if not self._by_rule(layer, seen, own, bounds, views):
                with self._as_in_the_pass(), _not_capturing(layer):
                    by_autograd(layer, seen.inputs, own, bounds, views)
        for place, trained in enumerate(self._net.trained):
            if not trained:
                self._net.rows(out, place).zero_()

    def _by_rule(
        self, layer: nn.Module, seen: Seen, deltas: list[Tensor | None], bounds: list[int], out: list[Tensor]
    ) -> bool:
        """Whether the layer has a rule that served."""
        rule, (arguments, named) = rule_of(layer), seen.inputs
        delta = deltas[0] if len(deltas) == 1 else None
        more = named or (len(arguments) != 1 and not hasattr(layer, "capturing"))  # such a layer knows the rest
        if rule is None or layer in self._plain or more or delta is None:
            return False
        try:
            rule(layer, arguments[0], delta, bounds, out)
        except ValueError:
            self._plain.add(layer)  # it is not asked again
            return False
        return True

    def _as_in_the_pass(self) -> Any:
        """At reduced precision, layers that run again run as they did."""
        if not self._net.precision.mixed:
            return nullcontext()
        return torch.autocast(self._net.flat.device.type, dtype=self._net.precision.storage, cache_enabled=False)


@contextmanager
def _not_capturing(layer: Any) -> Iterator[None]:
    """Inside, a layer that keeps its gradients for clients gives them like any other."""
    captures = getattr(layer, "capturing", False)
    if captures:
        layer.capturing = False
    try:
        yield
    finally:
        if captures:
            layer.capturing = True


def _two(x: Tensor) -> Tensor:
    """Two samples that differ; whole numbers, which may be names of things, stay among those that occur."""
    if len(x) > 1 and not torch.equal(x[0], x[1]):
        return x[:2]
    if not x.is_floating_point():
        other = (x != x[:1]).flatten(1).any(1).nonzero()[:1, 0]
        return torch.cat([x[:1], x[other] if len(other) else x[:1]])
    return x[:1].expand(2, *x.shape[1:]) + torch.tensor([0.0, 1.0]).view(-1, *[1] * (x.dim() - 1)).to(x)
