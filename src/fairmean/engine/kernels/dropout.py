"""Dropout on a GPU: the hash of every unit and its use in one pass over memory, forwards and backwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairmean.engine.kernels.derivatives import first_alone, second_wanted
from fairmean.models import Dropout


class FusedDropout(Dropout):
    """The same masks as ``Dropout``."""

    @staticmethod
    def like(layer: Dropout) -> FusedDropout:
        """The same layer."""
        return FusedDropout(layer.p, layer.salt, layer.whole).train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        plain = x.is_contiguous() and not self.whole and not second_wanted()
        if not self.training or not 0 < self.p < 1 or not plain or len(x) != len(self.rows):
            return super().forward(x)
        out: Tensor = _Masked.apply(x, self.rows + (self.key + self.salt), self.p)  # type: ignore[no-untyped-call]
        return out


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seeds: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(seeds)
        ctx.p = p
        return _apply(x, seeds, p)

    @staticmethod
    @first_alone
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (seeds,) = ctx.saved_tensors
        return _apply(gradient.contiguous(), seeds, ctx.p), None, None


def _apply(x: Tensor, seeds: Tensor, p: float) -> Tensor:
    from fairmean.engine.kernels.triton.dropout import masked

    out = torch.empty_like(x)
    scale = float(torch.ones((), dtype=x.dtype) / (1 - p))
    shape = {"UNITS": x[0].numel(), "LEAST": int(p * 2**32), "SCALE": scale}
    masked[(-(-x.numel() // 1024),)](x, seeds, out, x.numel(), **shape, BLOCK=1024)
    return out
