"""Which layers know how to give every client's gradient, by the type of the layer.

A rule is one small function. It gets the layer's input ``x`` and the gradient ``delta`` of its output, client after
client along the first axis, where client k has rows ``bounds[k]:bounds[k+1]``. It writes the gradient of each
parameter, in the order of ``layer.parameters()``, into ``out``: one tensor per parameter, clients along its first axis.
A rule that cannot serve a layer raises ValueError, and the layer is then differentiated by autograd, as layers without
a rule are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fairmean.engine.kernels.segment_sums import alike

LayerRule = Callable[[Any, Tensor, Tensor, list[int], list[Tensor]], None]
R = TypeVar("R", bound=LayerRule)

LAYERS: dict[type[nn.Module], LayerRule] = {}


def register_layer(*kinds: type[nn.Module]) -> Callable[[R], R]:
    """Let a function give the clients' gradients of layers of these types, and of types derived from them."""

    def add(rule: R) -> R:
        LAYERS.update(dict.fromkeys(kinds, rule))
        return rule

    return add


def rule_of(layer: nn.Module) -> LayerRule | None:
    """The rule of the layer's own type, or of the nearest type above it; None if there is none."""
    return next((LAYERS[kind] for kind in type(layer).__mro__ if kind in LAYERS), None)


def units(model: nn.Module) -> list[nn.Module]:
    """The outermost modules that own parameters directly: together they own all of the model's."""
    if any(parameter is not None for parameter in model._parameters.values()):
        return [model]
    return [unit for child in model.children() for unit in units(child)]


def each_client(bounds: list[int]) -> Iterator[tuple[int, slice]]:
    """k and the rows of client k, for every k."""
    return ((k, slice(a, b)) for k, (a, b) in enumerate(pairwise(bounds)))


def sum_rows(values: Tensor, bounds: list[int], out: Tensor) -> None:
    """``out[k]`` = the sum of client k's rows of ``values``."""
    if values.is_cuda and alike(bounds):  # one small kernel in the place of many
        each = values[bounds[0] : bounds[-1]].reshape(len(bounds) - 1, -1, *values.shape[1:])
        out.copy_(torch.sum(each, 1, dtype=out.dtype))
        return
    for k, rows in each_client(bounds):
        out[k].copy_(torch.sum(values[rows], 0, dtype=out.dtype))
