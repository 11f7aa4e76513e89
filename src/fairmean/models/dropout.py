"""Dropout whose masks follow from the run's seed, in place of torch's, which draws from the global generator."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch
from torch import Tensor, nn

from fairmean.randomness import hash32, hash32_


class Dropout(nn.Module):
    """Dropout whose mask is a hash of (key, row, unit): the same for a sample however the samples are batched.

    The engine sets ``rows`` (an identity per row) and ``key`` (a new one every step) before a forward pass. With
    ``whole`` set, whole channels are dropped, as ``nn.Dropout2d`` does.
    """

    rows: Tensor
    key: int | Tensor

    def __init__(self, p: float, salt: int, whole: bool = False) -> None:
        super().__init__()
        self.p, self.salt, self.whole = p, salt, whole

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.p >= 1:
            return torch.zeros_like(x)
        shape = x.shape[1:2] + (1,) * (x.dim() - 2) if self.whole else x.shape[1:]
        seeds = hash32(self.rows + self.key + self.salt).to(torch.int32)
        units = _known(prod(shape)) if x.device.type == "cpu" else _numbers(prod(shape), x.device)
        mixed = hash32_(seeds[:, None] + units)
        keep = mixed.bitwise_xor_(-(2**31)) >= int(self.p * 2**32) - 2**31  # signed numbers in the unsigned ones' order
        return x * keep.view(-1, *shape).to(x.dtype).div_(1 - self.p)


def _numbers(count: int, device: torch.device) -> Tensor:
    """A number for each unit of a row, of which the lower 32 bits count."""
    return (torch.arange(count, device=device) * 0x9E3779B1).to(torch.int32)


@lru_cache(maxsize=32)
def _known(count: int) -> Tensor:
    """The same on the CPU, made once; a GPU's could belong to the memory of a graph."""
    return _numbers(count, torch.device("cpu"))


def swap_dropout(model: nn.Module) -> None:
    """Replace torch's dropout modules, which draw from the global generator, by ours."""
    salt = 0
    for parent in list(model.modules()):
        for label, child in list(parent._modules.items()):
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                salt += 1
                seeded = Dropout(child.p, salt * 0x632BE5AB, not isinstance(child, nn.Dropout))
                seeded.training = child.training  # a part of the model may be kept in eval()
                setattr(parent, label, seeded)
