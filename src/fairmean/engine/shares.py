"""Sums over each client's rows on a GPU: in shares that many processors work on at once, then the shares together."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

_LEAST = 64

Launch = Callable[[list[Tensor], int, int, int, int, int], None]
"""Sum into these (clients × parts × …), from a first row, by clients, parts, rows of a client, rows of a part."""


def client_sums(
    bounds: list[int], shapes: list[tuple[int, ...]], device: torch.device, launch: Launch, most: int = 264
) -> list[Tensor]:
    """Float32 sums (clients × shape) over rows between bounds, in at most so many parts.

    Clients with equally many rows by one launch.
    """
    clients = len(bounds) - 1
    equal = len({b - a for a, b in pairwise(bounds)}) == 1
    found = []
    for k, count in [(0, clients)] if equal else [(k, 1) for k in range(clients)]:
        length = bounds[k + 1] - bounds[k]
        parts = max(1, min(-(-most // count), -(-length // _LEAST)))
        sums = [torch.empty(count, parts, *shape, dtype=torch.float32, device=device) for shape in shapes]
        launch(sums, bounds[k], count, parts, length, -(-length // parts))
        found.append([each.sum(1) for each in sums])
    return [torch.cat(each) for each in zip(*found, strict=True)]
