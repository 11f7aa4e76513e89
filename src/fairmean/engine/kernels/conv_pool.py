"""Convolution, 2×2 pooling and ReLU as one layer, in mixed precision on a GPU.

With few input channels tensor cores starve on images: then by ``squares``. Else the products are the library's, the
bias joins after the maximum, where it costs a quarter, and the gradient of the weights is ``taps``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairmean.engine.kernels import conv_pool_small as squares
from fairmean.engine.kernels import conv_weight_grad as taps
from fairmean.engine.kernels.derivatives import first_alone, second_wanted
from fairmean.engine.kernels.pool import WIDEST, PooledReLU, like, plain, pool, unpool

Kept = tuple[Tensor, Tensor]


class PooledConv(nn.Conv2d):
    """The three layers; where the kernels do not apply, as they were.

    While ``capturing``, a backward pass leaves the gradients of the parameters to ``client_gradients``.
    """

    capturing = False
    kept: Kept | None = None

    @staticmethod
    def like(layer: nn.Conv2d) -> PooledConv:
        """With the same parameters."""
        return like(layer, PooledConv)

    @staticmethod
    def takes(layer: nn.Conv2d, first: bool) -> bool:
        """Whether the kernels apply; ``first``: nothing below it has parameters."""
        units, c, *_ = layer.weight.shape
        return plain(layer) and (first if _narrow(layer.weight) else units % 8 == 0 and c % 8 == 0)

    def forward(self, x: Tensor) -> Tensor:
        narrow = _narrow(self.weight)
        by_library = second_wanted() or not torch.is_autocast_enabled(x.device.type)
        if by_library or (narrow and x.requires_grad):
            self.kept = None
            return PooledReLU()(super().forward(x))  # type: ignore[no-any-return]
        high, wide = (side - (side - k + 1) % 2 for side, k in zip(x.shape[2:], self.kernel_size, strict=True))
        x = x[:, :, :high, :wide]  # the last row or column that no square sees
        rule = _Narrow if narrow else _Wide
        dtype = torch.get_autocast_dtype(x.device.type)
        out: Tensor = rule.apply(x, self.weight, self.bias, dtype, self)  # type: ignore[no-untyped-call]
        return out

    def client_gradients(self, delta: Tensor, bounds: list[int]) -> tuple[Tensor, Tensor]:
        """Of weight and bias (clients × …), from the gradient of the last output: a client owns rows between bounds."""
        assert self.kept is not None
        first, place = self.kept
        if _narrow(self.weight):
            return squares.gradients(first, place, delta, bounds, self.weight.shape)
        return taps.gradients(first, unpool(delta.to(first.dtype), place), bounds, self.weight.shape)


def _narrow(weight: Tensor) -> bool:
    _, c, kh, kw = weight.shape
    return c * (kh + 1) * (kw + 1) < WIDEST


class _Narrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, layer: Any) -> Tensor:
        out, rows, place = squares.forward(x, weight, bias, dtype)
        layer.kept = (rows, place) if layer.capturing else None
        ctx.save_for_backward(rows, place)
        ctx.shape, ctx.with_bias = weight.shape, bias is not None
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @first_alone
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor | None, None, None]:
        rows, place = ctx.saved_tensors
        weight, bias = squares.gradients(rows, place, gradient, [0, len(gradient)], ctx.shape)
        return None, weight[0], bias[0] if ctx.with_bias else None, None, None


class _Wide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, layer: Any) -> Tensor:
        x = x.to(dtype).contiguous(memory_format=torch.channels_last)
        low = weight.to(dtype)
        out, place = pool(torch.conv2d(x, low), bias)
        layer.kept = (x, place) if layer.capturing else None
        ctx.save_for_backward(x, place, low)
        ctx.with_bias, ctx.layer = bias is not None, layer
        return out

    @staticmethod
    @first_alone
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, place, low = ctx.saved_tensors
        delta = unpool(gradient, place)
        of_x = None
        if ctx.needs_input_grad[0]:
            fixed: Any = ([0], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, False, False])
            of_x = torch.ops.aten.convolution_backward(delta, x, low, *fixed)[0]
        if ctx.layer.capturing:
            return of_x, None, None, None, None
        weight, bias = taps.gradients(x, delta, [0, len(x)], low.shape)
        return of_x, weight[0], bias[0] if ctx.with_bias else None, None, None
