"""The networks of many runs on the same samples: Linear layers and ReLUs, their parameters stacked.

The first layers are one product of X with all first-layer weights side by side, and what follows are batched products.
Every layer is written with a constant unit, so that biases are columns of the weights: Ŵ = [W b; 0 1], x̂ = (x, 1), and
sizes are rounded up to multiples of eight, which tensor cores want. δ_l = (δ_{l+1} Ŵ_{l+1}) ⊙ 1[h_l > 0], and the
gradient of client k is δ_lᵀ h_{l−1} over its rows.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from fairmean.cpu_products import linear, quick
from fairmean.engine.fleet.mlp_shape import linear_layers
from fairmean.engine.kernels.linear_relu import gated_product
from fairmean.engine.precision import Precision, product


class StackedNet:
    """Passes of a model at every row of ``W`` (runs × d). ``wide``: inputs x̂ that several stacks share."""

    def __init__(self, model: nn.Module, W: Tensor, precision: Precision, wide: dict[int, Tensor]) -> None:
        layers = linear_layers(model)
        assert layers is not None
        self.layers, self.W, self.precision = layers, W, precision
        self.dtype, self.device = W.dtype, W.device
        self.fused = precision.mixed or precision.tf32
        self._wide = wide
        self._hat = self._constants(precision.storage)
        self._delta: Tensor | None = None

    def forward(self, x: Tensor, hat: list[Tensor], fused: bool | None = None) -> tuple[list[Tensor], Tensor]:
        """Hidden layers (rows × runs × units), and logits (runs × rows × classes) at full precision."""
        N, R, fused = len(x), len(self.W), self.fused if fused is None else fused
        hidden: list[Tensor] = []
        for layer, w in zip(self.layers[:-1], hat[:-1], strict=True):
            if not hidden:
                every = w.view(-1, layer.wide_inputs)
                if quick(x, every.T):
                    hidden.append(linear(x, every, relu=True).view(N, R, layer.wide_outputs))
                    continue
                zero = torch.zeros(len(every), dtype=w.dtype, device=w.device)
                h = torch._addmm_activation(zero, x, every.T).view(N, R, layer.wide_outputs)  # relu(0 + x Ŵᵀ)
            else:
                h = torch.empty(N, R, layer.wide_outputs, dtype=w.dtype, device=w.device)
                gated_product(hidden[-1], w.transpose(1, 2), None, h, fused)
            hidden.append(h)
        w, classes = hat[-1], self.layers[-1].outputs
        if hidden:
            return hidden, product(hidden[-1].transpose(0, 1), w.transpose(1, 2), self.dtype)[..., :classes]
        logits = product(x, w.view(-1, w.shape[2]).T, self.dtype).view(N, R, -1).transpose(0, 1)
        return hidden, logits[..., :classes]

    def backward(self, delta: Tensor, x: Tensor, hidden: list[Tensor], hat: list[Tensor], bounds: list[int]) -> Tensor:
        """Gradients (runs × parts × d), a part being the rows between two bounds."""
        R, d, low = len(self.W), self.W.shape[1], self.precision.storage
        out = torch.empty(R, len(bounds) - 1, d, dtype=self.dtype, device=self.device)
        above = self._top(delta.shape[1], low)
        above[..., : delta.shape[2]] = delta
        for k in reversed(range(len(self.layers))):
            layer = self.layers[k]
            below = hidden[k - 1].transpose(0, 1) if k else x
            for part, (a, b) in enumerate(pairwise(bounds)):
                if k:
                    of_w = product(above[:, a:b].transpose(1, 2), below[:, a:b], self.dtype)
                else:
                    side_by_side = above.transpose(0, 1)[a:b].reshape(b - a, -1)
                    of_w = product(side_by_side.T, x[a:b], self.dtype).view(R, layer.wide_outputs, layer.wide_inputs)
                row = out[:, part]
                row[:, layer.weight].view(R, layer.outputs, layer.inputs).copy_(
                    of_w[:, : layer.outputs, : layer.inputs]
                )
                if layer.bias is not None:
                    row[:, layer.bias] = of_w[:, : layer.outputs, layer.inputs]
            if k:
                lower = torch.empty_like(hidden[k - 1])
                gated_product(above.transpose(0, 1), hat[k], hidden[k - 1], lower, self.fused)
                above = lower.transpose(0, 1)
        return out

    def _top(self, rows: int, dtype: torch.dtype) -> Tensor:
        """Room for the gradient of the logits, whose last columns stay zero."""
        if self._delta is None or self._delta.shape[1] != rows:
            shape = (len(self.W), rows, self.layers[-1].wide_outputs)
            self._delta = torch.zeros(shape, dtype=dtype, device=self.device)
        return self._delta

    def _constants(self, dtype: torch.dtype) -> list[Tensor]:
        """Ŵ of every layer, zero but for the weight that hands the constant 1 on."""
        result = []
        for k, layer in enumerate(self.layers):
            w = torch.zeros(len(self.W), layer.wide_outputs, layer.wide_inputs, dtype=dtype, device=self.device)
            if k < len(self.layers) - 1:
                w[:, layer.outputs, layer.inputs] = 1
            result.append(w)
        return result

    def filled(self) -> list[Tensor]:
        """Ŵ at the current parameters, for products at the run's precision; always the same tensors."""
        return self._fill(self._hat)

    def exact(self) -> list[Tensor]:
        """Ŵ at the current parameters and their own precision."""
        return self._fill(self._constants(self.dtype))

    def _fill(self, hat: list[Tensor]) -> list[Tensor]:
        for layer, w in zip(self.layers, hat, strict=True):
            w[:, : layer.outputs, : layer.inputs] = self.W[:, layer.weight].view(-1, layer.outputs, layer.inputs)
            if layer.bias is not None:
                w[:, : layer.outputs, layer.inputs] = self.W[:, layer.bias]
        return hat

    def widened(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x̂ = (x, 1, 0 …), made once for all stacks that share x."""
        key = hash((x.data_ptr(), x.shape, dtype))
        if key not in self._wide:
            inputs = prod(x.shape[1:])
            wide = torch.zeros(len(x), self.layers[0].wide_inputs, dtype=dtype, device=x.device)
            wide[:, :inputs] = x.flatten(1)
            wide[:, inputs] = 1
            self._wide[key] = wide
        return self._wide[key]
