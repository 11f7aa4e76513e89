"""A mixture of two Gaussians, by expectation and maximisation; the same numbers always give the same answer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

FLOOR = 1e-3


def two_gaussians(x: Tensor, iterations: int = 200) -> Tensor:
    """The chance of every row of x (n×k) to be of the component with the larger sum of means.

    Components have their own shares, means and variances by column, none below 0.001. They start from the halves of the
    rows with the smaller and the larger sums. All chances are 0 if the rows are equal.
    """
    x = x.double()
    total = x.sum(1)
    if len(x) < 2 or not (x != x[0]).any():
        return torch.zeros(len(x), dtype=torch.float64, device=x.device)
    low, high = total.min(), total.max()
    upper = (total > (low + high) / 2).double() if high > low else (x[:, 0] > x[:, 0].mean()).double()
    chances = torch.stack([1 - upper, upper])
    for _ in range(iterations):
        counts = chances.sum(1).clamp(min=1e-12)
        means = chances @ x / counts[:, None]
        spread = torch.stack([(c[:, None] * (x - m) ** 2).sum(0) for c, m in zip(chances, means, strict=True)])
        variances = spread / counts[:, None] + FLOOR
        density = torch.stack(
            [
                math.log(1e-300 + float(count) / len(x)) - 0.5 * ((x - m) ** 2 / v + v.log()).sum(1)
                for count, m, v in zip(counts, means, variances, strict=True)
            ]
        )
        new = density.softmax(0)
        done = bool((new - chances).abs().max() < 1e-9)
        chances = new
        if done:
            break
    larger = int((chances @ x / chances.sum(1).clamp(min=1e-12)[:, None]).sum(1).argmax())
    return chances[larger]
