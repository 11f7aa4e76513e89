"""Paired differences over draws: intervals, p-values, and their correction for many comparisons."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairmean.study import t_quantile

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """Of two methods over the same draws; a draw for which one of them has no figure is left out.

    ``p`` is of the t-test, ``ranks`` of the signed-rank test. ``positive`` and ``negative`` count draws by the sign of
    the difference; ``lost`` those of the first method that are missing although the second has them.
    """

    mean: float
    half: float
    p: float
    ranks: float
    positive: int
    negative: int
    n: int
    lost: int


def p_value(t: float, freedom: int) -> float:
    """P(|T| > t) for Student's T, T = √ν tan θ where θ has density ∝ cos^{ν−1} θ; summed from the tail.

    >>> round(p_value(2.262, 9), 4)
    0.05
    """
    if math.isnan(t):
        return math.nan
    return float(np.interp(math.atan(abs(t) / math.sqrt(freedom)), *_tail(freedom)))


@functools.cache
def _tail(freedom: int) -> tuple[Array, Array]:
    """θ, and the mass beyond it."""
    edges = np.linspace(0, math.pi / 2, 200_001)
    middle = (edges[:-1] + edges[1:]) / 2
    mass = np.cos(middle) ** (freedom - 1)
    tail = np.append(np.cumsum(mass[::-1])[::-1], 0.0)
    return edges, tail / tail[0]


def paired(a: Sequence[float] | Array, b: Sequence[float] | Array, plus: float = 0.0) -> Difference:
    """a − b + plus, draw by draw: mean, half-width of its 95 % confidence interval, two-sided p-value."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    d = first - second + plus
    kept = d[np.isfinite(d)]
    n, lost = len(kept), int((~np.isfinite(first) & np.isfinite(second)).sum())
    signs = (int((kept > 0).sum()), int((kept < 0).sum()))
    if n < 2:
        return Difference(float(kept.mean()) if n else math.nan, math.nan, math.nan, math.nan, *signs, n, lost)
    error = float(kept.std(ddof=1)) / math.sqrt(n)
    mean = float(kept.mean())
    if error == 0:
        return Difference(mean, 0.0, 1.0 if mean == 0 else 0.0, signed_ranks(kept), *signs, n, lost)
    half, p = t_quantile(0.95, n - 1) * error, p_value(mean / error, n - 1)
    return Difference(mean, half, p, signed_ranks(kept), *signs, n, lost)


def signed_ranks(d: Sequence[float] | Array) -> float:
    """Wilcoxon's two-sided p-value: how many of all signs give a rank sum as far from the middle; exact, with ties.

    >>> signed_ranks([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0625
    """
    signed: Array = np.asarray(d, dtype=np.float64)
    signed = signed[signed != 0]
    size = np.abs(signed)
    below, upto = (size[None] < size[:, None]).sum(1), (size[None] <= size[:, None]).sum(1)
    ranks = below + upto + 1  # twice the mean rank
    ways = np.zeros(int(ranks.sum()) + 1)
    ways[0] = 1.0
    for rank in ranks:
        ways[rank:] += ways[:-rank].copy()
    ways /= ways.sum()
    w = int(ranks[signed > 0].sum())
    return float(min(1.0, 2 * min(ways[: w + 1].sum(), ways[w:].sum())))


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p-values: with m comparisons, the k-th smallest is multiplied by m − k + 1, never falling.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p)), key=lambda i: (math.isnan(p[i]), p[i]))
    adjusted, largest = [math.nan] * len(p), 0.0
    for rank, i in enumerate(order):
        if math.isnan(p[i]):
            continue
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = largest
    return adjusted
