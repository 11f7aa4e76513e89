"""Products of float32 matrices on CPUs of which PyTorch's usual library uses one half.

PyTorch multiplies float32 matrices by MKL. On processors of other makers than Intel, MKL takes AVX2 instructions even
where there are wider ones (AVX-512). oneDNN, which PyTorch has for its convolutions, takes those, and is about twice as
fast at large products. Small products stay with MKL, because a call of oneDNN costs about ten microseconds. None of
these functions can be differentiated.

``torch.backends.mkldnn.enabled = False`` switches this off, as it switches off oneDNN everywhere else in PyTorch.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

_LEAST = 4_000_000  # multiplications and additions of a product, below which MKL is as fast


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """x Wᵀ + b, then ReLU if asked for; W may also be one matrix for each matrix of x."""
    if weight.dim() == 3:
        return _each_linear(x, weight, bias, relu)
    if worth(x, weight, x.numel() // max(1, x.shape[-1])):
        return call(x, weight, bias, "relu" if relu else "none")
    out = F.linear(x, weight, bias)
    return out.relu_() if relu else out


def _each_linear(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    if not worth(x, weight[0], x.shape[1]):
        rotated = weight.transpose(1, 2)
        out = torch.bmm(x, rotated) if bias is None else torch.baddbmm(bias[:, None], x, rotated)
        return out.relu_() if relu else out
    out = x.new_empty(*x.shape[:2], weight.shape[1])
    for k, into in enumerate(out):
        into.copy_(call(x[k], weight[k], None if bias is None else bias[k], "relu" if relu else "none"))
    return out


def matmul(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a @ b for two matrices, or for two batches of them."""
    if not quick(a, b):
        return torch.mm(a, b, out=out) if a.dim() == 2 else torch.bmm(a, b, out=out)
    if a.dim() == 2:
        found = call(a, b.t(), None)
        return found if out is None else out.copy_(found)
    out = a.new_empty(len(a), a.shape[1], b.shape[2]) if out is None else out
    for one, other, into in zip(a, b, out, strict=True):
        into.copy_(call(one, other.t(), None))
    return out


def add_products(before: Tensor, a: Tensor, b: Tensor, shrink: float, grow: float, out: Tensor) -> None:
    """out[k] = shrink · before[k] + grow · a[k] @ b[k]; ``out`` may be ``before``."""
    if not quick(a, b):
        torch.baddbmm(before, a, b, beta=shrink, alpha=grow, out=out)
        return
    for start, one, other, into in zip(before, a, b, out, strict=True):
        torch.add(start if shrink == 1 else start * shrink, call(one, other.t(), None), alpha=grow, out=into)


def quick(a: Tensor, b: Tensor) -> bool:
    """Whether a @ b, for two matrices or two batches of them, is faster here, and need not be differentiated."""
    followed = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    return not followed and worth(a, b if b.dim() == 2 else b[0], a.shape[-2])


def worth(a: Tensor, b: Tensor, rows: int) -> bool:
    """Whether a product of so many rows with the matrix b is large, and of numbers for which this is faster."""
    if 2 * rows * b.numel() < _LEAST or a.dtype != torch.float32 or a.device.type != "cpu":
        return False
    mapped = torch._C._functorch.maybe_current_level() is not None
    return helps() and b.dtype == torch.float32 and torch._C._get_mkldnn_enabled() and not mapped


def call(x: Tensor, weight: Tensor, bias: Tensor | None, after: str = "none") -> Tensor:
    """``after`` (x Wᵀ + b) by oneDNN, whatever the size; gaps between numbers would make it a thousand times slower."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(_dense(x), _dense(weight), bias, after, [], "")
    return out


def _dense(values: Tensor) -> Tensor:
    """The same numbers without gaps between them; a matrix may lie row by row or column by column."""
    dense = values.is_contiguous() or (values.dim() == 2 and values.t().is_contiguous())
    return values if dense else values.contiguous()


@cache
def helps() -> bool:
    """Whether this CPU has AVX-512, which MKL does not use here but oneDNN does, and this PyTorch has both."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return False
    wide = "AVX512" in torch.backends.cpu.get_cpu_capability()
    return wide and "AuthenticAMD" in _maker() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _maker() -> str:
    """What the processor says of its maker."""
    try:
        return next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("vendor_id"))
    except (OSError, StopIteration):
        return platform.processor()
