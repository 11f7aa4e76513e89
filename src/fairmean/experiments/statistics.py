"""Means with their confidence intervals, paired differences and p-values: Student's t, signed ranks, Holm's correction.

The distributions are SciPy's, imported when first used. Where SciPy is not installed there are means and counts, and
NaN for every interval and p-value.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MISSING = "no intervals: SciPy is not installed (pip install scipy)"


class Estimate(NamedTuple):
    """A mean over ``n`` finite values; ``half`` is half the width of its confidence interval, NaN if there is none."""

    mean: float
    half: float
    n: int


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


@functools.cache
def available() -> bool:
    """Whether SciPy can be imported; it is looked for, not imported."""
    return importlib.util.find_spec("scipy") is not None


@functools.cache
def t_quantile(level: float, freedom: int) -> float:
    """t with P(|T| ≤ t) = level for Student's T, that is P(T ≤ t) = (1 + level)/2.

    >>> round(t_quantile(0.95, 9), 3)
    2.262
    """
    if not available():
        return math.nan
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def p_value(t: float, freedom: int) -> float:
    """P(|T| > |t|) = 2 P(T ≤ −|t|) for Student's T.

    >>> round(p_value(2.262, 9), 4)
    0.05
    """
    if not available():
        return math.nan
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -abs(t)))


def interval(values: Sequence[float] | Array, level: float = 0.95) -> Estimate:
    """x̄ ± t s/√n over the finite values: s² = Σ(x − x̄)²/(n − 1), t of n − 1 degrees of freedom."""
    kept = _finite(values)
    n = len(kept)
    mean = float(kept.mean()) if n else math.nan
    half = t_quantile(level, n - 1) * _error(kept) if n > 1 else math.nan
    return Estimate(mean, half, n)


def paired(a: Sequence[float] | Array, b: Sequence[float] | Array, plus: float = 0.0) -> Difference:
    """a − b + plus, draw by draw: mean, half-width of its 95 % confidence interval, two-sided p-values."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    kept = _finite(first - second + plus)
    mean, half, n = interval(kept)
    p, ranks = (_p_of_mean(kept), signed_ranks(kept)) if n > 1 else (math.nan, math.nan)
    lost = int((~np.isfinite(first) & np.isfinite(second)).sum())
    return Difference(mean, half, p, ranks, int((kept > 0).sum()), int((kept < 0).sum()), n, lost)


def signed_ranks(d: Sequence[float] | Array) -> float:
    """Wilcoxon's two-sided p-value, exact: 2 min(P(W ≤ w), P(W ≥ w)) over all 2^n signs, differences of 0 left out.

    SciPy counts them where no two sizes are the same. With ties its count is not exact, and its permutations take
    minutes for 20 differences; ``_tied`` counts them then.

    >>> signed_ranks([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0625
    """
    kept = _finite(d)
    return _wilcoxon(tuple(kept[kept != 0].tolist())) if available() else math.nan


@functools.lru_cache(maxsize=4096)
def _wilcoxon(d: tuple[float, ...]) -> float:
    """Remembered, since a page asks for the same difference in several tables and SciPy takes a millisecond."""
    from scipy.stats import rankdata, wilcoxon

    if not d:
        return 1.0
    size = np.abs(d)
    if len(np.unique(size)) < len(d):
        return _tied(rankdata(size), np.array(d) > 0)
    return float(wilcoxon(d, method="exact").pvalue)


def _tied(ranks: Array, positive: NDArray[np.bool_]) -> float:
    """The same of mean ranks: one rank r after the other, the ways to reach a sum s become N(s) + N(s − r)."""
    doubled = (2 * ranks).astype(np.int64)  # mean ranks are halves
    ways = np.zeros(int(doubled.sum()) + 1)
    ways[0] = 1.0
    for rank in doubled:
        ways[rank:] += ways[:-rank].copy()
    ways /= ways.sum()
    w = int(doubled[positive].sum())
    return float(min(1.0, 2 * min(ways[: w + 1].sum(), ways[w:].sum())))


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p-values: with m comparisons, the k-th smallest is multiplied by m − k + 1, never falling.

    SciPy corrects for the rate of false discoveries (Benjamini and Hochberg), not by Holm.

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


def _finite(values: Sequence[float] | Array) -> Array:
    given: Array = np.asarray(values, dtype=np.float64)
    return given[np.isfinite(given)]


def _error(kept: Array) -> float:
    """s/√n, the standard error of the mean."""
    return float(kept.std(ddof=1)) / math.sqrt(len(kept))


def _p_of_mean(kept: Array) -> float:
    """Of t = x̄ √n/s; where all values are the same, 0 or, if they are 0, 1."""
    mean, error = float(kept.mean()), _error(kept)
    if error > 0:
        return p_value(mean / error, len(kept) - 1)
    return (1.0 if mean == 0 else 0.0) if available() else math.nan
