"""What numbers the large products are made of; parameters, losses, rules and sums keep their own precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fairmean.cpu_products import matmul


@dataclass(frozen=True)
class Precision:
    """``dtype`` of parameters and gradients; ``storage`` of what products read; ``tf32``: products round float32."""

    dtype: torch.dtype
    storage: torch.dtype
    tf32: bool = False

    @property
    def mixed(self) -> bool:
        """Whether products read less than the parameters hold."""
        return self.storage != self.dtype


PRECISIONS = {
    "float64": Precision(torch.float64, torch.float64),
    "float32": Precision(torch.float32, torch.float32),
    "tf32": Precision(torch.float32, torch.float32, tf32=True),
    "bfloat16": Precision(torch.float32, torch.bfloat16),
}


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b for matrices or batches of them, summed and returned in ``dtype``."""
    if a.dtype == dtype:
        return matmul(a, b)
    if a.is_cuda:
        return (torch.mm if a.dim() == 2 else torch.bmm)(a, b, out_dtype=dtype)
    return a.to(dtype) @ b.to(dtype)


@contextmanager
def matmul_tf32(on: bool) -> Iterator[None]:
    """Float32 products and convolutions on tensor cores, or not, inside."""
    before = torch.get_float32_matmul_precision()
    if on:
        torch.set_float32_matmul_precision("high")
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=on):
            yield
    finally:
        if on:
            torch.set_float32_matmul_precision(before)
