"""The evidence: verdicts, and the page from stored tables."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from fairmean.errors import UserError
from fairmean.experiments.building import build_simulator
from fairmean.experiments.statistics import paired
from fairmean.experiments.study import plan
from fairmean.terminal.main import main
from paper import claims, compared, evidence, evidence_command, page, tuning, verb, words
from paper.claims import Claim, Comparison, judge

ROOT = Path(__file__).parent.parent.parent

SEEDS = range(1001, 1006)
ADVICE = (
    "On Fashion-MNIST its worst client was {fashion-mnist: adafed > mean, worst, none} points better than that of",
    "a little worse than `mean`: by {fashion-mnist: mean > fairmean, average, pairwise} points on average",
    "its worst client was {fashion-mnist: adafed < mean, worst, pairwise} points below that of",
    "from {fashion-mnist: mean, variance, none} to {fashion-mnist: fairmean-equal, variance, none} %²",
    "cost the worst client {fashion-mnist: h-nobs < mean, worst, none} and "
    "{fashion-mnist: multi-krum < mean, worst, none} points",
    "Its average minus Mean's is {cifar10: fairmean-split ± mean, average, random} points.",
)
"""Figures in the running text of docs/which-method.md."""


@pytest.mark.parametrize(
    ("shifts", "word"),
    [
        ((3, 3), "holds"),
        ((3, 0.1), "leans"),
        ((3, -3), "fails"),
        ((3, -0.1), "open"),
        ((3, None), "incomplete"),
        ((-3, None), "fails"),
    ],
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


def test_a_method_that_diverges_cannot_win_by_it():
    """Better in six draws, diverged in the other fourteen."""
    base = np.linspace(30, 50, 20)
    mine = np.where(np.arange(20) < 6, base - 3 + 0.1 * np.sin(np.arange(20)), math.nan)
    claim = Claim("C", "x is fairer", (Comparison("x", "y", "variance", "none"),))
    verdict = judge([claim], lambda method, *_: mine if method == "x" else base)[0]
    assert verdict.outcomes[0].significant
    assert verdict.word == "open"
    rows = records(["mean", "fairmean"], {"fairmean": 5})
    for row in rows:
        if row["method"] == "fairmean" and row["seed"] < 1004:
            row |= {"status": "diverged", **dict.fromkeys(evidence.METRICS, math.nan)}
    found = evidence.Evidence("fashion-mnist", rows)
    assert found.values("fairmean", "none", "worst")[:3].tolist() == [0, 0, 0]
    assert np.isnan(found.values("fairmean", "none", "variance")[:3]).all()
    assert "(2 of 5 draws)" in page.absolute(found.values("fairmean", "none", "variance"))
    assert "3 lost" in page.relative(paired(found.values("fairmean", "none", "variance"), np.zeros(5)), 1.0)


def test_a_comparison_of_two_claims_is_corrected_once():
    base = np.random.default_rng(0).normal(70, 5, 20)
    same = Comparison("x", "y", "worst", "pairwise")
    claims = [Claim("A", "", (same,)), Claim("B", "", (same,))]
    one, two = judge(claims, lambda method, *_: base + (method == "x") + np.cos(np.arange(20)) * (method == "x"))
    assert one.outcomes[0].p == two.outcomes[0].p == pytest.approx(one.outcomes[0].difference.p)


def test_a_comparison_that_was_not_run_counts_in_the_correction():
    claim = Claim("A", "", (Comparison("x", "y", "worst", "none"), Comparison("x", "z", "worst", "none")))
    rng = np.random.default_rng(1)
    known = {"x": rng.normal(1, 1, 8), "y": rng.normal(0, 1, 8)}
    (verdict,) = claims.judge([claim], lambda method, attack, metric: known.get(method))
    (outcome,) = verdict.outcomes
    assert outcome.p == pytest.approx(min(1.0, 2 * outcome.difference.p))
    assert verdict.word == "incomplete"


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
            "rounds": "2",
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
def stored(here, tmp_path, monkeypatch):
    monkeypatch.setattr(verb, "CHECKOUT", tmp_path)
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
    assert found.values("mean", "none", "worst")[0] == 0
    assert math.isnan(found.values("mean", "none", "variance")[0])
    before = file.read_bytes()
    evidence.write(file, found.records)
    assert file.read_bytes() == before


def test_the_page(stored, capsys):
    pytest.importorskip("matplotlib")
    (stored / "results" / "evidence.txt").write_text("One machine.\n")
    assert main(["reproduce", "evidence"]) == 0
    text = (stored / "docs" / "evidence.md").read_text()
    assert "5 draws, 6 rows" in text
    assert "One machine." in text
    assert "| S2 | Under pairwise and random_class, split beats Mean |" in text
    assert (stored / "docs" / "evidence" / "evidence-fashion-mnist.png").exists()
    split = next(line for line in text.splitlines() if line.startswith("| FairMean, split | 8"))
    assert "\\*" in split
    before = text
    drawn = {file.name: file.read_bytes() for file in (stored / "docs" / "evidence").iterdir()}
    readme, which = stored / "README.md", stored / "docs" / "which-method.md"
    which.write_text("Above.\n<!-- evidence -->\nold\n<!-- /evidence -->\nBelow.\n")
    readme.write_text("Over.\n<!-- results -->\nold\n<!-- /results -->\nUnder.\n")
    assert main(["reproduce", "evidence"]) == 0
    assert (stored / "docs" / "evidence.md").read_text() == before
    assert {file.name: file.read_bytes() for file in (stored / "docs" / "evidence").iterdir()} == drawn
    top, *few, bottom = readme.read_text().splitlines()
    assert (top, bottom) == ("Over.", "Under.")
    heads = "Fashion-MNIST, no attack: average | worst | Fashion-MNIST, under pairwise: average | worst"
    assert few[1] == f"| method | {heads} |"
    assert [row.split(" | ")[0] for row in few[3:-1]] == ["| `mean`", "| `fairmean`", "| `fairmean-split`"]
    assert few[5].count("**") == 2 * 4  # the best of each column
    assert [cell.endswith("↑") for cell in few[5].split(" | ")[1:]] == [False, False, True, False]
    assert few[5].endswith("** ↑ |")  # without attack one draw of mean diverged, which hides the difference
    assert "old" not in few
    top, *table, bottom = which.read_text().splitlines()
    assert (top, bottom) == ("Above.", "Below.")
    assert table[1] == "| Fashion-MNIST, 5 draws | " + table[1].partition(" | ")[2]
    split = next(row for row in table if row.startswith("| FairMean, split"))
    assert split.count("↑") > 4
    assert "old" not in table


def test_words_say_what_the_tables_say(stored):
    found = [evidence.read(stored / "results" / "evidence-fashion-mnist.csv.gz", "fashion-mnist")]
    split, mean = (found[0].values(m, "pairwise", "worst") for m in ("fairmean-split", "mean"))
    apart = f"{(split - mean).mean():.1f}"
    text = "{fashion-mnist: fairmean-split - mean, worst, pairwise}, "
    text += "{fashion-mnist: mean < fairmean-split, worst, pairwise}"
    with pytest.raises(UserError, match="is not so: −6"):
        words.fill(text.replace("mean <", "mean >"), found)
    with pytest.raises(UserError, match="is not so"):
        words.fill(text.replace(" - ", " ~ "), found)
    with pytest.raises(UserError, match="was not run"):
        words.fill(text.replace("split - mean", "split - krum"), found)
    with pytest.raises(UserError, match="'fashion-mnist: P99' names no claim"):
        words.fill("{fashion-mnist: P99}", found)
    assert words.fill(text.replace("mean <", "qffl <"), found).startswith(f"+{apart}, 10.")
    assert words.fill(text, found) == f"+{apart}, {apart}"
    assert (
        words.fill("{fashion-mnist: mean, worst, pairwise}: {fashion-mnist: S2}", found) == f"{mean.mean():.1f}: open"
    )
    assert words.fill("{fashion-mnist: fairmean ~ fedavg, worst, random}", found).partition(" ± ")[2]
    with pytest.raises(UserError, match="is not so"):  # without its interval, a difference must be one
        words.fill("{fashion-mnist: fairmean - fedavg, worst, random}", found)
    assert words.fill(text.replace(" - ", " ± "), found).startswith(f"+{apart} ± ")
    one, draw = split[2] - mean[2], found[0].seeds[2]
    assert words.fill(f"{{fashion-mnist: mean < fairmean-split, worst, pairwise @ {draw}}}", found) == f"{one:.1f}"
    assert words.fill(f"{{fashion-mnist: mean, worst, pairwise @ {draw}}}", found) == f"{mean[2]:.1f}"
    with pytest.raises(UserError, match="is not so"):
        words.fill(f"{{fashion-mnist: mean > fairmean-split, worst, pairwise @ {draw}}}", found)
    with pytest.raises(UserError, match="is not so"):  # one draw has no interval
        words.fill(f"{{fashion-mnist: mean ± fairmean-split, worst, pairwise @ {draw}}}", found)
    with pytest.raises(UserError, match="was not run"):
        words.fill("{fashion-mnist: mean, worst, pairwise @ 99}", found)
    assert words.fill("{fashion-mnist: S2 significant}", found).endswith(" of 6")


def test_stars_count_methods_that_are_still_to_come(stored):
    """Six of 28 rows are there: the smallest p-value is multiplied by all 27 × 4 × 3 comparisons."""
    found = evidence.read(stored / "results" / "evidence-fashion-mnist.csv.gz", "fashion-mnist")
    assert compared.family(found) == 27 * 4 * 3
    assert len(compared.differences(found, "mean")) == 5 * 4 * 3
    for (method, attack, metric), (d, p) in compared.differences(found, "mean").items():
        assert d == paired(found.values(method, attack, metric), found.values("mean", attack, metric))
        assert p >= d.p or math.isnan(d.p)
    smallest = min(compared.differences(found, "mean").values(), key=lambda pair: pair[0].p)
    assert smallest[1] == pytest.approx(min(1.0, 324 * smallest[0].p))


def test_unusual_draws_are_named(stored):
    file = stored / "results" / "evidence-fashion-mnist.csv.gz"
    rows = evidence.read(file, "fashion-mnist").records
    for row in rows:
        row |= {"status": "finished", "worst": 70.0}
    evidence.write(file, rows)
    assert list(page.unusual(evidence.read(file, "fashion-mnist"))) == []
    next(r for r in rows if (r["method"], r["attack"], r["seed"]) == ("qffl", "random", 1003))["worst"] = 49.0
    next(r for r in rows if (r["method"], r["attack"], r["seed"]) == ("mean", "none", 1003))["worst"] = 51.0
    evidence.write(file, rows)
    assert list(page.unusual(evidence.read(file, "fashion-mnist"))) == ["- draw 1003, under random: q-FFL 49.0 (70.0)"]


def test_settings_say_how_they_were_chosen(stored, monkeypatch):
    found = evidence.read(stored / "results" / "evidence-fashion-mnist.csv.gz", "fashion-mnist")
    spec = evidence.TUNED["fashion-mnist"]["qffl"]
    monkeypatch.setitem(tuning.TUNING["fashion-mnist"], "qffl", {"q": [0.1, 0.5], "train.lr": [0.2, 0.4, 0.8]})
    tuned = [
        {"method": "qffl", "spec": spec, "average": 80.0, "worst": 70.0},
        {"method": "qffl", "spec": spec, "average": 82.0, "worst": 70.0},
        {"method": "qffl", "spec": "qffl:q=0.5:train.lr=0.2", "average": 80.0, "worst": 68.0},
    ]
    rows = list(page.settings(found, tuned))
    assert "| q-FFL | q=0.1†, lr=0.4 | 2 | float32 | 2 | 75.50 | 74.00 |" in rows
    assert any(row.startswith("| FairMean, split | lr=0.4, kappa=16.0, tau=1.0, beta=1.0 |") for row in rows)


BEGUN = {"cifar10": {"rfa": 7, "multi-krum": 7, "centered-clipping": 7}}
"""Rows that have fewer draws than the others; the page says so."""


def test_rows_with_fewer_draws_say_so_and_are_never_the_best():
    rows = [
        row for row in records(["mean", "fairmean", "rfa"], {"rfa": 9}) if row["method"] != "rfa" or row["seed"] < 1004
    ]
    found = evidence.Evidence("fashion-mnist", rows)
    assert found.not_run("rfa", "none") == 2
    assert found.not_run("mean", "none") == 0
    short = next(line for line in page.headline(found).splitlines() if "rfa" in line)
    assert "(3 draws)" in short
    assert "**" not in short
    assert "**" in page.headline(found)
    whole = "\n".join(page.table(found, "none"))
    assert "(3 of 5 draws)" in whole
    assert "(3 draws)" in whole
    assert "lost" not in whole
    for row in rows:
        if (row["method"], row["seed"]) == ("rfa", 1001):
            row |= {"status": "diverged", "variance": math.nan}
    assert "(2 draws, 1 lost)" in "\n".join(page.table(evidence.Evidence("fashion-mnist", rows), "none"))


def test_the_docs_are_what_the_stored_tables_say():
    readme, which = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/which-method.md"))
    stored = found, *_ = evidence_command.stored(ROOT / "results")
    assert (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8") == page.page(*stored, "evidence")
    assert f"<!-- evidence -->\n{evidence_command.short_tables(found)}<!-- /evidence -->" in which
    assert f"<!-- results -->\n{page.few(found)}<!-- /results -->" in readme
    for one in found:
        assert {row["spec"] for row in one.records} <= set(evidence.specs(one.dataset).values())
        assert {row["dtype"] for row in one.records} <= {"bfloat16", "tf32"}
        whole, begun = len(evidence.DRAWS[one.dataset]), BEGUN.get(one.dataset, {})
        counts = Counter((row["method"], row["attack"]) for row in one.records)
        assert counts == {(method, attack): begun.get(method, whole) for method, attack in counts}
    prose = " ".join(which.split())
    for sentence in ADVICE:
        assert words.fill(sentence, found) in prose
    cifar10 = next(one for one in found if one.dataset == "cifar10")
    _, in_table = compared.differences(cifar10, "mean")["fairmean-split", "random", "average"]
    (claim,) = (verdict for verdict in compared.verdicts(cifar10) if verdict.claim.name == "S3")
    (in_claims,) = (o.p for o in claim.outcomes if o.comparison.metric == "average")
    assert in_claims < 0.05 < in_table
    assert f"(p = {in_claims:.3f}), but not among all comparisons of the table (p = {in_table:.3f})" in prose
    for one in found:
        assert f"{compared.family(one)} on {page.TITLES[one.dataset]}" in prose


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


def test_a_draw_is_run_again(stored, own, monkeypatch, capsys):
    quick = {"data.name": own, "model.name": "linear", "train.rounds": 2, "train.device": "cpu"}
    monkeypatch.setattr(evidence, "precision", lambda method, dataset: "float32")
    monkeypatch.setitem(evidence.TRUST, "fashion-mnist", 50)
    rows = evidence.run("fashion-mnist", ["mean", "fairmean"], seeds=SEEDS, **quick)
    file = stored / "results" / "evidence-fashion-mnist.csv.gz"
    evidence.write(file, rows)
    assert {row["attack"] for row in rows} == set(evidence.ATTACKS)
    where = stored / "results", "fashion-mnist", 1003
    said: list[str] = []
    some = ["mean", "fairmean"], ["pairwise"], stored / "new"
    assert evidence_command.draw_again(*where, *some, quick, say=said.append) < 1e-3
    assert said[0].count("pairwise") == 2
    assert "none" not in said[0]
    where = *where, ["fairmean"], None, stored / "new"
    assert evidence_command.draw_again(*where, quick) < 1e-3
    assert "now | stored" in capsys.readouterr().out
    for row in rows:
        if row["seed"] == 1003 and row["attack"] == "none":
            row["status"] = "diverged"
    evidence.write(file, rows)
    assert math.isnan(evidence_command.draw_again(*where, quick))
    assert "ended otherwise" in capsys.readouterr().out
    words = ["reproduce", "evidence", "--draw", "7", *(f"{key}={value}" for key, value in quick.items())]
    assert main(words) == 2
    assert "the stored draws are 1001 … 1005" in capsys.readouterr().err
    assert main([*words, "--attacks", "pairwize"]) == 2
    assert main([*words[:3], "1003", *words[4:], "--attacks", "pairwize"]) == 2
    assert "pairwize" in capsys.readouterr().err
    file.unlink()
    assert main(words) == 2
    assert "no such table" in capsys.readouterr().err


def test_without_tables(here, capsys, monkeypatch):
    monkeypatch.setattr(verb, "CHECKOUT", here)
    assert main(["reproduce", "evidence"]) == 2
    assert "--tables" in capsys.readouterr().err


def test_the_claims_are_those_of_the_page_written_before():
    text = (ROOT / "docs" / "claims.md").read_text()
    for claim in (*claims.CLAIMS, *claims.QUESTIONS):
        assert f"| {claim.name} |" in text
    six = {"fedavg", "qffl", "adafed", "fedmgda+", "h-nobs", "qffl+cwtm"}
    three, four = {"random", "random_class", "pairwise"}, {"none", "random", "random_class", "pairwise"}
    every = {"average", "variance", "worst"}
    expected = {
        "P1": ("fairmean", {"mean", "fedavg"}, {"variance", "worst"}, {"none"}, 0),
        "P2": ("fairmean", six, {"variance"}, three, 0),
        "P3": ("fairmean", six, {"worst"}, three, 0),
        "P4": ("fairmean", six, {"average"}, four, 2.5),
        "P5": ("fairmean", {"qffl", "term+"}, {"worst"}, three, 0),
        "P6": ("fairmean", {"h-nobs", "qffl+cwtm"}, {"worst"}, three, 0),
        "P7": ("mean", {"median", "cwtm", "krum", "rfa", "faba"}, {"average"}, three, 0),
        "P8": ("fairmean", {"qffl"}, {"variance", "worst"}, {"pairwise, δ = 0.3"}, 0),
        "S1": ("fairmean-split", {"mean"}, {"variance", "worst"}, {"none"}, 0),
        "S2": ("fairmean-split", {"mean"}, every, {"pairwise", "random_class"}, 0),
        "S3": ("fairmean-split", {"mean"}, every, {"random"}, 0),
        "S5": ("fairmean-split", {"fairmean"}, every, three, 0),
        "Q1": ("fairmean-equal", {"mean"}, every, four, 0),
        "Q2": ("fairmean", {"mean"}, every, four, 0),
    }
    for claim in (*claims.CLAIMS, *claims.QUESTIONS):
        got = {(c.x, c.y, c.metric, c.attack, c.plus) for c in claim.comparisons}
        if claim.name == "S4":
            wanted = {("fairmean-split", "term-", "worst", a, 0) for a in three}
            wanted.add(("fairmean-split", "term-", "variance", "none", 0))
        else:
            x, ys, metrics, attacks, plus = expected[claim.name]
            wanted = {(x, y, m, a, plus) for y in ys for m in metrics for a in attacks}
        assert got == wanted, claim.name


def test_precision_seeds_and_steps_are_as_registered():
    wide = {"cwtm", "median", "qffl+cwtm"}
    for method in (*tuning.TUNING["fashion-mnist"], "fairmean-equal"):
        assert tuning.precision(method, "fashion-mnist") == ("tf32" if method in wide else "bfloat16")
        assert tuning.precision(method, "cifar10") == "bfloat16"
    assert list(evidence.DRAWS["fashion-mnist"]) == list(range(1001, 1021))
    assert list(evidence.DRAWS["cifar10"]) == list(range(1001, 1011))
    assert not {*tuning.DRAWS["fashion-mnist"], *tuning.DRAWS["cifar10"]} & set(range(1001, 1021))
    for dataset in evidence.TUNED:
        specs = evidence.specs(dataset)
        lr = specs["mean"].rpartition("train.lr=")[2]
        assert specs["fairmean-equal"].endswith(f"train.lr={lr}")
        assert specs["fairmean-equal"].split(":")[1] in specs["fairmean"].split(":")


def test_every_method_has_the_same_draw():
    """Clients, poisoned pair, labels and initial model depend on the seed, not on method, step or precision."""
    settings = {"data.name": "fashion-mnist-mini", "data.trust": 50, "attack.pick": "random", "train.device": "cpu"}
    methods = ["mean:train.lr=0.1", "bant:train.lr=0.4", "adafed:train.lr=3", "fairmean:kappa=4:train.dtype=tf32"]
    for attack in evidence.ATTACKS:
        runs = [build_simulator(config) for *_, config in plan(None, settings, methods, [attack], [1004])]
        for other in runs[1:]:
            assert torch.equal(other.federation.y, runs[0].federation.y)
            assert torch.equal(other.federation.x, runs[0].federation.x)
            assert torch.equal(other.federation.test_y, runs[0].federation.test_y)
            assert (other.federation.regular == runs[0].federation.regular).all()
            assert torch.equal(other.w, runs[0].w)


@pytest.mark.parametrize(("dataset", "they_can"), [("fashion-mnist", True), ("cifar10", False)])
def test_signed_ranks_stand_where_they_can_tell(dataset, they_can):
    lines = list(page.claims_page(evidence.read(ROOT / "results" / f"evidence-{dataset}.csv.gz", dataset)))
    head = next(line for line in lines if "| verdict |" in line)
    assert ("by signed ranks" in head) is they_can
    rows = [line for line in lines if line.startswith(("| P", "| S"))]
    assert len(rows) >= 11
    assert {row.count("|") for row in rows} == {head.count("|")}
