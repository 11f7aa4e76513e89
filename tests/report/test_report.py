"""What a page says, without a browser: the finding, the table, odd runs, and what goes into papers and notebooks."""

from __future__ import annotations

import argparse
import dataclasses
import doctest
import json
import math
import re

import numpy as np
import pytest

import fairmean
from fairmean.errors import UserError
from fairmean.report import collect, html, judged, latex, markup, numbers, packing, write
from fairmean.report.figures import write_figures
from fairmean.report.inline import shown
from fairmean.report.material import Entry, Material, gather, of_runs
from fairmean.terminal.verbs import report as verb
from tests.report.making import made_run, made_study


def words(page: str) -> str:
    """The text of a page."""
    body = re.sub(r"<(style|script)[^>]*>.*?</\1>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


def data_of(page):
    """The numbers of a page, as a browser would read them."""

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text[1], parse_constant=refuse)


@pytest.mark.parametrize("module", [judged, latex, markup, numbers, packing], ids=lambda m: m.__name__)
def test_examples(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("seeds", [(1,), (1, 2, 3)])
def test_no_dot_of_a_difference_is_cut_off(seeds):
    """With one draw, the largest difference lay on the edge of the picture, and half of its dot outside."""
    page = html(collect(made_study(4, seeds=seeds)))
    places = [float(left) for left in re.findall(r'class="dot" style="left:([\d.]+)%', page)]
    assert len(places) == 6
    assert 5 < min(places) <= max(places) < 95


class TestFinding:
    def test_a_gain_that_stands_is_named_with_its_interval(self):
        data = collect(made_study(3, seeds=range(1, 21), gain=12))
        found = data["finding"]
        assert re.fullmatch(
            r"Under the attack pairwise, method-2 serves the worst client \d+\.\d points better than mean\.",
            found["headline"],
        )
        cell = next(c for c in data["cells"] if (c["method"], c["attack"]) == ("method-2", "pairwise"))
        difference = cell["estimates"]["worst"]["difference"]
        assert f"{difference['mean']:.1f} points better" in found["headline"]
        low, high = difference["mean"] - difference["half"], difference["mean"] + difference["half"]
        assert f"+{low:.1f} to +{high:.1f} points" in found["details"][0]
        assert "20 paired draws" in found["details"][0]
        assert "Holm's correction for 4 comparisons" in found["details"][0]

    def test_a_loss_is_said_as_well(self):
        found = collect(made_study(2, seeds=range(1, 21), gain=-12))["finding"]
        assert found["headline"].startswith(
            "No method is shown to serve the worst client better than mean, and method-1"
        )

    def test_no_difference_is_no_finding(self):
        found = collect(made_study(2, seeds=range(1, 7), gain=0.1))["finding"]
        assert found["headline"] == "These 6 draws cannot tell any method's worst client from that of mean."

    def test_one_draw_cannot_tell(self):
        found = collect(made_study(3, seeds=(1,), gain=30))["finding"]
        assert found["headline"].startswith("In this one draw, method-2 serves the worst client best under the attack")
        assert found["details"][0].startswith("One draw cannot tell a better method from a lucky one")

    def test_few_draws_are_said_to_be_few(self):
        assert "With only 3 draws" in " ".join(collect(made_study(3))["finding"]["details"])

    def test_one_method(self):
        found = collect(made_study(["fairmean"], seeds=(1,), attacks=("none",)))["finding"]
        assert re.match(
            r"Fairmean serves its average client with [\d.]+\s% accuracy and its worst client", found["headline"]
        )

    def test_without_the_baseline_nothing_is_tested(self):
        found = collect(made_study(["a", "b"]))["finding"]
        assert "Differences were not tested, because the method 'mean' is not among the runs." in found["details"]

    def test_many_clients_are_judged_by_their_worst_tenth(self):
        data = collect(made_study(2, clients=100, seeds=range(1, 9), gain=12))
        assert "the worst-served tenth of the clients" in data["finding"]["headline"]
        assert data["metrics"][-1] == "worst_tenth"


class TestOddRuns:
    def test_clients_without_test_data(self):
        page = html(collect(made_study(2, untested=(0, 3))))
        data = data_of(page)
        values = packing.unpack(data["packed"])[data["runs"][0]["figure"]["at"] :][:10]
        assert [i for i, value in enumerate(values) if value == packing.MISSING] == [0, 3]

    def test_nobody_has_test_data(self):
        data = collect(made_study(2, untested=range(10)))
        assert data["finding"]["headline"] == "No run has come to its end yet."
        assert "no data" in words(html(data))

    def test_diverged_and_failed_runs(self):
        whole = made_study(3, seeds=(1, 2, 3, 4, 5))
        entries = list(whole.entries)
        bad = made_run("method-1", "pairwise", 2, status="diverged")
        place = next(i for i, e in enumerate(entries) if (e.method, e.attack, e.seed) == ("method-1", "pairwise", 2))
        entries[place] = Entry("method-1", "pairwise", 2, "diverged", bad)
        entries += [Entry("broken", "none", 1, "failed", None, "it raised <ValueError>")]
        page = html(collect(Material("odd", entries)))
        text = words(page)
        assert "† Runs that did not finish are not in the figures. method-1, pairwise: 1 of 5 diverged" in text
        assert "method-1, pairwise, seed 2: diverged in round 4" in text
        assert "it raised &lt;ValueError&gt;" in text
        assert "Not in these figures: 1 of 31 runs, diverged." in text
        assert "Not in these figures: 1 of 31 runs, failed." in text
        cell = next(c for c in data_of(page)["cells"] if (c["method"], c["attack"]) == ("method-1", "pairwise"))
        assert cell["estimates"]["worst"]["n"] == 4
        assert not cell["estimates"]["worst"]["best"]

    def test_all_runs_of_a_method_diverged(self):
        good, bad = made_run("mean"), made_run("wild", status="diverged")
        text = words(html(collect(of_runs([good, bad]))))
        assert "diverged" in text
        assert "wild" in text

    def test_a_run_that_is_still_at_work(self):
        page = html(collect(of_runs([made_run(status="running")])))
        assert "No run has come to its end yet." in page
        assert data_of(page)["curves"]

    def test_unequal_client_counts(self):
        runs = [made_run("mean", clients=10), made_run("fairmean", clients=6)]
        data = collect(of_runs(runs))
        values = packing.unpack(data["packed"])
        small = next(run for run in data["runs"] if data["methods"][run["method"]].startswith("fairmean"))
        assert (values[small["figure"]["at"] :][:10] == packing.ABSENT).tolist() == [False] * 6 + [True] * 4
        assert "6 to 10 clients" in words(html(data))

    def test_named_clients_of_different_runs_share_their_places(self):
        one = made_run("mean", names=["Ulm", "Bern", "Graz"], clients=3)
        other = made_run("fairmean", names=["Graz", "Ulm"], clients=2)
        data = collect(of_runs([one, other]))
        assert data["names"] == ["Ulm", "Bern", "Graz"]
        values = packing.unpack(data["packed"])[data["runs"][1]["figure"]["at"] :][:3] / 100
        assert values[1] == packing.ABSENT / 100
        assert values[[2, 0]] == pytest.approx(other.summary["accuracy"], abs=0.01)

    def test_rules_without_weights(self):
        run = made_run("cwtm")
        run.columns["weight"][:] = np.nan
        data = collect(of_runs([run]))
        assert "weight_trace" not in data["runs"][0]
        assert "figure_trace" in data["runs"][0]

    def test_folders_of_older_versions_have_no_classes(self):
        run = made_run()
        run.partition.classes = run.partition.clean_classes = None
        data = collect(of_runs([run]))
        assert data["partitions"] is None
        assert "What the clients hold" not in html(data)

    def test_labels_are_called_clean_only_where_they_were_poisoned(self):
        assert "clean labels" in words(html(collect(of_runs([made_run()]))))
        assert "clean labels" not in words(html(collect(of_runs([made_run(attack="none")]))))

    def test_seeds_are_draws_and_not_methods(self):
        runs = [made_run(method, seed=seed) for method in ("mean", "fairmean") for seed in (1, 2)]
        for run in runs:
            run.settings |= {"partition.seed": run.settings["seed"]}
        material = of_runs(runs)
        assert (material.methods, material.seeds) == (["mean", "fairmean"], [1, 2])
        runs[0].settings["partition.seed"] = 7  # somebody asked for other clients
        assert any("seed=7" in name for name in of_runs(runs).methods)

    def test_runs_that_differ_in_other_settings_are_told_apart(self):
        slow, fast = made_run(), made_run()
        fast.settings["train.lr"] = 0.5
        assert of_runs([slow, fast]).methods == ["mean lr=0.1", "mean lr=0.5"]

    def test_no_number_is_lost_by_packing(self):
        material = made_study(2, seeds=(1, 2))
        data = collect(material)
        values = packing.unpack(data["packed"])
        for entry, run in zip(material.entries, data["runs"], strict=True):
            stored = values[run["figure"]["at"] :][:10] / 100
            assert stored == pytest.approx(entry.run.summary["accuracy"], abs=0.0051)
            trace = run["weight_trace"]
            table = values[trace["at"] :][: 10 * len(trace["rounds"])].reshape(-1, 10) * trace["step"] + trace["low"]
            assert table == pytest.approx(entry.run.columns["weight"].reshape(-1, 10)[:-1], abs=trace["step"])


def test_thinning_is_said():
    notes = collect(made_study(4, attacks=("pairwise",), seeds=range(1, 30), clients=5000, rounds=2))["notes"]
    assert notes["clients"][0].startswith("Clients are shown one by one for 25 of 29 draws")
    assert "The way of single clients through the rounds is kept for the first 5 draws." in notes["traces"]
    assert "The clients' data are in this page for the first 6 draws." in notes["partition"]


def test_kappa_and_tau_make_a_map():
    runs = [
        made_run("fairmean", seed=1, quality=50 + 5 * kappa, hyper={"kappa": kappa, "tau": tau})
        for kappa in (0.5, 2.0)
        for tau in (0.1, 10.0)
    ]
    page = html(collect(of_runs(runs)))
    assert "Which κ and τ" in page
    assert page.count('class="best"') >= 2
    assert "Which κ and τ" not in html(collect(of_runs(runs[:3])))


def test_the_command_makes_the_same_runs():
    command = collect(made_study(2, seeds=(1, 2, 3), attacks=("none", "pairwise")))["again"]["command"]
    assert command.startswith("fairmean compare --methods mean,method-1 --attacks none,pairwise --seeds 1-3 ")
    assert "train.rounds=8" in command
    assert "train.lr" not in command  # it is the default


def test_the_same_runs_make_the_same_page():
    assert html(collect(made_study(2))) == html(collect(made_study(2)))


class TestLatex:
    def test_best_in_bold_with_intervals_and_arrows(self):
        data = collect(made_study(["mean", "fair_κ=1"], seeds=range(1, 9), gain=15))
        table = latex.latex(data)
        assert r"\toprule" in table
        row = next(line for line in table.splitlines() if line.startswith(r"fair\_$\kappa$=1"))
        assert r"\textbf{" in row
        assert r"$\pm$" in row
        assert r"$^{\uparrow}$" in row
        assert row.count("&") == 6

    def test_parts_are_left_out_as_asked(self):
        table = latex.latex(collect(made_study(2, seeds=range(1, 9), gain=15)), parts=())
        assert r"\pm" not in table
        assert "arrow" not in table
        with pytest.raises(UserError, match="unknown part of a LaTeX table 'stars'"):
            latex.latex(collect(made_study(2)), parts=("stars",))

    def test_one_draw_has_no_interval(self):
        table = latex.latex(collect(made_study(2, seeds=(1,))))
        assert r"\pm" not in table
        assert "one draw, which cannot tell" in table


def test_figures_are_written_in_three_formats(tmp_path):
    pytest.importorskip("matplotlib")
    files = write_figures(collect(made_study(2, attacks=("pairwise",), seeds=(1, 2), untested=(1,))), tmp_path / "f")
    names = {file.name for file in files}
    wanted = {"tradeoff", "clients", "spread", "curves", "weights", "partition"}
    assert names == {f"{name}-pairwise.{kind}" for name in wanted for kind in ("svg", "pdf", "png")}
    assert all(file.stat().st_size > 1000 for file in files)
    from PIL import Image

    for file in files:
        if file.suffix == ".png":
            with Image.open(file) as image:
                assert len(image.convert("RGB").getcolors(1 << 24)) > 20, file


def test_a_notebook_gets_html_without_scripts():
    content = shown(made_study(["mean", "<b>x</b>"], seeds=(1, 2), untested=(4,)))
    assert "<script" not in content
    assert "&lt;b&gt;x&lt;/b&gt;" in content
    assert content.count("<svg") == 2
    assert "NaN" not in content


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    verb.add_to(parser.add_subparsers())
    return parser.parse_args(["report", *map(str, arguments)])


@pytest.fixture
def trained(own, here):
    """Two runs, one measured."""
    common = {"data": {"name": own}, "partition": {"clients": 4}, "model": {"name": "linear"}}
    plain = fairmean.run(train={"rounds": 3}, method={"name": "mean"}, **common)
    measured = fairmean.run(train={"rounds": 3}, theory=True, **common)
    return plain, measured


def test_the_verb(trained, capsys, here):
    plain, measured = trained
    arguments = parsed(plain.folder, measured.folder.name[:6], "-o", "out/two.html", "--latex", "--figures", "figures")
    assert arguments.call(arguments) == 0
    said = capsys.readouterr().out
    assert "report: out/two.html" in said
    assert r"\bottomrule" in said
    page = (here / "out/two.html").read_text()
    assert "Certificate" in page
    assert "Lemma 2" in page
    assert len(list((here / "figures").glob("*.svg"))) == 6
    arguments = parsed("run", "-o", "all.html", "--json", "--latex", "table.tex", "--latex-with", "none")
    assert arguments.call(arguments) == 0
    assert json.loads(capsys.readouterr().out)["latex"] == "table.tex"
    assert data_of((here / "all.html").read_text())["methods"] == data_of(page)["methods"]


def test_a_run_of_its_own(trained):
    plain, _ = trained
    data = collect(gather(plain))
    assert data["cells"][0]["estimates"]["worst"]["mean"] == pytest.approx(plain.summary["worst"], abs=1e-5)
    assert "fairmean run method.name=mean attack.name=pairwise" in data["again"]["command"]


def test_mistakes_are_one_line(here, trained):
    plain, _ = trained
    (here / "table.csv").write_text("a,b\n1,2\n")
    (here / "empty").mkdir()
    cases = {
        "there is no run 'nothing'": ["nothing"],
        "is not the table of a study: it has no column 'method'": ["table.csv"],
        "there is no run to report on": [],
    }
    for message, source in cases.items():
        with pytest.raises(UserError, match=re.escape(message)):
            gather(source)
    with pytest.raises(UserError, match="cannot be written"):
        write(plain, plain.folder / "config.toml" / "report.html")


def test_a_table_that_was_moved_finds_its_runs(own, here):
    study = fairmean.compare(
        methods=["mean"],
        attacks=["none"],
        data={"name": own},
        partition={"clients": 3},
        train={"rounds": 2},
        model={"name": "linear"},
        run={"name": "was"},
    )
    (here / "runs/was").rename(here / "elsewhere")
    assert gather("elsewhere").values("mean", "none", "worst") == pytest.approx(
        study.cells["mean", "none"].metrics["worst"]
    )


def test_material_is_what_the_runs_say():
    material = made_study(2, seeds=(1, 2))
    assert material.values("mean", "none", "average")[0] == material.entries[0].run.summary["average"]
    lacking = dataclasses.replace(material, entries=material.entries[1:])
    assert math.isnan(lacking.values("mean", "none", "average")[0])
