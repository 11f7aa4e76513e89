"""Any other layer: run again on each client's rows, and differentiated by autograd.

It serves layers that treat every sample by itself, with samples along the first axis: attention, recurrent layers, a
module of the user's that owns parameters.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only

from fairmean.engine.layers.registry import each_client


def tensors_of(output: Any) -> list[Tensor]:
    """The tensors of a layer's output that depend on its parameters."""
    return [value for value in tree_flatten(output)[0] if isinstance(value, Tensor) and value.requires_grad]


def by_autograd(
    layer: nn.Module, inputs: tuple[Any, Any], deltas: list[Tensor | None], bounds: list[int], out: list[Tensor]
) -> None:
    """``out[j][k]`` = the gradient of the layer's j-th parameter on client k's rows; ``inputs`` are (args, kwargs).

    ``deltas`` are the gradients of the layer's outputs, None for an output that nobody uses. Frozen parameters have the
    gradient zero.
    """
    used = [place for place, delta in enumerate(deltas) if delta is not None]
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    for k, rows in each_client(bounds):
        arguments, named = tree_map_only(Tensor, partial(_cut, rows=rows), inputs)
        with torch.enable_grad():
            outputs = tensors_of(layer.forward(*arguments, **named))  # not the call, whose hooks would see it
        chosen, given = [outputs[place] for place in used], [delta[rows] for delta in deltas if delta is not None]
        gradients = iter(torch.autograd.grad(chosen, trained, given, allow_unused=True) if used and trained else ())
        for view, parameter in zip(out, layer.parameters(), strict=True):
            gradient = next(gradients, None) if parameter.requires_grad else None
            if gradient is None:
                view[k].zero_()
            else:
                view[k].copy_(gradient)


def _cut(value: Tensor, rows: slice) -> Tensor:
    return value[rows]
