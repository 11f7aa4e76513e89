"""The gradient of a convolution's weights as one product, for every client: Σ δ patchᵀ.

Of channels-last images, a row of a patch is one piece of memory, so patches are read where they lie.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairmean.engine.kernels.segment_sums import client_sums

_PARTS = 40  # each for every 128 values of a patch


def gradients(x: Tensor, delta: Tensor, bounds: list[int], shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Of weight and bias (clients × …), a client owning the samples between two bounds; x and δ channels-last."""
    from fairmean.engine.kernels.triton.conv_weight_grad import tap_gradients

    (_, c, height, width), (_, units, high, wide), (_, _, kh, kw) = x.shape, delta.shape, shape
    depth = c * kh * kw
    sizes = {"HEIGHT": height, "WIDTH": width, "CHANNELS": c, "HIGH": high, "WIDE": wide}

    def launch(sums: list[Tensor], first: int, count: int, parts: int, length: int, share: int) -> None:
        grid = (count, parts, -(-depth // 128) * -(-units // 64))
        block = {"ACROSS": c * kw, "DEPTH": depth, "ROWS": 64, "COLUMNS": 128, "OUTPUTS": 64}
        tap_gradients[grid](x, delta, *sums, first, length, share, **sizes, UNITS=units, **block, num_warps=4)

    rows = [high * wide * bound for bound in bounds]
    weight, bias = client_sums(rows, [(units, depth), (units,)], x.device, launch, _PARTS)
    return weight.view(-1, units, kh, kw, c).permute(0, 1, 4, 2, 3), bias
