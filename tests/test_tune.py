"""The search: within its budget, on validation samples, on draws of its own; interrupted, it goes on."""

import csv
import importlib.util
import json
import math
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairmean
from fairmean.errors import UserError
from fairmean.experiments.choosing import ranked, score
from fairmean.experiments.ladder import ladder
from fairmean.experiments.search import MOST_MORE, OWN, Search
from fairmean.rules.named import method, named_methods
from fairmean.rules.search_space import search_space
from fairmean.terminal.main import main

ROOT = Path(__file__).parent.parent
ROUNDS = 90


def searching(measure, budget=24, draws=3, step="train.lr", continued=True, **more):
    """A search in a made-up landscape; the budget is in whole runs."""
    rungs = ladder(ROUNDS, draws, 1, continued)

    def of_draws(stage, setting, level):
        return np.array([measure(dict(setting), draw) for draw in range(rungs.levels[level].draws)])

    return Search("made-up", rungs, budget * ROUNDS, of_draws, step, 0.1, **more)


def hill(top, width=1.0):
    """Best at step 0.1·2^top, worse by a point for every factor of two."""
    return lambda setting, draw: 60 - abs(math.log2(setting["train.lr"] / 0.1) - top) / width + draw


@pytest.mark.parametrize("top", range(-4, 5))
@pytest.mark.parametrize("draws", [1, 3])
def test_the_top_of_a_hill_is_found_at_a_third_of_the_grids_cost(top, draws):
    search = searching(hill(top), budget=3 * draws, draws=draws)
    assert dict(search.run()) == {"train.lr": pytest.approx(0.1 * 2.0**top)}
    assert search.spent <= search.budget == 9 * draws * ROUNDS / 3


@pytest.mark.parametrize("top", [-9, -5, 5, 8])
def test_the_grid_grows_where_its_best_lies_at_an_edge(top):
    search = searching(hill(top), budget=30)
    assert dict(search.run()) == {"train.lr": pytest.approx(0.1 * 2.0**top)}


def test_the_grid_grows_only_so_far():
    search = searching(hill(40), budget=1000)
    search.run()
    assert 9 + MOST_MORE <= len(search.searched("train.lr")) <= 9 + 2 * MOST_MORE + 1
    few = searching(hill(40), budget=9)
    few.run()
    assert few.spent <= few.budget


@given(
    seed=st.integers(0, 10_000),
    budget=st.integers(9, 40),
    lost=st.floats(0, 0.9),
    draws=st.integers(1, 4),
    on=st.booleans(),
)
def test_no_search_spends_more_than_its_budget(seed, budget, lost, draws, on):
    """Whatever the figures are, and however many runs diverge; the choice is a setting that came to the last level."""
    random = np.random.default_rng(seed)

    def anything(setting, draw):
        return math.nan if random.random() < lost else random.normal(50, 10)

    space = {"q": (0.1, 1.0, 10.0), "t": (1.0, 2.0)}
    search = searching(anything, budget * draws, draws, continued=on, space=space, defaults={"q": 1.0, "t": 1.0})
    with suppress(UserError):  # everything that could be paid diverged
        best = search.run()
        assert search.reached[best] == search.ladder.last
        assert math.isfinite(search.score(best, search.ladder.last))
    paid = sum(search.ladder.cost(-1, level) for level in search.reached.values())
    assert search.spent == paid <= search.budget


def test_own_parameters_come_after_the_step_and_the_step_is_looked_at_again():
    def ridge(setting, draw):
        q, step = setting.get("q", 1.0), setting["train.lr"]
        return 60 - abs(math.log2(step / 0.2)) - 2 * abs(math.log2(q / 0.5)) - abs(math.log2(step * q / 0.2))

    space = {"q": (0.25, 0.5, 1.0, 2.0)}
    search = searching(ridge, space=space, defaults={"q": 1.0})
    assert dict(search.run())["q"] == 0.5
    stages = [dict(setting) for setting in search.reached]
    assert "q" not in stages[0]
    assert len([setting for setting in stages if "q" in setting]) >= 3
    small = searching(ridge, budget=9, space=space, defaults={"q": 1.0})
    small.run()
    assert "own hyper-parameters" in small.notes[0]
    fixed = searching(ridge_at(0.2, ridge), step=None, space=space, defaults={"q": 1.0})
    assert dict(fixed.run()) == {"q": 0.5}


def test_a_parameter_that_lengthens_steps_is_found_with_a_shorter_one():
    """At the step that is best for κ = 1, κ = 3 diverges; at half of it, it is the best of all."""

    def landscape(setting, draw):
        kappa, step = setting.get("kappa", 1.0), setting["train.lr"]
        length = step * (1 + kappa)
        return math.nan if length > 0.45 else 50 + 5 * kappa - abs(math.log2(length / 0.4))

    search = searching(landscape, space={"kappa": (0.5, 1.0, 3.0)}, defaults={"kappa": 1.0})
    assert dict(search.run()) == {"train.lr": 0.1, "kappa": 3.0}


def ridge_at(step, landscape):
    return lambda setting, draw: landscape({"train.lr": step, **setting}, draw)


def test_settings_that_the_method_refuses_are_not_tried():
    space = {"q": (0.5, 1.0, 3.0)}
    asked = []
    search = searching(hill(0), space=space, defaults={"q": 1.0}, possible=lambda s: dict(s)["q"] < 2)
    inner = search.measure
    search.measure = lambda stage, setting, level: asked.append((stage, dict(setting))) or inner(stage, setting, level)
    search.run()
    assert {s["q"] for stage, s in asked if stage == OWN} == {0.5}


def test_everything_diverges():
    with pytest.raises(UserError, match=r"diverged with every step size from .* begin with a smaller one"):
        searching(lambda setting, draw: math.nan).run()


def test_large_steps_that_diverge_are_the_worst():
    search = searching(lambda s, draw: math.nan if s["train.lr"] > 0.02 else hill(-4)(s, draw))
    assert dict(search.run()) == {"train.lr": 0.00625}


def test_gaps_are_paired_by_draw():
    """Draws differ by ten points, and the gap between two settings is one point on each of them."""
    search = searching(lambda setting, draw: hill(0)(setting, draw) + 10 * draw)
    search.run()
    other = next(s for s in search.reached if dict(s) == {"train.lr": 0.2})
    gap, error = search.gap(other)
    assert gap == pytest.approx(1)
    assert error == pytest.approx(0, abs=1e-9)


def test_choice():
    assert score([1.0, math.nan]) == score([]) == -math.inf
    assert ranked({0.4: 61.004, 0.2: 61.001, 0.1: 61.1}, float) == [0.1, 0.2, 0.4]
    assert ranked({0.4: 61.004, 0.2: 61.001}, float, digits=12) == [0.4, 0.2]


def test_every_search_space_can_be_built():
    for name in named_methods():
        built = method(name)
        for key, values in search_space(built.parts).items():
            assert key != "f"
            assert built.hyper[key] in values
            for value in values:
                assert method(name, **{key: value}).hyper[key] == value


def test_a_method_of_ones_own_is_searched_about_its_defaults(registries):
    @fairmean.register("halves", reference="a test")
    @dataclass(frozen=True)
    class Halves(fairmean.LossRule):
        """λ = 1/n."""

        share: float = 0.5
        f: int = 1
        name: str = "x"

        def weights(self, round):
            return round.losses * 0 + 1 / len(round.losses)

    assert search_space(method("halves").parts) == {"share": (0.03125, 0.125, 0.5, 2.0, 8.0)}


@pytest.fixture
def small(here, own):
    """Settings with which a run takes a hundredth of a second."""
    return {
        "data.name": own, "model.name": "linear", "train.rounds": 9, "partition.clients": 4, "partition.alpha": 1.0
    }  # fmt: skip


class Counting(fairmean.Listener):
    """How many runs were computed, and how many were there; raises after so many."""

    def __init__(self, most=10**9):
        self.made, self.found, self.rounds, self.most = 0, 0, 0, most

    def ended(self, event):
        self.made += not event.found
        self.found += event.found
        self.rounds += event.rounds
        if self.made >= self.most:
            raise KeyboardInterrupt


def test_the_choice_is_made_on_validation_samples(small):
    tuned = fairmean.tune(methods=["mean", "qffl"], **small)
    assert list(tuned.chosen) == ["mean", "qffl"]
    assert list(tuned.chosen["mean"]) == ["train.lr"]
    assert {row["seed"] for row in tuned.records} == {1001, 1002, 1003}
    assert len({row["folder"] for row in tuned.records}) == len(tuned.records)
    for row in tuned.records:
        run = fairmean.load(row["folder"])
        assert run.config.data.validation == 0.2
        assert run.config.train.rounds == row["rounds"]
        assert row["average"] == run.summary["validation"]["average"]
    for spec, search in zip(tuned.specs, tuned.searches.values(), strict=True):
        whole = [row for row in tuned.records if row["method"] == search.method and row["rounds"] == 9]
        means = {row["spec"]: [] for row in whole}
        for row in whole:
            means[row["spec"]].append(row["average"])
        finalists = {name: np.mean(values) for name, values in means.items() if len(values) == 3}
        assert round(finalists[spec], 2) == round(max(finalists.values()), 2)
        assert search.spent <= search.budget == 24 * 9
    assert tuned.searches["mean"].budget == tuned.searches["qffl"].budget
    table = str(tuned)
    assert "next best" in table
    assert "validation" not in tuned.command
    assert f"--methods {','.join(tuned.specs)} --seeds 1-5" in tuned.command
    assert main([*shlex.split(tuned.command)[1:], "--dry-run"]) == 0


def test_an_interrupted_search_goes_on_and_computes_nothing_twice(small):
    whole = Counting()
    expected = fairmean.tune(methods=["qffl"], listeners=[whole], **small | {"run.dir": "whole"})
    cost = expected.searches["qffl"].spent
    assert whole.rounds == cost  # longer runs continue shorter ones
    for most in (1, 5):
        with pytest.raises(KeyboardInterrupt):
            fairmean.tune(methods=["qffl"], listeners=[Counting(most)], **small)
    rest = Counting()
    again = fairmean.tune(methods=["qffl"], listeners=[rest], **small)
    assert rest.made == whole.made - 6
    assert again.chosen == expected.chosen
    nothing = Counting()
    fairmean.tune(methods=["qffl"], listeners=[nothing], **small)
    assert nothing.made == 0


def test_runs_that_cannot_be_continued_have_all_rounds(small):
    tuned = fairmean.tune(methods=["mean"], seeds=[7, 8], **small | {"train.schedule": "cosine"})
    assert {row["rounds"] for row in tuned.records} == {9}
    assert tuned.searches["mean"].spent <= 16 * 9


NUMBERS = """
import numpy as np
from fairmean.data import Dataset

def make():
    x = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    y = x @ np.arange(5, dtype=np.float32)
    return Dataset("numbers", x[:240], y[:240], x[240:], y[240:], 1, task="regression")
"""


def test_an_error_is_better_when_it_is_smaller(here, forget_modules, monkeypatch):
    Path("numbers_to_predict.py").write_text(NUMBERS)
    monkeypatch.syspath_prepend(str(here))
    tuned = fairmean.tune(
        methods="mean",
        seeds=[1001, 1002],
        data={"name": "numbers_to_predict:make"},
        partition={"name": "iid", "clients": 3},
        train={"rounds": 9},
    )
    best = tuned.searches["mean"]
    errors = {row["spec"]: row["average"] for row in tuned.records if row["rounds"] == 9 and row["seed"] == 1001}
    assert errors[tuned.specs[0]] < max(errors.values())
    assert best.values[best.best, best.ladder.last].max() < 0  # judged by its negative
    assert "rmse" in str(tuned)
    assert "half a point" not in str(tuned)


def words(small):
    return [f"{key}={value}" for key, value in small.items()]


def test_command_line(small, capsys):
    given = ["tune", *words(small), "--methods", "mean", "--seeds", "1001,1002", "--compare-seeds", "1-20", "--quiet"]
    assert main([*given, "--dry-run"]) == 0
    assert "train.lr; 3 rounds on 1 draw, then 9 rounds on 1 draw" in capsys.readouterr().out
    assert not Path("runs").exists()
    assert main(given) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].startswith("next: fairmean compare data.name=")
    assert shown.splitlines()[-1].endswith("--seeds 1-20")
    assert main([*given, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert f"mean:train.lr={result['chosen']['mean']['train.lr']:g}" in result["command"]
    assert main([*given, "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("method,stage,spec")
    assert len(lines) == len(result["records"]) + 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--by", "averge"], "did you mean 'average'"),
        (["--budget", "2"], "needs at least 6 runs of 9 rounds on 3 draws"),
        (["--budget", "many"], "whole number of runs"),
        (["--seeds", "3-7"], "seeds 3, 4, 5: a draw that settings are chosen on cannot be reported too"),
        (["--seeds", "1", "--compare-seeds", "1"], "seeds 1: a draw"),
        (["--methods", "mean:train.lr=0.1"], "has nothing to search"),
        (["--methods", "meen"], "meen"),
        (["data.validation=0"], "needs samples to judge by"),
        (["data.validation=1.5"], "data.validation"),
        (["grid.train.lr=[0.1,0.2]"], "[grid]"),
        (["method.name=qffl"], "takes its methods by name"),
        (["train.rounds=0"], "train.rounds"),
    ],
)
def test_bad_input_is_one_line(small, capsys, more, said):
    assert main(["tune", *words(small), "--quiet", *more]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_nothing_can_be_held_out(here, capsys):
    x, y = np.eye(8, dtype=np.float32), np.arange(8) % 2
    np.savez(
        "tiny.npz", x_train=x, y_train=y, x_test=x, y_test=y, clients_train=np.arange(8), clients_test=np.arange(8)
    )
    assert main(["tune", "data.name=tiny.npz", "partition.name=given", "--methods", "mean", "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "data.validation" in error
    assert len(error.splitlines()) == 1


def test_as_good_as_the_whole_grid_at_a_third_of_its_cost(here):
    """A small version of benchmarks/tuning.py, on the embedded data."""
    source = importlib.util.spec_from_file_location("tuning_benchmark", ROOT / "benchmarks/tuning.py")
    benchmark = importlib.util.module_from_spec(source)
    source.loader.exec_module(benchmark)
    settings = benchmark.SETTINGS | {
        "train.rounds": 18,
        "run.eval_every": 18,
        "model.name": "linear",
        "train.batch": 16,
    }
    for name in ("mean", "fedavg"):
        (row,) = benchmark.rows(name, (2001, 2002, 2003), settings | {"run.name": "tune"}, ["average"], None)
        assert row["steps_apart"] <= 1
        assert row["tune_rounds"] <= row["grid_rounds"] / 3
        assert float(row["points_lost"]) < 5


def test_the_stored_comparison_with_the_whole_grid():
    """What the docs say of results/tune-against-grid.csv."""
    with open(ROOT / "results/tune-against-grid.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    alone = [row for row in rows if int(row["grid_settings"]) == 9]
    joint = [row for row in rows if row not in alone]
    assert len({row["method"] for row in alone}) == 6
    assert len(alone) == 36
    assert all(int(row["steps_apart"]) <= 1 for row in alone)
    assert all(3 * int(row["tune_rounds"]) <= int(row["grid_rounds"]) for row in alone)
    assert all(5 * int(row["tune_rounds"]) <= int(row["grid_rounds"]) for row in joint)
    assert np.mean([float(row["points_lost"]) for row in joint]) == pytest.approx(1.05, abs=0.01)
    assert max(float(row["points_lost"]) for row in joint) < 6
