"""A table of vectors: a row's gradient is the sum of δ over the places that looked it up."""

from __future__ import annotations

from torch import Tensor, nn

from fairmean.engine.layers.registry import each_client, register_layer


@register_layer(nn.Embedding)
def embedding(layer: nn.Embedding, x: Tensor, delta: Tensor, bounds: list[int], out: list[Tensor]) -> None:
    """The row of ``padding_idx`` is never trained."""
    if layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
        raise ValueError("an embedding with options of its own")
    for k, rows in each_client(bounds):
        table = out[0][k].zero_()
        table.index_add_(0, x[rows].flatten(), delta[rows].flatten(0, -2).to(table.dtype))
        if layer.padding_idx is not None:
            table[layer.padding_idx] = 0
