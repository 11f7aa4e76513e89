"""Sums over each client's rows on a GPU: in shares that many processors work on at once, then the shares together."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

_LEAST = 64  # rows of a part

Launch = Callable[[list[Tensor], int, int, int, int, int], None]
"""Sum into these (clients × parts × …), from a first row, by clients, parts, rows of a client, rows of a part."""


def alike(bounds: list[int]) -> bool:
    """Whether all clients have equally many rows."""
    return len({b - a for a, b in pairwise(bounds)}) == 1


def client_sums(
    bounds: list[int], shapes: list[tuple[int, ...]], device: torch.device, launch: Launch, most: int
) -> list[Tensor]:
    """Float32 sums (clients × shape) over rows between bounds, in ``most`` parts; clients that are alike together."""
    clients = len(bounds) - 1
    found = []
    for k, count in [(0, clients)] if alike(bounds) else [(k, 1) for k in range(clients)]:
        length = bounds[k + 1] - bounds[k]
        parts = max(1, min(-(-most // count), -(-length // _LEAST)))
        sums = [torch.empty(count, parts, *shape, dtype=torch.float32, device=device) for shape in shapes]
        launch(sums, bounds[k], count, parts, length, -(-length // parts))
        found.append([each.sum(1) for each in sums])
    return [torch.cat(each) for each in zip(*found, strict=True)]
