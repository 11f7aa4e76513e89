"""Intervals, paired differences, p-values and their correction, against known values and without SciPy."""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paper import evidence_command

from fairmean.errors import UserError
from fairmean.experiments import statistics
from fairmean.experiments.statistics import holm, interval, p_value, paired, signed_ranks, t_quantile
from fairmean.experiments.study import Cell

# printed tables of Student's t: (degrees of freedom, t, two-sided p)
T_TABLE = [
    (1, 12.706, 0.05), (4, 2.776, 0.05), (9, 2.262, 0.05), (9, 3.250, 0.01), (9, 4.781, 0.001),
    (19, 2.093, 0.05), (19, 2.861, 0.01), (19, 3.883, 0.001), (30, 2.042, 0.05),
]  # fmt: skip


T95 = {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 10: 2.228, 30: 2.042, 100: 1.984}


@pytest.mark.parametrize(("freedom", "t"), T95.items())
def test_t_quantile(freedom, t):
    assert t_quantile(0.95, freedom) == pytest.approx(t, abs=1e-3)


@pytest.mark.parametrize(
    ("level", "freedom", "t"), [(0.99, 4, 4.604), (0.99, 30, 2.750), (0.9, 1, 6.314), (0.5, 1, 1.0)]
)
def test_t_quantile_of_other_levels(level, freedom, t):
    assert t_quantile(level, freedom) == pytest.approx(t, abs=1e-3)


@pytest.mark.parametrize(("freedom", "t", "p"), T_TABLE)
def test_p_values(freedom, t, p):
    assert p_value(t, freedom) == pytest.approx(p, rel=2e-3)
    assert p_value(-t, freedom) == p_value(t, freedom)


def test_p_values_of_closed_forms():
    """One degree of freedom is Cauchy's distribution; two have p = 1 − t/√(2 + t²)."""
    for t in (0.0, 0.5, 3.0, 40.0):
        assert p_value(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, abs=1e-6)
        assert p_value(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-6)
    assert p_value(math.inf, 3) == 0
    assert math.isnan(p_value(math.nan, 3))


@given(st.floats(0.01, 0.999), st.integers(1, 200))
def test_the_quantile_is_the_inverse_of_the_p_value(level, freedom):
    assert p_value(t_quantile(level, freedom), freedom) == pytest.approx(1 - level, rel=1e-6)


def test_interval():
    """Of 80, 82, 84: s = 2, t = 4.3027 with 2 degrees of freedom."""
    assert interval([80.0, 82.0, 84.0]) == pytest.approx((82.0, 4.30265 * 2 / math.sqrt(3), 3), rel=1e-5)
    assert interval([80.0, math.nan, 82.0, math.inf, 84.0]) == interval([80.0, 82.0, 84.0])
    assert interval([80.0, 82.0, 84.0], 0.5).half == pytest.approx(0.8165 * 2 / math.sqrt(3), rel=1e-4)
    assert interval([3.0, 3.0]) == (3.0, 0.0, 2)
    one, none = interval([5.0]), interval([math.nan])
    assert (one.mean, one.n, none.n) == (5.0, 1, 0)
    assert all(map(math.isnan, (one.half, none.mean, none.half)))


def test_there_is_one_interval():
    """A comparison's, and a paired difference's, are the same."""
    a, b = np.random.default_rng(1).normal(size=(2, 12))
    found = interval(a - b)
    d = paired(a, b)
    assert (d.mean, d.half, d.n) == found
    assert Cell({"average": a}).estimate("average", Cell({"average": b})) == found[:2]


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


def by_all_signs(d):
    """Wilcoxon's p-value from all 2^n signs."""
    kept = d[d != 0]
    ranks = np.array([np.mean(np.flatnonzero(np.sort(abs(kept)) == size)) + 1 for size in abs(kept)])
    sums = np.array([ranks @ np.array(signs) for signs in itertools.product((0, 1), repeat=len(kept))])
    w = ranks[kept > 0].sum()
    return min(1.0, 2 * min((sums <= w + 1e-9).mean(), (sums >= w - 1e-9).mean()))


@pytest.mark.parametrize("seed", range(4))
def test_signed_ranks_count_every_choice_of_signs(seed):
    """Against all 2^n signs, with ties and zeros."""
    d = np.round(np.random.default_rng(seed).normal(0.5, 1, 9), 1 if seed % 2 else 6)
    d[0] = 0.0 if seed == 3 else d[0]
    expected = by_all_signs(d)
    assert signed_ranks(d) == pytest.approx(expected)
    assert paired(d, np.zeros(9)).ranks == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
def test_signed_ranks_with_ties_are_exact(d):
    assert signed_ranks(d) == pytest.approx(by_all_signs(np.array(d, dtype=float)))
    assert signed_ranks([-x for x in d]) == pytest.approx(signed_ranks(d))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=8, unique=True), st.integers(0, 255))
def test_signed_ranks_without_ties_are_exact(sizes, signs):
    d = np.array([x if signs >> i & 1 else -x for i, x in enumerate(sizes)], dtype=float)
    assert signed_ranks(d) == pytest.approx(by_all_signs(d))


def test_both_counts_of_signed_ranks_agree_on_twenty_draws():
    d = np.random.default_rng(2).normal(0.4, 1, 20)
    ranks = np.argsort(np.argsort(abs(d))) + 1.0
    assert signed_ranks(d) == pytest.approx(statistics._tied(ranks, d > 0), rel=1e-12)


def test_signed_ranks_of_nothing_but_zeros():
    assert signed_ranks([0.0, 0.0]) == 1
    assert signed_ranks([]) == 1


@pytest.fixture
def without_scipy(monkeypatch):
    """As on a machine that does not have it."""
    remembered = (statistics.available, statistics.t_quantile, statistics._wilcoxon)
    for name in [name for name in sys.modules if name.split(".")[0] == "scipy"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()


@pytest.mark.usefixtures("without_scipy")
def test_without_scipy_there_are_means_and_no_intervals():
    assert not statistics.available()
    mean, half, n = interval([80.0, 82.0, 84.0])
    assert (mean, n) == (82.0, 3)
    d = paired([2.0, 4.0, 6.0, math.nan], [1.0, 5.0, 3.0, 0.0])
    assert (d.mean, d.positive, d.negative, d.n, d.lost) == (1.0, 2, 1, 3, 1)
    same = paired([2.0, 2.0], [1.0, 1.0])
    assert same.mean == 1
    mean, spread = Cell({"average": np.array([80.0, 84.0])}).estimate("average")
    assert mean == 82
    nothing = [half, spread, d.half, d.p, d.ranks, same.half, same.p, same.ranks]
    assert all(map(math.isnan, [*nothing, *holm([d.p, d.p]), signed_ranks([0.0]), p_value(1.0, 2)]))


@pytest.mark.usefixtures("without_scipy")
def test_without_scipy_no_page_of_evidence_is_written(tmp_path):
    with pytest.raises(UserError, match="SciPy is not installed"):
        evidence_command.publish(tmp_path, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_scipy_is_imported_when_used():
    """Not with the package; and an interval needs the special functions alone."""
    code = (
        "import sys, fairmean, fairmean.terminal.main, fairmean.experiments.statistics as s; assert s.available();"
        "assert not [m for m in sys.modules if m.split('.')[0] == 'scipy'];"
        "assert s.interval([1.0, 2.0]).half > 0; assert 'scipy.stats' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
