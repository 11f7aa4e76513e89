"""Group normalisation of images on a GPU, with what follows it: ReLU(γ x̂ + β + shortcut).

The library's kernels want channels first and float32, so that in a network of channels-last convolutions every
normalisation copies its input twice, and ReLU and shortcut are passes over memory of their own. Here a program holds
some channels of an image in registers: forwards and backwards read what they need once and write once. A backward pass
has the gradients of γ and β for every single image, so those of clients are sums of its rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmean.engine.kernels.derivatives import first_alone, second_wanted
from fairmean.models.images import Block

_MOST = 2**14  # values that a program holds
_LEAST = 8  # channels that it has side by side in memory


class FusedNorm(nn.GroupNorm):
    """Normalisation, a shortcut that is added if there is one, and ReLU if asked for; by PyTorch where it must be.

    While ``capturing``, a backward pass keeps the gradients of γ and β for every image.
    """

    capturing = False
    kept: tuple[Tensor, Tensor] | None = None
    relu = False

    @staticmethod
    def like(layer: nn.GroupNorm, relu: bool = False) -> FusedNorm:
        """With the same parameters."""
        new = FusedNorm(layer.num_groups, layer.num_channels, layer.eps, device="meta")
        new.weight, new.bias, new.relu = layer.weight, layer.bias, relu
        return new

    @staticmethod
    def takes(layer: nn.GroupNorm) -> bool:
        """Whether its channels and groups are powers of two, and it has γ and β."""
        channels, group = layer.num_channels, layer.num_channels // layer.num_groups
        return layer.affine and channels >= _LEAST and _power(channels) and _power(group)

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        self.kept = None
        if self._block(x, shortcut):
            out: Tensor = _Norm.apply(x, shortcut, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
            return out
        value = F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        value = value if shortcut is None else value + shortcut
        return torch.relu(value) if self.relu else value

    def _block(self, x: Tensor, shortcut: Tensor | None) -> int:
        """How many channels a program takes; 0 where the kernels do not apply."""
        narrow = x.dim() == 4 and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        if not narrow or self.weight.dtype != torch.float32 or not x.numel() or second_wanted():
            return 0
        if not all(t.is_contiguous(memory_format=torch.channels_last) for t in (x, *_some(shortcut))):
            return 0
        if shortcut is not None and (shortcut.shape != x.shape or shortcut.dtype != x.dtype):
            return 0
        return self.channels(x.shape[2] * x.shape[3])

    def channels(self, places: int) -> int:
        """How many channels of an image with so many places a program takes; 0: the image is too large."""
        group = self.num_channels // self.num_groups
        block = min(self.num_channels, max(group, _MOST // _up(places)))
        return block if block >= _LEAST and block * _up(places) <= 2 * _MOST else 0


class FusedBlock(nn.Module):
    """A residual block whose normalisations do what follows them."""

    @staticmethod
    def like(block: Block) -> FusedBlock | None:
        """The same block; None where its normalisations are no such ones."""
        norms = block.first_norm, block.second_norm
        if not all(type(norm) is nn.GroupNorm and FusedNorm.takes(norm) for norm in norms):
            return None
        new = FusedBlock()
        for name, child in block.named_children():
            setattr(new, name, FusedNorm.like(child, relu=True) if isinstance(child, nn.GroupNorm) else child)
        return new

    def forward(self, x: Tensor) -> Tensor:
        parts: Any = self
        inner = parts.first_norm(parts.first(x))
        out: Tensor = parts.second_norm(parts.second(inner), parts.shortcut(x))
        return out


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, layer: FusedNorm) -> Tensor:
        from fairmean.engine.kernels.triton.norm import norm_forward

        out = torch.empty_like(x)
        shape, grid, warps = _launch(layer, x, shortcut)
        mean, scale = gamma.new_empty(2, len(x), layer.num_groups).unbind()
        more = x if shortcut is None else shortcut
        norm_forward[grid](
            x, more, gamma, beta, out, mean, scale, x.shape[2] * x.shape[3], layer.eps, **shape, num_warps=warps
        )  # fmt: skip
        ctx.save_for_backward(x, *([out] if shape["ADD"] and shape["RELU"] else [x]), gamma, beta, mean, scale)
        ctx.layer, ctx.with_shortcut = layer, shortcut is not None
        return out

    @staticmethod
    @first_alone
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, None]:
        from fairmean.engine.kernels.triton.norm import norm_backward

        x, out, gamma, beta, mean, scale = ctx.saved_tensors
        delta = delta.contiguous(memory_format=torch.channels_last)
        of_x, of_more = torch.empty_like(x), torch.empty_like(x) if ctx.with_shortcut else None
        shape, grid, warps = _launch(ctx.layer, x, of_more)
        of_gamma, of_beta = gamma.new_empty(2, *x.shape[:2]).unbind()
        norm_backward[grid](
            delta, x, out, gamma, beta, mean, scale, of_x, of_x if of_more is None else of_more, of_gamma, of_beta,
            x.shape[2] * x.shape[3], **shape, num_warps=2 * warps,
        )  # fmt: skip
        if ctx.layer.capturing:
            ctx.layer.kept = of_gamma, of_beta
            return of_x, of_more, None, None, None
        return of_x, of_more, of_gamma.sum(0), of_beta.sum(0), None


def _launch(layer: FusedNorm, x: Tensor, shortcut: Tensor | None) -> tuple[dict[str, Any], tuple[int], int]:
    """What is known of a kernel's shapes, how many programs there are, and the warps of each."""
    places, channels = x.shape[2] * x.shape[3], layer.num_channels
    block, around = layer.channels(places), _up(places)
    shape = {"C": channels, "G": channels // layer.num_groups, "B": block, "P": around}
    warps = max(1, min(8, block * around // 1024))
    return (
        {**shape, "ADD": shortcut is not None, "RELU": layer.relu},
        (len(x) * (channels // block),),
        warps,
    )


def _some(tensor: Tensor | None) -> list[Tensor]:
    return [] if tensor is None else [tensor]


def _power(number: int) -> bool:
    return number & (number - 1) == 0


def _up(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()
