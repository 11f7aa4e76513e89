"""y = γ x̂ + β, x̂ normalised within a sample: ∂/∂γ = Σ δ x̂ and ∂/∂β = Σ δ over a client's rows."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fairmean.engine.kernels.norm import FusedNorm
from fairmean.engine.layers.registry import register_layer, sum_rows


@register_layer(nn.LayerNorm)
def layer_norm(layer: nn.LayerNorm, x: Tensor, delta: Tensor, bounds: list[int], out: list[Tensor]) -> None:
    """γ and β have the shape of the last axes."""
    shape = layer.normalized_shape
    normalised = F.layer_norm(x.to(out[0].dtype), shape, eps=layer.eps)
    for values, view in zip((delta * normalised, delta), out, strict=False):
        sum_rows(values.reshape(len(x), -1, *shape).sum(1), bounds, view)


@register_layer(nn.GroupNorm)
def group_norm(layer: nn.GroupNorm, x: Tensor, delta: Tensor, bounds: list[int], out: list[Tensor]) -> None:
    """γ and β have a number for each channel."""
    normalised = F.group_norm(x.to(out[0].dtype), layer.num_groups, eps=layer.eps)
    for values, view in zip((delta * normalised, delta), out, strict=False):
        sum_rows(values.reshape(len(x), layer.num_channels, -1).sum(2), bounds, view)


@register_layer(FusedNorm)
def fused_norm(layer: FusedNorm, x: Tensor, delta: Tensor, bounds: list[int], out: list[Tensor]) -> None:
    """What the layer's backward pass kept for every image."""
    if layer.kept is None:
        raise ValueError("a pass that the kernels did not compute, or that did not go below this layer")
    for values, view in zip(layer.kept, out, strict=True):
        sum_rows(values, bounds, view)
