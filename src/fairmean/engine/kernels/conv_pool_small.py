"""A convolution of few channels with its pooling and ReLU: relu(max over a 2×2 square of W∗x + b).

A square sees a patch of (k+1)×(k+1) pixels, and its four values are four products with it, for which W is laid into the
patch's four corners: Ŵ_s, s = 0 … 3, with the bias as a column of its own. So a patch is written out once for four
values, the four are never written at all, and the gradient of Ŵ_s is Σ δ 1[the maximum was at s] xᵀ over squares, as
cheap for every client on its own as for all together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairmean.engine.kernels.pool import WIDEST
from fairmean.engine.kernels.segment_sums import client_sums

_PARTS = 264  # twice the processors of a large GPU


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """(values, patches, which of the four was the maximum), the first and the last as sample × row × column × unit."""
    from fairmean.engine.kernels.triton.conv_pool_small import square_forward
    from fairmean.engine.kernels.triton.pool import patches

    x = x.contiguous(memory_format=torch.channels_last)
    (b, c, h, w), (units, _, kh, kw) = x.shape, weight.shape
    high, wide, size = (h - kh + 1) // 2, (w - kw + 1) // 2, _size(weight.shape)
    depth = -(-(size + 1) // 16) * 16
    rows = torch.empty(b * high * wide, depth, dtype=dtype, device=x.device)
    shape = {"HIGH": high, "WIDE": wide, "HEIGHT": h, "WIDTH": w, "CHANNELS": c, "ACROSS": (kw + 1) * c}
    grid, block = (-(-len(rows) // 64),), {"DEPTH": depth, "STRIDE": 2, "ROWS": 64, "COLUMNS": WIDEST}
    patches[grid](x, rows, len(rows), **shape, SIZE=size, **block)
    hat = torch.zeros(4, units, depth, dtype=dtype, device=x.device)
    for corner in _corners(hat, weight.shape):
        corner.copy_(weight.permute(0, 2, 3, 1))
    if bias is not None:
        hat[..., size] = bias
    out = torch.empty(b, high, wide, units, dtype=dtype, device=x.device)
    place = torch.empty(b, high, wide, units, dtype=torch.uint8, device=x.device)
    block = {"DEPTH": depth, "WIDE": WIDEST, "ROWS": 64, "COLUMNS": 64}
    square_forward[(*grid, -(-units // 64))](rows, hat, out, place, len(rows), UNITS=units, **block, num_warps=4)
    return out, rows, place


def gradients(
    rows: Tensor, place: Tensor, gradient: Tensor, bounds: list[int], shape: torch.Size
) -> tuple[Tensor, Tensor]:
    """Of weight and bias (clients × …), a client owning the samples between two bounds."""
    from fairmean.engine.kernels.triton.conv_pool_small import square_backward

    units, depth, each = shape[0], rows.shape[1], place.shape[1] * place.shape[2]
    delta = gradient.to(rows.dtype).permute(0, 2, 3, 1).contiguous()

    def launch(sums: list[Tensor], first: int, count: int, parts: int, length: int, share: int) -> None:
        block = {"DEPTH": depth, "WIDE": WIDEST, "ROWS": 64, "COLUMNS": 64}
        grid = (count, parts, -(-units // 64))
        square_backward[grid](rows, delta, place, *sums, first, length, share, UNITS=units, **block, num_warps=8)

    (hat,) = client_sums([each * bound for bound in bounds], [(4, units, depth)], rows.device, launch, _PARTS)
    weight = torch.stack(_corners(hat, shape)).sum(0)
    return weight.permute(0, 1, 4, 2, 3), hat[..., _size(shape)].sum(1)


def _size(shape: torch.Size) -> int:
    """Values in a patch."""
    _, c, kh, kw = shape
    return c * (kh + 1) * (kw + 1)


def _corners(hat: Tensor, shape: torch.Size) -> list[Tensor]:
    """Where W lies in each Ŵ_s: (…, units, row, column, channel)."""
    _, c, kh, kw = shape
    inner = hat[..., : _size(shape)].unflatten(-1, (kh + 1, kw + 1, c))  # type: ignore[no-untyped-call]
    return [inner[..., s, :, s // 2 : s // 2 + kh, s % 2 : s % 2 + kw, :] for s in range(4)]
