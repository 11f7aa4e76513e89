"""'fairmean export': what a tracker is told, in which order and how often; and real trackers, where there are any."""

from __future__ import annotations

import importlib.util
import json
import math
import sqlite3
import sys
import warnings

import pytest

from fairmean.errors import UserError
from fairmean.export import TRACKERS, export, feeding
from fairmean.terminal.main import main
from tests.terminal.fake_tracker import Fake
from tests.terminal.made import MadeRun, accuracies

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def run(here):
    """A run that has come through four of ten rounds."""
    made = MadeRun(here / "runs" / "made" / "abcdef123456").go_on(4)
    yield made
    made.stop()


def of_kind(kind):
    return [told for told in Fake.told["abcdef123456"] if told[0] == kind]


def test_a_tracker_is_told_every_round_in_order(fake, run):
    run.finish()
    (done,) = export([run.folder], "tensorboard:here:and:there")
    assert (done.status, done.rounds, done.place) == ("finished", 11, "fake here:and:there")
    ((_, name, group, settings),) = of_kind("start")
    assert name == "fairmean pairwise seed 3 abcdef12"
    assert group == "made"
    assert settings["train.rounds"] == 10
    assert [told[1] for told in of_kind("round")] == list(range(11))
    assert [told[1] for told in of_kind("clients")] == [0, 2, 4, 6, 8, 10]
    kinds = [(told[0], told[1]) for told in Fake.told["abcdef123456"]][1:-1]
    assert kinds.index(("clients", 4)) == kinds.index(("round", 4)) - 1
    _, _, labels, values = of_kind("clients")[1]
    assert labels == ["00", "01", "02", "03"]
    assert values["accuracy"][:2] == accuracies(2)[:2]
    assert math.isnan(values["accuracy"][2])
    assert of_kind("round")[2][2] == pytest.approx({"average": 20.5, "variance": 0.25, "worst": 20.0, "loss": 2.8})
    assert set(of_kind("round")[1][2]) == {"loss"}  # not evaluated
    ((_, summary, files),) = of_kind("finish")
    assert summary["status"] == "finished"
    assert files == ["config.toml", "environment.json", "summary.json", "clients.csv"]


def test_exporting_again_tells_only_what_is_new(fake, run):
    run.stop()
    assert export([run.folder], "tensorboard")[0].rounds == 4
    assert export([run.folder], "tensorboard")[0].rounds == 0
    run.finish()
    assert export([run.folder], "tensorboard")[0].rounds == 7
    assert [told[1] for told in of_kind("round")] == list(range(11))
    assert [told[1]["status"] for told in of_kind("finish")] == ["interrupted", "interrupted", "finished"]


def test_following_until_the_end(fake, run, monkeypatch):
    steps = iter([lambda: run.go_on(3), lambda: None, run.finish])
    monkeypatch.setattr(feeding.time, "sleep", lambda seconds: next(steps)())
    (done,) = export([run.folder], "tensorboard", follow=True)
    assert (done.status, done.rounds) == ("finished", 11)
    assert [told[1] for told in of_kind("round")] == list(range(11))
    assert len(of_kind("start")) == len(of_kind("finish")) == 1


def test_a_run_at_work_is_left_at_work(fake, run, capsys):
    assert main(["export", "abc", "--to", "tensorboard:x"]) == 0
    assert "abcdef12  running · 3 new rounds · tensorboard: fake x" in capsys.readouterr().out
    assert main(["export", "abc", "--to", "tensorboard:x", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record == {
        "run": "abcdef123456", "tracker": "tensorboard", "status": "running", "rounds": 0, "place": "fake x",
    }  # fmt: skip


def test_a_name_means_all_its_runs(fake, run, here, capsys):
    MadeRun(here / "runs" / "made" / "fedcba654321").finish()
    assert main(["export", "made", "--to", "tensorboard"]) == 0
    assert set(Fake.told) == {"abcdef123456", "fedcba654321"}


def one_line(capsys, arguments, *says):
    assert main(["export", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    for words in says:
        assert words in err, err


def test_bad_input_is_one_line(run, capsys):
    one_line(capsys, ["nowhere", "--to", "tensorboard"], "there is no run 'nowhere'")
    one_line(capsys, ["abc", "--to", "tensorbord"], "tensorbord", "did you mean 'tensorboard'?")


@pytest.mark.parametrize("name", TRACKERS)
def test_a_library_that_is_missing(name, run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)
    for module in [m for m in sys.modules if m.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    one_line(capsys, ["abc", "--to", name], f"pip install {name}")


def test_what_a_tracker_raises_is_one_line(fake, run, monkeypatch, capsys):
    def refuse(self, run):
        raise RuntimeError("no\nsuch key")

    monkeypatch.setattr(Fake, "start", refuse)
    one_line(capsys, ["abc", "--to", "tensorboard"], "RuntimeError: no such key")


def importable(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


@pytest.fixture
def many(here):
    """A finished run of ten rounds."""
    return MadeRun(here / "runs" / "made" / "abcdef123456").finish()


@importable("tensorboard")
def test_tensorboard_read_back(many, here, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # the second time changes nothing
        assert main(["export", "abc", "--to", "tensorboard:logs"]) == 0
        folder = here / "logs" / "made" / "abcdef123456"
        assert len(list(folder.iterdir())) == 1
        events = EventAccumulator(str(folder))
        events.Reload()
        average = events.Tensors("average") if "average" in events.Tags()["tensors"] else events.Scalars("average")
        assert [point.step for point in average] == [0, 2, 4, 6, 8, 10]
        assert events.Scalars("average")[1].value == pytest.approx(20.5)
        assert events.Scalars("client 01/accuracy")[5].value == pytest.approx(101.0)
        assert len(events.Scalars("loss")) == 11
        assert "clients/accuracy" in events.Tags()["tensors"] + events.Tags()["histograms"]
    assert "tensorboard --logdir logs" in capsys.readouterr().out


@importable("mlflow", "sqlalchemy", "alembic")
def test_mlflow_over_sqlite(many, here, monkeypatch):
    warnings.simplefilter("ignore")  # its own libraries'
    monkeypatch.setenv("MLFLOW_ENABLE_TELEMETRY", "false")
    for _ in range(2):
        (done,) = export([many.folder], "mlflow:sqlite:///here.db")
    assert done.rounds == 0  # the second time
    with sqlite3.connect(here / "here.db") as base:
        count = "select count(*) from metrics where key = ?"
        assert base.execute(count, ["average"]).fetchone() == (6,)
        assert base.execute(count, ["loss"]).fetchone() == (11,)
        assert base.execute("select count(*), max(status) from runs").fetchone() == (1, "FINISHED")
        assert base.execute("select value from params where key = 'method.name'").fetchone() == ("fairmean",)
    base.close()


@importable("wandb")
def test_wandb_offline(many, here, monkeypatch):
    warnings.simplefilter("ignore")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for _ in range(2):
        (done,) = export([many.folder], "wandb")
        assert done.rounds == 11
        folders = list((here / "wandb").glob("offline-run-*"))
        assert len(folders) == 1
        assert folders[0].name.endswith("abcdef123456")
    assert next(folders[0].glob("run-*.wandb")).stat().st_size > 1000


@importable("trackio")
def test_trackio(many, here, monkeypatch):
    warnings.simplefilter("ignore")
    monkeypatch.setenv("TRACKIO_DIR", str(here / "trackio"))
    for module in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, module)  # it reads the setting when it is imported
    for _ in range(2):
        (done,) = export([many.folder], "trackio")
        assert done.rounds == 11
    with sqlite3.connect(here / "trackio" / "fairmean.db") as base:
        steps = base.execute("select step from metrics order by step").fetchall()
    base.close()
    assert [step for (step,) in steps] == list(range(11))


def test_an_unknown_tracker_from_python(run):
    with pytest.raises(UserError, match="unknown tracker 'aim'"):
        export([run.folder], "aim")
