"""One layer of many runs, product and gate in a single pass over memory.

    out[n, r] = relu(a[n, r] B[r])           forwards
    out[n, r] = (a[n, r] B[r]) ⊙ 1[h > 0]    backwards, h the layer's own output

A hidden layer of a few hundred units is too narrow to be bound by arithmetic: separate products and gates move twice
the bytes. On a GPU, at reduced precision, both are one Triton kernel; elsewhere they are PyTorch's own operations.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from fairmean.cpu_products import matmul


def gated_product(a: Tensor, b: Tensor, gate: Tensor | None, out: Tensor, fused: bool) -> Tensor:
    """Rows × runs × units from a (rows × runs × k) and b (runs × k × units); see above. Writes ``out``."""
    if fused and out.is_cuda and triton_kernel() is not None:
        _launch(a, b, gate, out)
        return out
    matmul(a.transpose(0, 1), b, out=out.transpose(0, 1))
    if gate is None:
        return out.relu_()
    return torch.ops.aten.threshold_backward.grad_input(out, gate, 0, grad_input=out)  # type: ignore[no-any-return]


def _launch(a: Tensor, b: Tensor, gate: Tensor | None, out: Tensor) -> None:
    rows, runs, units = out.shape
    k = a.shape[2]
    if k <= 16:  # fixed shapes, the best of those measured on an H200; tuned at run time, results would not repeat
        block_rows, block_units, block_k, warps, stages = 64, 128, 16, 8, 1
    else:
        block_rows, block_units, block_k, warps, stages = 64, 256, 32, 4, 4
    grid = (runs, -(-rows // block_rows), -(-units // block_units))
    mask = gate is not None
    triton_kernel()[grid](
        a, b, gate if mask else out, out, rows, units, k,
        a.stride(0), a.stride(1), b.stride(0), b.stride(1), b.stride(2), out.stride(0), out.stride(1),
        MASK=mask, ROWS=block_rows, UNITS=block_units, K=block_k, num_warps=warps, num_stages=stages,
    )  # fmt: skip


@cache
def triton_kernel() -> Any:
    """The compiled kernel, or None where there is no Triton."""
    try:
        from fairmean.engine.kernels.triton.linear_relu import layer
    except ImportError:
        return None
    return layer
