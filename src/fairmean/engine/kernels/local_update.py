"""A local step of the models of many clients: a layer's weights and biases, read and written once.

    W[b] += s δ[b]ᵀ h[b]        bias[b] += s Σ δ[b]        s = scale[b % runs]

δ has the gradients at the layer's outputs, and h its inputs, a table of rows for each of the models b. A batch of 32
rows is so small that the step is bound by memory; libraries' products take twice that time, and in full float32 five
times. Here a float32 product is three products of numbers that are split into two tf32 parts, which is about as exact.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from fairmean.engine.precision import Precision

_ROWS, _UNITS, _FEATURES = 32, 64, 128
_MOST = 4 * _ROWS  # rows, from which on arithmetic takes the time, and a library's product is as good


def add_products(
    weight: Tensor, bias: Tensor | None, slope: Tensor, below: Tensor, scale: Tensor, precision: Precision
) -> None:
    """See above: weight (models × units × features) and bias (models × units) in place; scale has a number per run."""
    few = weight.is_cuda and weight.dtype == torch.float32 and slope.shape[1] <= _MOST
    if few and _kernel() is not None:
        launch(weight, bias, slope, below, scale, "tf32" if precision.tf32 else "tf32x3")
        return
    slope = slope * scale.repeat(len(slope) // len(scale))[:, None, None]
    torch.baddbmm(weight, slope.transpose(1, 2), below, out=weight)
    if bias is not None:
        bias.add_(slope.sum(1))


def launch(weight: Tensor, bias: Tensor | None, slope: Tensor, below: Tensor, scale: Tensor, precision: str) -> None:
    """By the kernel; ``precision`` is Triton's name of it."""
    (models, rows, units), features = slope.shape, weight.shape[2]
    across, up = -(-features // _FEATURES), -(-units // _UNITS)
    _kernel()[(models * up * across,)](  # a grid has room for very many programs along its first axis alone
        weight, weight if bias is None else bias, slope.contiguous(), below.contiguous(), scale.contiguous(),
        rows, units, features, across, up, weight.stride(0), 0 if bias is None else bias.stride(0), len(scale),
        PARTS=-(-rows // _ROWS), BIASED=bias is not None, PRECISION=precision,
        ROWS=_ROWS, UNITS=_UNITS, FEATURES=_FEATURES, num_warps=4, num_stages=2,
    )  # fmt: skip


@cache
def _kernel() -> Any:
    """The compiled kernel, or None where there is no Triton."""
    try:
        from fairmean.engine.kernels.triton.local_update import add_products as kernel
    except ImportError:
        return None
    return kernel
