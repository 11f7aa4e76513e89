"""Networks of Linear layers and ReLUs, as the shapes and places of their layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fairmean.engine.kernels.quick_linear import is_linear


@dataclass(frozen=True)
class Layer:
    """One Linear layer: its sizes, with the constant unit and rounded up, and its places in the flat vector."""

    inputs: int
    outputs: int
    wide_inputs: int
    wide_outputs: int
    weight: slice
    bias: slice | None


def linear_layers(model: nn.Module) -> list[Layer] | None:
    """The layers of a network Flatten? Linear (ReLU Linear)*; None for any other model."""
    modules = list(model) if type(model) is nn.Sequential else []
    if modules and isinstance(modules[0], nn.Flatten):
        modules = modules[1:]
    linears, between = modules[::2], modules[1::2]
    plain = len(linears) == len(between) + 1 and all(type(m) is nn.ReLU for m in between)
    if not plain or not all(is_linear(m) for m in linears):
        return None
    layers, at = [], 0
    for k, module in enumerate(m for m in linears if isinstance(m, nn.Linear)):
        inputs, outputs = module.in_features, module.out_features
        weight = slice(at, at + inputs * outputs)
        bias = None if module.bias is None else slice(weight.stop, weight.stop + outputs)
        at = weight.stop if bias is None else bias.stop
        constant = k < len(linears) - 1
        layers.append(Layer(inputs, outputs, _up(inputs + 1), _up(outputs + constant), weight, bias))
    parameters = list(model.parameters())
    whole = at == sum(p.numel() for p in parameters) and all(p.requires_grad for p in parameters)
    return layers if whole else None


def _up(size: int) -> int:
    return -(-size // 8) * 8
