"""Convolutional networks on a GPU: the two steps that library kernels are slow at.

Pooling: relu(maximum of each 2×2 square), forwards and backwards one pass over memory each, in channels-last order; the
place of the maximum is one byte. Narrow convolutions: with three input channels, tensor cores starve on an image; a
first layer is a product of patches (written out once, a constant 1 among them for the bias) with its weights, and its
weights' gradient is a product with the same patches.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fairmean.engine.kernels.derivatives import first_alone, second_wanted
from fairmean.engine.precision import product

Kind = TypeVar("Kind", bound=nn.Conv2d)
WIDEST = 128  # values in a patch and a constant, at most


def plain(layer: nn.Conv2d) -> bool:
    """Whether every patch of an image is used once, by all units."""
    return layer.stride == (1, 1) and layer.padding == (0, 0) and layer.dilation == (1, 1) and layer.groups == 1


def like(layer: nn.Conv2d, kind: type[Kind]) -> Kind:
    """Another kind of convolution, with the same parameters."""
    new = kind(layer.in_channels, layer.out_channels, layer.kernel_size, device="meta")  # type: ignore[arg-type]
    new.weight, new.bias = layer.weight, layer.bias
    return new


class PooledReLU(nn.Module):
    """relu(max over 2×2 squares) of images with even sides; others by the library."""

    @staticmethod
    def takes(pool: nn.MaxPool2d) -> bool:
        """Whether it is over plain 2×2 squares."""
        sizes = {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1}
        same = all(getattr(pool, name) in (value, (value, value)) for name, value in sizes.items())
        return same and not pool.ceil_mode and not pool.return_indices

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % 2 or x.shape[3] % 2 or second_wanted():
            return torch.relu(nn.functional.max_pool2d(x, 2))
        pooled: Tensor = _PooledReLU.apply(x)  # type: ignore[no-untyped-call]
        return pooled


class _PooledReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out, place = pool(x)
        ctx.save_for_backward(place)
        return out

    @staticmethod
    @first_alone
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return unpool(gradient, *ctx.saved_tensors)


def pool(x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """relu(max + bias) over 2×2 squares, and the place of each maximum."""
    from fairmean.engine.kernels.triton.pool import pool_forward

    x = x.contiguous(memory_format=torch.channels_last)
    b, c, h, w = x.shape
    out = x.new_empty(b, h // 2, w // 2, c).permute(0, 3, 1, 2)
    place = torch.empty_like(out, dtype=torch.uint8)
    shape = {"CHANNELS": c, "WIDTH": w, "BIASED": bias is not None, "BLOCK": 1024}
    pool_forward[(-(-out.numel() // 1024),)](x, x if bias is None else bias, out, place, out.numel(), **shape)
    return out, place


def unpool(gradient: Tensor, place: Tensor) -> Tensor:
    """The gradient at the places of the maxima, zero elsewhere."""
    from fairmean.engine.kernels.triton.pool import pool_backward

    gradient = gradient.contiguous(memory_format=torch.channels_last)
    b, c, h, w = gradient.shape
    out = gradient.new_empty(b, 2 * h, 2 * w, c).permute(0, 3, 1, 2)
    shape = {"CHANNELS": c, "WIDTH": 2 * w, "BLOCK": 1024}
    pool_backward[(-(-gradient.numel() // 1024),)](gradient, place, out, gradient.numel(), **shape)
    return out


class NarrowConv(nn.Conv2d):
    """A first convolution with few channels, as a product with patches; elsewhere than in mixed precision as it was."""

    @staticmethod
    def like(layer: nn.Conv2d) -> NarrowConv:
        """The same layer, with the same parameters."""
        return like(layer, NarrowConv)

    @staticmethod
    def takes(layer: nn.Conv2d) -> bool:
        """Whether its patches are small."""
        return plain(layer) and layer.weight[0].numel() < WIDEST

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled(x.device.type) or x.requires_grad or second_wanted():
            return super().forward(x)
        out: Tensor = _Patches.apply(x, self.weight, self.bias, torch.get_autocast_dtype(x.device.type))  # type: ignore[no-untyped-call]
        return out


class _Patches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        from fairmean.engine.kernels.triton.pool import patches

        x = x.contiguous(memory_format=torch.channels_last)
        b, c, h, w = x.shape
        units, _, kh, kw = weight.shape
        size, high, wide = c * kh * kw, h - kh + 1, w - kw + 1
        depth = -(-(size + 1) // 8) * 8
        rows = torch.empty(b * high * wide, depth, dtype=dtype, device=x.device)
        shape = {"HIGH": high, "WIDE": wide, "HEIGHT": h, "WIDTH": w, "CHANNELS": c, "ACROSS": kw * c, "SIZE": size}
        patches[(-(-len(rows) // 64),)](x, rows, len(rows), **shape, DEPTH=depth, STRIDE=1, ROWS=64, COLUMNS=128)
        hat = torch.zeros(units, depth, dtype=dtype, device=x.device)
        hat[:, :size] = weight.permute(0, 2, 3, 1).reshape(units, size)
        if bias is not None:
            hat[:, size] = bias
        ctx.save_for_backward(rows)
        ctx.shape, ctx.with_bias = (units, c, kh, kw), bias is not None
        return (rows @ hat.T).view(b, high, wide, units).permute(0, 3, 1, 2)

    @staticmethod
    @first_alone
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor | None, None]:
        (rows,) = ctx.saved_tensors
        units, c, kh, kw = ctx.shape
        size = c * kh * kw
        delta = gradient.permute(0, 2, 3, 1).reshape(-1, units)
        hat = product(delta.T, rows, torch.float32)
        of_weight = hat[:, :size].reshape(units, kh, kw, c).permute(0, 3, 1, 2)
        return None, of_weight, hat[:, size] if ctx.with_bias else None, None
