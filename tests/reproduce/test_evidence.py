"""The evidence: statistics against known values, verdicts, and the page from stored tables."""

import math

import numpy as np
import pytest

from fairmean.cli import main
from fairmean.reproduce import claims, command, evidence, page
from fairmean.reproduce.claims import Claim, Comparison, judge
from fairmean.reproduce.statistics import holm, p_value, paired

SEEDS = range(1001, 1006)


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
    assert (d.n, d.lost, d.positive) == (3, 1, 3)
    assert d.mean == pytest.approx(5 / 3)


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([]) == []
    lost = holm([0.01, math.nan])
    assert lost[0] == 0.02
    assert math.isnan(lost[1])


@pytest.mark.parametrize(
    ("shifts", "word"),
    [((3, 3), "holds"), ((3, 0.1), "leans"), ((3, -3), "fails"), ((3, -0.1), "open"), ((None, None), "untested")],
)
def test_verdicts(shifts, word):
    """Worst accuracy of x against y and z, with a spread of 1 over 20 draws."""
    base = np.random.default_rng(0).normal(70, 5, 20)
    noise = np.random.default_rng(1).normal(0, 1, (2, 20))
    noise -= noise.mean(1, keepdims=True)

    def values(method, attack, metric):
        if method == "x":
            return base
        shift = shifts["yz".index(method)]
        return None if shift is None else base - shift + noise["yz".index(method)]

    claim = Claim("C", "x is best", tuple(Comparison("x", y, "worst", "pairwise") for y in "yz"))
    assert judge([claim], values)[0].word == word


def test_lower_variance_is_better():
    assert Comparison("x", "y", "variance", "none").sign == -1


def records(methods, shift):
    rng = np.random.default_rng(0)
    noise = {(attack, seed): rng.normal(0, 2) for attack in evidence.ATTACKS for seed in SEEDS}
    return [
        {
            "method": method,
            "spec": evidence.TUNED["fashion-mnist"][method],
            "dtype": "float32",
            "attack": attack,
            "seed": seed,
            "status": "finished",
            "average": 80 + noise[attack, seed] + shift.get(method, 0) + rng.normal(0, 0.1),
            "variance": 40 + noise[attack, seed],
            "worst": 70 + noise[attack, seed] + 2 * shift.get(method, 0) + rng.normal(0, 0.1),
        }
        for method in methods
        for attack in evidence.ATTACKS
        for seed in SEEDS
    ]


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    rows = records(["mean", "fedavg", "fairmean", "qffl", "term-", "fairmean-split"], {"fairmean-split": 3, "qffl": -2})
    rows[0] |= {"status": "diverged", "average": math.nan, "variance": math.nan, "worst": math.nan}
    evidence.write(tmp_path / "results" / "evidence-fashion-mnist.csv.gz", rows)
    return tmp_path


def test_the_table_is_read_back(stored):
    file = stored / "results" / "evidence-fashion-mnist.csv.gz"
    found = evidence.read(file, "fashion-mnist")
    assert found.seeds == list(SEEDS)
    assert found.methods == ["mean", "fedavg", "fairmean", "qffl", "term-", "fairmean-split"]
    assert found.values("krum", "none", "worst") is None
    assert math.isnan(found.values("mean", "none", "worst")[0])
    before = file.read_bytes()
    evidence.write(file, found.records)
    assert file.read_bytes() == before


def test_the_page(stored, capsys):
    pytest.importorskip("matplotlib")
    (stored / "results" / "evidence.txt").write_text("One machine.\n")
    assert main(["reproduce", "evidence"]) == 0
    text = (stored / "docs" / "evidence.md").read_text()
    assert "5 draws, 6 methods" in text
    assert "One machine." in text
    assert "| S2 | Under pairwise and random_class, split beats Mean |" in text
    assert (stored / "docs" / "evidence" / "evidence-fashion-mnist.png").exists()
    split = next(line for line in text.splitlines() if line.startswith("| FairMean, split | 8"))
    assert "\\*" in split
    before = text
    assert main(["reproduce", "evidence"]) == 0
    assert (stored / "docs" / "evidence.md").read_text() == before


def test_the_map(stored):
    pytest.importorskip("matplotlib")
    rows = []
    for spec in (
        "mean:train.lr=0.4",
        *(f"fairmean-normalised:kappa={k}:tau={t}:train.lr=0.4" for k in (1, 4) for t in (1, 3)),
    ):
        for row in records(["mean"], {}):
            if row["attack"] in ("none", "pairwise"):
                rows.append(row | {"method": spec, "spec": spec, "worst": row["worst"] + ("kappa=4" in spec)})
    evidence.write(stored / "results" / "map-fashion-mnist.csv.gz", rows)
    assert main(["reproduce", "evidence"]) == 0
    assert "question Q3" in (stored / "docs" / "evidence.md").read_text()
    assert (stored / "docs" / "evidence" / "map-fashion-mnist.png").exists()


def test_a_draw_is_run_again(stored, monkeypatch, capsys):
    quick = {"data.name": "fashion-mnist-mini", "model.name": "linear", "train.rounds": 2, "train.device": "cpu"}
    monkeypatch.setitem(evidence.DTYPES, "mean", "float32")
    monkeypatch.setitem(evidence.DTYPES, "fairmean", "float32")
    rows = evidence.run("fashion-mnist", ["mean", "fairmean"], seeds=SEEDS, **quick)
    file = stored / "results" / "evidence-fashion-mnist.csv.gz"
    evidence.write(file, rows)
    assert {row["attack"] for row in rows} == set(evidence.ATTACKS)
    again = command.draw_again(stored / "results", "fashion-mnist", 1003, ["fairmean"], stored / "new", **quick)
    assert again < 1e-3
    assert "now | stored" in capsys.readouterr().out
    words = ["reproduce", "evidence", "--draw", "7", *(f"{key}={value}" for key, value in quick.items())]
    assert main(words) == 2
    assert "the stored draws are 1001 … 1005" in capsys.readouterr().err


def test_without_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "evidence"]) == 2
    assert "--tables" in capsys.readouterr().err


def test_the_claims_are_those_of_the_page_written_before():
    text = (page.Path(__file__).parent.parent.parent / "docs" / "claims.md").read_text()
    for claim in (*claims.CLAIMS, *claims.QUESTIONS):
        assert f"| {claim.name} |" in text
    assert len(claims.CLAIMS[1].comparisons) == 18
    assert all(c.plus == 2.5 for c in claims.CLAIMS[3].comparisons)
