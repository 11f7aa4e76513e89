"""A Linear layer whose products are those of ``cpu_products``."""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from fairmean.cpu_products import call, worth
from fairmean.engine.kernels.derivatives import first_alone, second_wanted


class QuickLinear(nn.Linear):
    """The same layer, whose products are computed here where that is faster."""

    @staticmethod
    def like(layer: nn.Linear) -> QuickLinear:
        """With the same parameters."""
        new = QuickLinear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        new.weight, new.bias = layer.weight, layer.bias
        return new.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // max(1, self.in_features)
        if second_wanted() or torch.is_autocast_enabled("cpu") or not worth(x, self.weight, rows):
            return super().forward(x)
        if not torch.is_grad_enabled():
            return call(x, self.weight, self.bias)
        out: Tensor = _Linear.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out


def is_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether this is a Linear layer as PyTorch has it, or the one in its place."""
    return type(layer) in (nn.Linear, QuickLinear)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return call(x, weight, bias)

    @staticmethod
    @first_alone
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = delta.reshape(-1, delta.shape[-1])
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = call(rows, weight.t(), None).view(x.shape)
        if ctx.needs_input_grad[1]:
            of_weight = call(rows.t(), x.reshape(-1, x.shape[-1]).t(), None)
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_x, of_weight, of_bias
