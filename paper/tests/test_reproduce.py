"""The paper's tables and figures: commands, calibration, rendering."""

import csv
import importlib.util
import json
import math
from collections import Counter
from pathlib import Path

import pytest

from fairmean.experiments.config import gather, parse
from fairmean.experiments.study import plan
from fairmean.rules.named import named_methods
from fairmean.terminal.main import main
from paper import calibration, command, evidence, paper, render, tuning
from paper.calibration import CHOSEN, GRIDS, Row, distance, nearest

pytestmark = pytest.mark.usefixtures("here")

RESULTS = Path(__file__).parent.parent.parent / "results"


def test_figure_1_in_seconds(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["reproduce", "fig1"]) == 0
    assert (tmp_path / "reproduced" / "fig1.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "reproduced" / "fig1.png").stat().st_size > 10_000
    assert "fig1.pdf" in capsys.readouterr().out


def test_table_2_quick(tmp_path, capsys):
    assert main(["reproduce", "table2", "--quick", "train.device=cpu", "--out", "there"]) == 0
    out = capsys.readouterr().out
    assert "the numbers mean nothing" in out
    assert "| 86.90" in out
    with open(tmp_path / "there" / "table2-quick.csv", newline="") as file:
        cells = list(csv.DictReader(file))
    assert len(cells) == 10 * 3 * 3
    assert sum(cell["paper"] != "" for cell in cells) == 63
    assert all(float(cell["ours"]) >= 0 for cell in cells)
    latex = (tmp_path / "there" / "table2-quick.tex").read_text()
    assert latex.count(r"\\") == 12
    assert main(["reproduce", "table2", "--quick", "train.device=cpu", "--out", "there"]) == 0
    assert capsys.readouterr().out == out  # found, not computed again
    assert main(["reproduce", "table2", "--quick", "train.device=cpu", "--out", "there", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["what"], answer["out"]) == ("table2", "there")
    assert "\n".join(answer["text"]) + "\n" == out


def test_table_1_quick(capsys):
    assert main(["reproduce", "table1", "--quick", "train.device=cpu", "train.rounds=1"]) == 0
    assert "Table 1, CIFAR-10: QUICK" in capsys.readouterr().out
    assert "CIFAR-10: calibrated" in command._title("table1", False, "")
    assert "Fashion-MNIST: calibrated" in command._title("table2", False, "")


def test_without_an_attack_a_defence_is_told_so(tmp_path):
    specs = ["qffl:q=0.5", "h-nobs:q=0.5:f=3", "h-nobs:q=0.5:f=1", "qffl+cwtm:q=0.5"]
    settings = {"data.name": "fashion-mnist-mini", "model.name": "linear", "train.rounds": 3, "train.device": "cpu"}
    every = {row.spec: row for row in calibration.rows(calibration.run("table2", specs, **settings))}
    assert set(every) == set(specs)
    assert all(set(row.cells) == set(paper.ATTACKS) for row in every.values())
    assert every[specs[1]].cells["pairwise"] != every[specs[2]].cells["pairwise"]
    rows = {row.method: row for row in every.values()}
    for defence in calibration.DEFENCES:  # as in the paper's tables
        assert rows[defence].cells["none"] == pytest.approx(rows["qffl"].cells["none"], rel=1e-6)
        assert rows[defence].cells["pairwise"] != rows["qffl"].cells["pairwise"]


def test_figure_2_quick(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["reproduce", "fig2", "--quick", "train.device=cpu", "train.rounds=1"]) == 0
    with open(tmp_path / "reproduced" / "fig2-quick.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10 * 4
    assert "paper: 75.97, 60.85" in capsys.readouterr().out
    assert {file.name for file in (tmp_path / "reproduced").glob("fig2*")} == {
        "fig2-quick.csv", "fig2-quick.pdf", "fig2-quick.png"
    }  # fmt: skip


def test_what_there_is_not(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "table3"])
    assert main(["reproduce", "fig1", "my.toml"]) == 2
    assert "reproduce has its own settings" in capsys.readouterr().err
    assert main(["reproduce", "table2", "quick=true"]) == 2
    assert main(["reproduce", "table2", "--draw", "3"]) == 2
    assert main(["reproduce", "evidence", "train.rounds=3"]) == 2
    assert all(line.startswith("fairmean: ") for line in capsys.readouterr().err.splitlines())


def test_a_changed_protocol_is_said(capsys, own, tmp_path):
    changed = [f"data.name={own}", "model.name=linear", "train.rounds=1", "train.device=cpu"]
    assert main(["reproduce", "table2", *changed]) == 0
    out = capsys.readouterr().out
    assert "NOT the paper's protocol, you changed data.name, model.name, train.rounds" in out
    assert (tmp_path / "reproduced" / "table2-changed.csv").exists()


@pytest.mark.parametrize("table", CHOSEN)
def test_what_was_chosen_is_in_the_grids_and_can_be_run(table):
    every = set(calibration.specs(table))
    assert set(CHOSEN[table]) == set(GRIDS[table])
    assert set(paper.TABLES[table]) <= set(GRIDS[table])
    for spec in CHOSEN[table].values():
        assert spec in every
    for spec in every:
        assert plan(None, calibration.PROTOCOL[table], [spec], ["none"])


@pytest.mark.parametrize("table", CHOSEN)
def test_what_was_chosen_is_the_nearest_of_the_search(table):
    rows = calibration.read(RESULTS / f"calibration-{table}.csv")
    assert {row.spec for row in rows} == set(calibration.specs(table))
    for method, spec in CHOSEN[table].items():
        target = None if method in paper.TABLES[table] else "fairmean"
        found = nearest(rows, table, method, target)
        assert found.spec == spec
        assert distance(found, paper.TABLES[table][target or method]) >= 0


@pytest.mark.parametrize("dataset", evidence.TUNED)
def test_what_was_tuned_is_the_choice_of_the_tuning_runs(dataset):
    records = tuning.read(RESULTS / f"tuning-{dataset}.csv")
    assert tuning.choose(records) == evidence.TUNED[dataset]
    ran = {(record["method"], record["spec"]) for record in records}
    assert set(tuning.specs(dataset, evidence.TUNED[dataset], records)) == ran
    assert all(record["dtype"] == tuning.precision(record["method"], dataset) for record in records)
    draws = Counter((record["method"], record["spec"]) for record in records)
    assert set(draws.values()) == {len(tuning.DRAWS[dataset])}


def test_distance():
    goal = paper.FASHION_MNIST["fairmean"]
    exact = Row("fairmean", dict(zip(paper.ATTACKS, goal, strict=True)))
    assert distance(exact, goal) == 0
    off = {attack: (a + 1, v, w - 2) for attack, (a, v, w) in exact.cells.items()}
    assert distance(Row("fairmean", off), goal) == pytest.approx(1.0)
    lost = Row("fairmean", exact.cells | {"none": (math.nan,) * 3})
    assert math.isnan(distance(lost, goal))
    assert nearest([lost, Row("fairmean", off)], "table2", "fairmean").cells == off


def test_a_search_is_written_and_read_back(tmp_path):
    records = [
        {
            "spec": "mean:train.lr=0.1",
            "attack": a,
            "status": "finished",
            "average": 80.123,
            "variance": 4.0,
            "worst": 70.0,
        }
        for a in paper.ATTACKS
    ] + [{"spec": "mean:train.lr=9", "attack": "none", "status": "diverged", **dict.fromkeys(paper.METRICS, math.nan)}]
    calibration.write(tmp_path / "x.csv", records)
    good, lost = calibration.read(tmp_path / "x.csv")
    assert good.cells["pairwise"] == (80.12, 4.0, 70.0)
    assert math.isnan(lost.cells["none"][0])


def test_orderings_and_far_cells():
    rows = [Row(m, dict(zip(paper.ATTACKS, cells, strict=True))) for m, cells in paper.FASHION_MNIST.items()]
    assert all(line.endswith("yes") for line in render.orderings("table2", rows))
    assert render.far_cells("table2", rows) == []
    moved = [Row(r.spec, r.cells | {"pairwise": (60.0, 1.0, 99.0)}) if r.method == "fedavg" else r for r in rows]
    assert any("no, FedAvg: 99.00" in line for line in render.orderings("table2", moved))
    assert len(render.far_cells("table2", moved)) == 2


def test_every_method_is_tuned():
    everything = tuning.TUNING["fashion-mnist"]
    later = {"fairmean-recess", "fednoro", "antiflipper"}  # which came after the tuning
    tuned = {name.rstrip("+-") if name in ("term+", "term-") else name for name in everything}
    assert tuned == set(named_methods()) - later
    for _, spec in [*tuning.specs("fashion-mnist"), *tuning.specs("cifar10")]:
        name, *settings = spec.split(":")
        own = {s.split("=")[0]: s.split("=")[1] for s in settings if "." not in s.split("=")[0]}
        parse(gather(None, {"method": {"name": name, **{k: eval(v.title()) for k, v in own.items()}}}))


def test_the_choice_is_by_validation_score():
    def record(spec, average, worst, seed=1):
        return {"method": "mean", "spec": spec, "seed": seed, "average": average, "worst": worst}

    records = [
        record("mean:train.lr=0.1", 80, 60),
        record("mean:train.lr=0.2", 80, 62),
        record("mean:train.lr=0.4", 80, 62),
    ]
    assert tuning.choose(records) == {"mean": "mean:train.lr=0.2"}
    records.append(record("mean:train.lr=0.8", 99, 99))
    records.append(record("mean:train.lr=0.8", math.nan, math.nan, seed=2))
    assert tuning.choose(records) == {"mean": "mean:train.lr=0.2"}


def test_two_stages_are_a_search_of_steps_and_then_of_the_parameter():
    grid = {"fairmean": {"kappa": [1.0, 4.0], "train.lr": [0.1, 0.2]}}
    first = {("fairmean", f"fairmean:kappa=1.0:train.lr={lr}") for lr in (0.1, 0.2)}
    records = [{"method": m, "spec": s, "average": 80, "worst": 70 if "0.2" in s else 60} for m, s in first]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tuning.TUNING, "cifar10", grid)
        assert set(tuning.specs("cifar10")) == first
        assert set(tuning.specs("cifar10", records=records[:1])) == first
        assert set(tuning.specs("cifar10", records=records)) == first | {
            ("fairmean", "fairmean:kappa=4.0:train.lr=0.2")
        }


def test_validation_data_are_training_samples_held_out(monkeypatch):
    monkeypatch.setattr(tuning, "HELD_OUT", 1000)
    whole, part = tuning.data.load("fashion-mnist-mini"), tuning.validation("fashion-mnist-mini")
    assert (part.test_x == whole.train_x[-1000:]).all()
    assert (part.test_y == whole.train_y[-1000:]).all()
    assert (part.train_x == whole.train_x[:-1000]).all()
    assert (part.train_y == whole.train_y[:-1000]).all()
    assert len(part.train_y) == len(whole.train_y) - 1000


@pytest.fixture(scope="module")
def script():
    file = RESULTS.parent / "paper" / "make_reproduction.py"
    spec = importlib.util.spec_from_file_location("make_reproduction", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_search_gave(script):
    assert (RESULTS.parent / "docs" / "reproduction.md").read_text(encoding="utf-8") == script.page()


def test_the_reasons_of_table_1_are_what_the_search_gave(script):
    rows = calibration.read(RESULTS / "calibration-table1.csv")
    reasons, theirs = script.REASONS["table1"], paper.TABLES["table1"]

    def figures(method, attack, metric, where=""):
        cells = [row.cells[attack][metric] for row in rows if row.method == method and where in row.spec]
        return [value for value in cells if not math.isnan(value)]

    near = [row for row in rows if row.method == "qffl" and abs(row.cells["none"][0] - theirs["qffl"][0][0]) <= 3]
    assert f"{math.floor(10 * min(row.cells['pairwise'][2] for row in near)) / 10} or better" in reasons["qffl"]
    falls = [row.cells["none"][0] - row.cells["random_class"][0] for row in rows if row.method == "fedmgda+"]
    assert f"ours falls by {min(falls):.1f} to {max(falls):.1f}" in reasons["fedmgda+"]
    clean, random, pairwise = (cell[0] for cell in theirs["fedmgda+"])
    assert f"falls by {clean - random:.1f} points" in reasons["fedmgda+"]
    assert f"by {clean - pairwise:.1f} under pairwise" in reasons["fedmgda+"]
    weak, some, strong = (
        [v for q in which for v in figures("h-nobs", "pairwise", 2, f"q={q}:")]
        for which in ((0.1, 0.2), (0.5,), (1.0,))
    )
    assert f"{min(weak):.1f} or better" in reasons["h-nobs"]
    assert f"{min(some):.1f} to {max(some):.1f}" in reasons["h-nobs"]
    assert f"{max(strong):.1f} or worse" in reasons["h-nobs"]
    average, worst = figures("qffl+cwtm", "random_class", 0), figures("adafed", "random_class", 2)
    assert f"{min(average):.1f} to {max(average):.1f}" in reasons["qffl+cwtm"]
    assert f"{min(worst):.1f} to {max(worst):.1f}" in reasons["adafed"]
