"""Paired differences, p-values and their correction, against known values."""

import itertools
import math

import numpy as np
import pytest

from fairmean.statistics import holm, p_value, paired, signed_ranks

# printed tables of Student's t: (degrees of freedom, t, two-sided p)
T_TABLE = [
    (1, 12.706, 0.05), (4, 2.776, 0.05), (9, 2.262, 0.05), (9, 3.250, 0.01), (9, 4.781, 0.001),
    (19, 2.093, 0.05), (19, 2.861, 0.01), (19, 3.883, 0.001), (30, 2.042, 0.05),
]  # fmt: skip


@pytest.mark.parametrize(("freedom", "t", "p"), T_TABLE)
def test_p_values(freedom, t, p):
    assert p_value(t, freedom) == pytest.approx(p, rel=2e-3)
    assert p_value(-t, freedom) == p_value(t, freedom)


def test_p_values_of_closed_forms():
    """One degree of freedom is Cauchy's distribution; two have p = 1 − t/√(2 + t²)."""
    for t in (0.0, 0.5, 3.0, 40.0):
        assert p_value(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, abs=1e-6)
        assert p_value(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-6)


def test_paired():
    """d = 1, 2, 3, 4, 5: mean 3, standard error √0.5, t = 4.2426 with 4 degrees of freedom, p = 0.01324."""
    d = paired([2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert d.mean == 3
    assert d.half == pytest.approx(2.776 * math.sqrt(0.5), rel=1e-3)
    assert d.p == pytest.approx(0.01324, rel=2e-3)
    assert d.positive == 5
    assert paired([1.0, 1.0], [1.0, 1.0]).p == 1
    assert paired([2.0, 2.0], [1.0, 1.0]).p == 0


def test_a_lost_draw_is_left_out():
    d = paired([1.0, math.nan, 3.0, 2.0], [0.0, 0.0, 0.0, 1.0])
    assert (d.n, d.lost, d.positive, d.negative) == (3, 1, 3, 0)
    assert paired([1.0, 1.0, 0.0], [0.0, math.nan, 0.0]).lost == 0
    assert paired([1.0, 1.0, 0.0], [0.0, 2.0, 0.0]).negative == 1  # a tie is neither
    assert d.mean == pytest.approx(5 / 3)


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([]) == []
    lost = holm([0.01, math.nan])
    assert lost[0] == 0.02
    assert math.isnan(lost[1])


@pytest.mark.parametrize("seed", range(4))
def test_signed_ranks_count_every_choice_of_signs(seed):
    """Against all 2^n signs, with ties and zeros."""
    d = np.round(np.random.default_rng(seed).normal(0.5, 1, 9), 1 if seed % 2 else 6)
    d[0] = 0.0 if seed == 3 else d[0]
    kept = d[d != 0]
    ranks = np.array([np.mean(np.flatnonzero(np.sort(abs(kept)) == size)) + 1 for size in abs(kept)])
    sums = np.array([ranks @ np.array(signs) for signs in itertools.product((0, 1), repeat=len(kept))])
    w = ranks[kept > 0].sum()
    expected = min(1.0, 2 * min((sums <= w + 1e-9).mean(), (sums >= w - 1e-9).mean()))
    assert signed_ranks(d) == pytest.approx(expected)
    assert paired(d, np.zeros(9)).ranks == pytest.approx(expected)
