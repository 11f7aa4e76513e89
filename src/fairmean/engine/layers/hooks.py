"""Gradients of every client from one pass: a layer's inputs and output gradients are enough.

For y = W x + b, the gradient of Σ_s c_s ℓ_s with respect to W is Σ_s δ_s x_sᵀ with δ_s = c_s ∂ℓ_s/∂y_s. So one forward
and one backward to the layers' outputs give every client's gradient as a product of its own rows, at the cost of plain
training. For models of Linear and Conv2d layers, each used once; whether that fits is tried on the model itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fairmean.engine.kernels.conv_pool import PooledConv
from fairmean.engine.kernels.segment_sums import alike
from fairmean.engine.net import Net
from fairmean.engine.precision import product


class Capture:
    """Records inputs and outputs of the layers during a forward pass."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._layers = [m for m in net.model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
        self._seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        place = {id(p): i for i, p in enumerate(net.model.parameters())}
        self._places: dict[nn.Module, tuple[int, int | None]] = {
            layer: (place[id(layer.weight)], None if layer.bias is None else place[id(layer.bias)])
            for layer in self._layers
        }
        self._versions: dict[nn.Module, int] = {}
        self._twice = False
        self._slack = 3e-2 if net.precision.mixed else 1e-5

    def fits(self, x: Tensor) -> bool:
        """Whether this model's gradients can be had so: compared with autograd on two samples."""
        owned = {id(p) for layer in self._layers for p in layer.parameters()}
        if {id(p) for p in self._net.model.parameters()} != owned:
            return False
        sample = self._net.layout(
            x[:1].expand(2, *x.shape[1:]) + torch.tensor([0.0, 1.0]).view(-1, *[1] * (x.dim() - 1)).to(x)
        )
        rows = torch.arange(2, device=x.device)
        with self.recording():
            value = self._net.logits(sample, rows, 0).square().sum(1)
            changed = any(self._seen[layer][1]._version != version for layer, version in self._versions.items())
            if self._twice or changed or len(self._seen) != len(self._layers):
                return False
            got = torch.zeros(2, len(self._net.flat), device=x.device, dtype=self._net.flat.dtype)
            try:
                self.gradients(value, torch.ones_like(value), [0, 1, 2], got)
            except (RuntimeError, ValueError):
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

        def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self._twice |= layer in self._seen
            self._seen[layer] = (inputs[0].detach(), output)
            self._versions[layer] = output._version

        handles = [layer.register_forward_hook(hook) for layer in self._layers]
        pooled = [layer for layer in self._layers if isinstance(layer, PooledConv)]
        for layer in pooled:
            layer.capturing = True
        try:
            yield
        finally:
            for layer in pooled:
                layer.capturing, layer.kept = False, None
            for handle in handles:
                handle.remove()
            self._seen.clear()

    def gradients(self, losses: Tensor, per_row: Tensor, bounds: list[int], out: Tensor) -> None:
        """``out[k]`` = the gradient of Σ per_row·losses over rows ``bounds[k]:bounds[k+1]`` of the last pass."""
        layers = list(self._seen)
        outputs = [self._seen[layer][1] for layer in layers]
        deltas = torch.autograd.grad(losses, outputs, per_row)
        for layer, delta in zip(layers, deltas, strict=True):
            x = self._seen[layer][0]
            weight, bias = self._places[layer]
            if isinstance(layer, PooledConv) and layer.kept is not None:
                self._write(out, (weight, bias), layer.client_gradients(delta, bounds))
                continue
            if delta.is_cuda and isinstance(layer, nn.Linear) and alike(bounds):
                self._write(out, (weight, bias), _linears(x, delta, len(out), out.dtype))
                continue
            write = _linear if isinstance(layer, nn.Linear) else _convolution
            for k, row in enumerate(out):
                rows = slice(bounds[k], bounds[k + 1])
                of_bias = None if bias is None else self._net.view(row, bias)
                write(layer, x[rows], delta[rows], self._net.view(row, weight), of_bias)

    def _write(self, out: Tensor, places: tuple[int, int | None], values: tuple[Tensor, Tensor]) -> None:
        """Weights and biases of every client at once."""
        for place, value in zip(places, values, strict=True):
            if place is not None:
                self._net.rows(out, place).copy_(value)


def _linears(x: Tensor, delta: Tensor, clients: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of weight and bias (clients × …), for clients with equally many rows."""
    if x.dim() != 2:
        raise ValueError("a Linear layer on more than rows of features")
    each = delta.reshape(clients, -1, delta.shape[1])
    inputs = x.to(delta.dtype).reshape(clients, -1, x.shape[1])
    return product(each.transpose(1, 2), inputs, dtype), each.sum(1, dtype=dtype)


def _linear(layer: Any, x: Tensor, delta: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if x.dim() != 2:
        raise ValueError("a Linear layer on more than rows of features")
    if delta.dtype == weight.dtype:
        torch.mm(delta.T, x, out=weight)
    else:
        weight.copy_(product(delta.T, x.to(delta.dtype), weight.dtype))
    if bias is not None:
        torch.sum(delta, 0, dtype=bias.dtype, out=bias)


def _convolution(layer: Any, x: Tensor, delta: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise ValueError("a convolution with another padding")
    sizes = [len(layer.bias)] if layer.bias is not None else [0]
    weights = layer.weight.detach().to(delta.dtype)
    _, of_weight, of_bias = torch.ops.aten.convolution_backward(
        delta, x.to(delta.dtype), weights, sizes, layer.stride, layer.padding, layer.dilation, False, [0, 0],
        layer.groups, [False, True, layer.bias is not None],
    )  # fmt: skip
    weight.copy_(of_weight)
    if bias is not None:
        bias.copy_(of_bias)
