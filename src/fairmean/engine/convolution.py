"""Convolutional networks on a GPU: the two steps that library kernels are slow at.

Pooling: relu(maximum of each 2×2 square), forwards and backwards one pass over memory each, in channels-last order; the
place of the maximum is one byte. Narrow convolutions: with three input channels, tensor cores starve on an image; a
first layer is a product of patches (written out once, a constant 1 among them for the bias) with its weights, and its
weights' gradient is a product with the same patches.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fairmean.engine.precision import Precision, product

_NARROW = 127  # values in a patch, at most


def accelerate(model: nn.Module, precision: Precision) -> None:
    """Swap what is slow in a model on a GPU; parameters and their names stay."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return
    for chain in [m for m in model.modules() if type(m) is nn.Sequential]:
        for i, (child, after) in enumerate(pairwise(list(chain))):
            if type(child) is nn.MaxPool2d and type(after) is nn.ReLU and _halves(child):
                chain[i], chain[i + 1] = PooledReLU(), nn.Identity()
    first = next((m for m in model.modules() if type(m) is nn.Conv2d), None)
    if first is not None and precision.mixed and _narrow(first):
        for parent in model.modules():
            for name, child in parent.named_children():
                if child is first:
                    setattr(parent, name, NarrowConv.like(first))


def _halves(pool: nn.MaxPool2d) -> bool:
    wanted = {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
    return all(getattr(pool, name) in (value, (value, value)) for name, value in wanted.items())


def _narrow(layer: nn.Conv2d) -> bool:
    plain = layer.stride == (1, 1) and layer.padding == (0, 0) and layer.dilation == (1, 1) and layer.groups == 1
    return plain and layer.weight[0].numel() <= _NARROW


class PooledReLU(nn.Module):
    """relu(max over 2×2 squares) of images with even sides; others by the library."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % 2 or x.shape[3] % 2:
            return torch.relu(nn.functional.max_pool2d(x, 2))
        pooled: Tensor = _PooledReLU.apply(x)  # type: ignore[no-untyped-call]
        return pooled


class _PooledReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from fairmean.engine.triton_pool import pool_forward

        x = x.contiguous(memory_format=torch.channels_last)
        b, c, h, w = x.shape
        out = torch.empty(b, c, h // 2, w // 2, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        place = torch.empty_like(out, dtype=torch.uint8)
        pool_forward[(-(-out.numel() // 1024),)](x, out, place, out.numel(), CHANNELS=c, WIDTH=w, BLOCK=1024)
        ctx.save_for_backward(place)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        from fairmean.engine.triton_pool import pool_backward

        (place,) = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        b, c, h, w = gradient.shape
        out = torch.empty(
            b, c, 2 * h, 2 * w, dtype=gradient.dtype, device=gradient.device, memory_format=torch.channels_last
        )
        pool_backward[(-(-gradient.numel() // 1024),)](
            gradient, place, out, gradient.numel(), CHANNELS=c, WIDTH=2 * w, BLOCK=1024
        )
        return out


class NarrowConv(nn.Conv2d):
    """A first convolution with few channels, as a product with patches; elsewhere than in mixed precision as it was."""

    @staticmethod
    def like(layer: nn.Conv2d) -> NarrowConv:
        """The same layer, with the same parameters."""
        new = NarrowConv(layer.in_channels, layer.out_channels, layer.kernel_size, device="meta")  # type: ignore[arg-type]
        new.weight, new.bias = layer.weight, layer.bias
        return new

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type) or x.requires_grad:
            return super().forward(x)
        out: Tensor = _Patches.apply(x, self.weight, self.bias, torch.get_autocast_dtype(x.device.type))  # type: ignore[no-untyped-call]
        return out


class _Patches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        from fairmean.engine.triton_pool import patches

        x = x.contiguous(memory_format=torch.channels_last)
        b, c, h, w = x.shape
        units, _, kh, kw = weight.shape
        size, high, wide = c * kh * kw, h - kh + 1, w - kw + 1
        depth = -(-(size + 1) // 8) * 8
        rows = torch.empty(b * high * wide, depth, dtype=dtype, device=x.device)
        shape = {"HIGH": high, "WIDE": wide, "HEIGHT": h, "WIDTH": w, "CHANNELS": c, "ACROSS": kw * c, "SIZE": size}
        patches[(-(-len(rows) // 64),)](x, rows, len(rows), **shape, DEPTH=depth, ROWS=64, COLUMNS=128)
        hat = torch.zeros(units, depth, dtype=dtype, device=x.device)
        hat[:, :size] = weight.permute(0, 2, 3, 1).reshape(units, size)
        if bias is not None:
            hat[:, size] = bias
        ctx.save_for_backward(rows)
        ctx.shape, ctx.with_bias = (units, c, kh, kw), bias is not None
        return (rows @ hat.T).view(b, high, wide, units).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor | None, None]:
        (rows,) = ctx.saved_tensors
        units, c, kh, kw = ctx.shape
        size = c * kh * kw
        delta = gradient.permute(0, 2, 3, 1).reshape(-1, units)
        hat = product(delta.T, rows, torch.float32)
        of_weight = hat[:, :size].reshape(units, kh, kw, c).permute(0, 3, 1, 2)
        return None, of_weight, hat[:, size] if ctx.with_bias else None, None
