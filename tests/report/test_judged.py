"""Reports on errors, of which less is better, on two classes, on named clients, and on samples held out."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fairmean.errors import UserError
from fairmean.report import collect, html, latex, packing
from fairmean.report.figures import write_figures
from fairmean.report.inline import shown
from fairmean.report.judged import Judged
from fairmean.report.material import gather, of_runs
from tests.judged import SITES
from tests.report.making import made_run, made_study
from tests.report.test_report import data_of, words

ERRORS = {"task": "regression", "data": "own.csv"}


def study(gain=12.0, seeds=range(1, 9), **options):
    """Two methods; the second one's errors are smaller if the gain is positive."""
    return made_study(2, seeds=seeds, gain=gain, **{**ERRORS, **options})


def cell(data, method="method-1", attack="pairwise"):
    return next(c for c in data["cells"] if (c["method"], c["attack"]) == (method, attack))["estimates"]


class TestDirection:
    def test_a_smaller_error_is_a_gain(self):
        data = collect(study())
        difference = cell(data)["worst"]["difference"]["mean"]
        assert difference < 0
        assert data["finding"]["headline"] == (
            "Under the attack pairwise, method-1 serves the worst client better than mean, with an RMSE that is "
            f"{-difference:.1f} lower."
        )
        assert "points" not in " ".join(data["finding"]["details"])
        assert cell(data)["worst"]["best"]
        assert cell(data)["average"]["best"]
        assert not cell(data, "mean")["worst"]["best"]

    def test_a_larger_error_is_a_loss(self):
        found = collect(study(gain=-12))["finding"]
        assert found["headline"].startswith(
            "No method is shown to serve the worst client better than mean, and method-1 serves it worse"
        )
        assert "with an RMSE that is" in found["headline"]
        assert found["headline"].endswith("higher.")

    @pytest.mark.parametrize(("gain", "kind", "mark"), [(15, "gain", "▲"), (-15, "loss", "▼")])
    def test_marks_and_sides(self, gain, kind, mark):
        data = collect(study(gain=gain, attacks=("none",)))
        page = html(data)
        average = page.index('class="difference', page.index('data-method="1"'))
        assert page[average : average + 40].startswith(f'class="difference {kind}"')
        assert mark in page[average : average + 200]
        row = re.search(r'<div class="forest-row (\w+)">.*?class="dot" style="left:([\d.]+)%', page, re.S)
        assert row[1] == kind
        assert (float(row[2]) > 50) == (gain > 0)  # what is better is at the right
        assert "worse (higher)" in page
        assert mark in shown(study(gain=gain, attacks=("none",)))

    def test_one_draw_names_the_smallest_error(self):
        found = collect(study(seeds=(1,)))["finding"]["headline"]
        assert found.startswith(
            "In this one draw, method-1 serves the worst client best under the attack pairwise, with"
        )

    def test_the_worst_client_of_a_curve_has_the_largest_error(self):
        run = made_run(attack="none", **ERRORS)
        curve = collect(of_runs([run]))["curves"][0]
        table = run.columns["rmse"].reshape(-1, 10)
        assert [value[0] for value in curve["worst"]] == pytest.approx(table.max(1), rel=1e-4)

    def test_bands_of_errors_may_exceed_100(self):
        curve = collect(study(seeds=range(1, 7), unit=900.0))["curves"][0]
        assert curve["average"][0][2] > 100

    def test_the_smallest_error_of_a_map_is_framed(self):
        runs = [
            made_run("fairmean", quality=50 + 5 * k, hyper={"kappa": k, "tau": tau}, attack="none", **ERRORS)
            for k in (0.5, 2.0)
            for tau in (0.1, 10.0)
        ]
        data = collect(of_runs(runs))
        framed = re.findall(r'--share:1\.000" class="best">([\d.]+)<', html(data))
        smallest = min(c["estimates"]["average"]["mean"] for c in data["cells"])
        assert framed[0] == f"{smallest:.1f}"

    def test_latex_has_the_smallest_error_in_bold(self):
        table = latex.latex(collect(study()))
        row = next(line for line in table.splitlines() if line.startswith("method-1"))
        assert row.split("&")[1].strip().startswith(r"\textbf{")
        assert "% RMSE in the target's unit (root of the mean squared error; less is better) on the targets" in table


@pytest.mark.parametrize(
    ("unit", "figure"),
    [(1.0, r"\d\d\.\d"), (0.0007, r"0\.0\d{3}"), (900.0, r"\d\d,\d{3}"), (1e-9, r"\d\.\d\d·10⁻⁸")],
)
def test_errors_of_any_size_have_three_digits(unit, figure):
    data = collect(study(unit=unit, attacks=("none",)))
    page = words(html(data))
    assert re.search(r"with an RMSE that is [^ ]+ lower", page)
    average = Judged.in_page(data).number(cell(data, attack="none")["average"]["mean"])
    assert re.fullmatch(figure, average)
    assert f" {average} " in page
    assert "NaN" not in page


def test_errors_are_packed_without_loss():
    material = study(seeds=(1, 2), unit=0.0007)
    data = collect(material)
    numbers = packing.unpack(data["packed"])
    for entry, run in zip(material.entries, data["runs"], strict=True):
        assert packing.back(numbers, run["figure"], 10) == pytest.approx(entry.run.summary["rmse"], rel=1e-4)
        ends = {**run["interval"], "at": run["interval"]["at"] + 10}
        assert packing.back(numbers, ends, 10) == pytest.approx(entry.run.summary["clients"]["high"], rel=1e-3)


def test_words_of_a_page_on_errors():
    page = words(html(collect(study())))
    assert "RMSE in the target’s unit (root of the mean squared error; less is better) over regular clients" in page
    assert "on the targets as given, before poisoning" in page
    assert "The worst client is the one that the model serves with the largest test RMSE." in page
    assert "How much data the clients have" in page
    assert "What the clients hold" not in page
    assert "accuracy" not in page
    assert " %²" not in page


def test_tokens_have_accuracies_and_sizes():
    page = words(html(collect(of_runs([made_run(task="next-token", data="own.npz", attack="none")]))))
    assert "Test accuracy over all clients on the labels as given" in page
    assert "perplexity is exp of the mean loss of a token" in page.replace("Perplexity", "perplexity")
    assert "How much data the clients have" in page


def test_labels_of_own_data_are_not_called_clean():
    assert "clean labels" not in words(html(collect(of_runs([made_run(data="own.csv")]))))
    assert "on the labels as given, before poisoning" in words(html(collect(of_runs([made_run(data="own.csv")]))))


def test_runs_with_different_figures_are_not_mixed():
    with pytest.raises(UserError, match=r"are judged by accuracy and those of run '.*' by rmse"):
        collect(of_runs([made_run(), made_run("fairmean", **ERRORS)]))


def test_figures_of_errors_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    names = [f"site $_{i} <{i}>" for i in range(10)]
    files = write_figures(collect(study(seeds=(1,), attacks=("none",), names=names)), tmp_path)
    assert {file.stem for file in files} >= {"tradeoff-none", "clients-none", "partition-none"}
    assert "RMSE (less is better)" in (tmp_path / "clients-none.svg").read_text()
    assert "$_3 &lt;3&gt;" in (tmp_path / "clients-none.svg").read_text()


def test_a_notebook_shows_the_brightest_for_the_smallest_error():
    content = shown(study(seeds=(1,), attacks=("none",)))
    dark, bright = re.search(r"dark is an RMSE of ([\d.]+), bright is ([\d.]+)\.", content).groups()
    assert float(dark) > float(bright)
    assert content.count("rgb(253,231,37)") == 1


class TestRealRuns:
    def test_numbers_and_named_clients(self, judged):
        run = judged["regression"]
        data = collect(gather(run))
        assert sorted(data["names"]) == sorted(SITES)
        assert data["names"] == run.client_names
        numbers = packing.unpack(data["packed"])
        assert packing.back(numbers, data["runs"][0]["figure"], 5) == pytest.approx(run.values, rel=1e-4)
        page = html(data)
        assert data_of(page)["names"] == run.client_names
        worst = run.client_names[int(np.where(run.regular, run.values, -1).argmax())]
        assert f"its worst client, {worst}, with one of" in data["finding"]["headline"]
        assert "<b>Graz</b>" not in page.split('<script type="application/json"')[0]

    def test_further_figures_of_one_run(self, judged):
        run = judged["regression"]
        table = collect(gather(run))["further"]
        assert [name for name, _ in table["heads"]] == ["MAE", "R²"]
        order = [row[0] for row in table["rows"]]
        regular = [i for i in np.argsort(-run.values) if run.regular[i]]
        assert order == [run.client_names[i] for i in [*regular, *np.flatnonzero(~run.regular)]]
        assert table["rows"][-1][1] == "poisoned"
        for row in table["rows"]:
            i = run.client_names.index(row[0])
            assert int(row[3]) == run.partition.test_sizes[i]
            low, high = run.summary["clients"]["low"][i], run.summary["clients"]["high"][i]
            if high is None:
                assert row[5] == "–"
            else:
                assert [float(end) for end in row[5].split(" to ")] == pytest.approx([low, high], abs=0.001)

    def test_two_classes(self, judged):
        run = judged["binary"]
        data = collect(gather(run))
        assert data["partitions"]["names"] == ["ill", "well"]
        assert [name for name, _ in data["further"]["heads"]] == [
            "balanced accuracy", "sensitivity", "specificity", "AUROC",
        ]  # fmt: skip
        page = words(html(data))
        assert "Test accuracy over all clients on the labels as given" in page
        assert "how often a positive sample is ranked above a negative one" in page

    def test_samples_held_out(self, judged):
        run = judged["held out"]
        data = collect(gather(run))
        numbers = packing.unpack(data["packed"])
        final = packing.back(numbers, data["runs"][0]["figure"], 5)
        assert final == pytest.approx(run.values, rel=1e-4)
        last = run.columns["rmse"][run.columns["round"] == run.columns["round"].max()]
        assert final != pytest.approx(last, rel=1e-3)  # those are on the samples held out
        page = words(html(data))
        assert "(right), on samples held out from training." in page
        average = Judged.in_page(data).number(run.summary["validation"]["average"])
        assert f"On the samples that were held out from training, the average client had {average}" in page
