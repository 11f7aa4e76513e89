"""y = W x + b: ∂/∂W = Σ δ xᵀ and ∂/∂b = Σ δ over a client's rows (and the places of a sequence)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairmean.cpu_products import matmul
from fairmean.engine.kernels.segment_sums import alike
from fairmean.engine.layers.registry import each_client, register_layer
from fairmean.engine.precision import product


@register_layer(nn.Linear)
def linear(layer: nn.Linear, x: Tensor, delta: Tensor, bounds: list[int], out: list[Tensor]) -> None:
    """Client by client; on a GPU by one product where clients have equally many rows."""
    weight, bias = out[0], out[1] if len(out) > 1 else None
    if delta.is_cuda and alike(bounds):
        of_weight, of_bias = at_once(x, delta, len(weight), weight.dtype)
        weight.copy_(of_weight)
        if bias is not None:
            bias.copy_(of_bias)
        return
    for k, rows in each_client(bounds):
        inputs, each = x[rows].flatten(0, -2), delta[rows].flatten(0, -2)
        if each.dtype == weight.dtype:
            matmul(each.T, inputs, out=weight[k])
        else:
            weight[k].copy_(product(each.T, inputs.to(each.dtype), weight.dtype))
        if bias is not None:
            torch.sum(each, 0, dtype=bias.dtype, out=bias[k])


def at_once(x: Tensor, delta: Tensor, clients: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of weight and bias (clients × …), for clients with equally many rows."""
    each = delta.reshape(clients, -1, delta.shape[-1])
    inputs = x.to(delta.dtype).reshape(clients, -1, x.shape[-1])
    return product(each.transpose(1, 2), inputs, dtype), each.sum(1, dtype=dtype)
