"""Convolutions: the library's own weight gradient, client by client; or by our kernel where it kept what it needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairmean.engine.kernels.conv_pool import PooledConv
from fairmean.engine.layers.registry import each_client, register_layer


@register_layer(nn.Conv2d)
def convolution(layer: nn.Conv2d, x: Tensor, delta: Tensor, bounds: list[int], out: list[Tensor]) -> None:
    """∂/∂W and ∂/∂b of the rows of each client."""
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise ValueError("a convolution with another padding")
    sizes = [len(layer.bias)] if layer.bias is not None else [0]
    weights = layer.weight.detach().to(delta.dtype)
    for k, rows in each_client(bounds):
        _, of_weight, of_bias = torch.ops.aten.convolution_backward(
            delta[rows], x[rows].to(delta.dtype), weights, sizes, layer.stride, layer.padding, layer.dilation, False,
            [0, 0], layer.groups, [False, True, layer.bias is not None],
        )  # fmt: skip
        out[0][k].copy_(of_weight)
        if layer.bias is not None:
            out[1][k].copy_(of_bias)


@register_layer(PooledConv)
def pooled_convolution(layer: PooledConv, x: Tensor, delta: Tensor, bounds: list[int], out: list[Tensor]) -> None:
    """Every client at once, from what the forward pass kept; as any convolution where it kept nothing."""
    if layer.kept is None:
        convolution(layer, x, delta, bounds, out)
        return
    for view, values in zip(out, layer.client_gradients(delta, bounds), strict=False):
        view.copy_(values)
