"""Whoever listens to a run hears what its folder says; whoever raises, loses nothing and is blamed for nothing else."""

from __future__ import annotations

import csv
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

import fairmean
from fairmean.errors import Busy, Diverged, UserCodeError, UserError
from fairmean.experiments import session
from fairmean.experiments.config import parse
from fairmean.experiments.folder import RunFolder
from fairmean.experiments.identity import folder_of, resolve
from fairmean.experiments.metrics import finished
from fairmean.experiments.reading import Run
from fairmean.experiments.recorder import Recorder
from fairmean.terminal.main import main
from fairmean.theory.measure.monitor import MEASURED

pytestmark = pytest.mark.usefixtures("here")


class Tape(fairmean.Listener):
    """Keeps every event; raises ``error`` when an event of the kind ``at`` comes for the ``number``-th time."""

    def __init__(self, at=None, number=1, error=None):
        self.events, self.at, self.left, self.error = [], at, number, error

    def hear(self, event):
        self.events.append(event)
        if self.at is type(event):
            self.left -= 1
            if self.left == 0:
                raise self.error

    started = round_ended = checkpointed = ended = hear

    @property
    def kinds(self):
        return [type(event).__name__ for event in self.events]

    def of(self, kind):
        return [event for event in self.events if type(event) is kind]


def settings(own, **more):
    fixed = {"data.name": own, "model.name": "linear", "train.device": "cpu", "train.rounds": 6, "run.eval_every": 4}
    return fixed | {"train.participation": 0.5, "train.batch": 8} | more


def rows(folder):
    with open(Path(folder) / "clients.csv", newline="") as file:
        return list(csv.DictReader(file))


def as_rows(event, regular):
    """The rows of the long table that a round stands for, by its event."""
    took_part = {client: place for place, client in enumerate(event.clients.tolist())}
    every = range(len(regular)) if event.accuracy is not None else took_part
    return [
        {
            "round": str(event.round),
            "client": str(client),
            "regular": str(int(regular[client])),
            "loss": str(event.losses[took_part[client]]) if client in took_part else "",
            "weight": str(event.weights[took_part[client]])
            if client in took_part and event.weights is not None
            else "",
            "accuracy": "" if event.accuracy is None else str(event.accuracy[client]),
            "own_accuracy": "" if event.own_accuracy is None else str(event.own_accuracy[client]),
        }
        for client in every
    ]


# What is heard


@pytest.mark.parametrize("method", ["fairmean", "median"])
def test_the_events_say_what_the_table_says(own, method):
    tape = Tape()
    result = fairmean.run(listeners=[tape], **settings(own, **{"method.name": method}))
    assert tape.kinds == ["RunStarted", "Checkpointed", *["RoundEnded"] * 6, "Checkpointed", "RunEnded"]
    started, ended = tape.events[0], tape.events[-1]
    assert (started.start, started.resumed, started.rounds, started.clients) == (0, False, 6, 10)
    assert started.regular.tolist() == result.regular.tolist()
    assert started.run.config == result.config
    assert started.run.folder == result.folder
    assert {event.run for event in tape.events} == {started.run}
    assert [event.round for event in tape.of(fairmean.Checkpointed)] == [0, 6]
    assert tape.of(fairmean.Checkpointed)[0].path == result.folder / "checkpoint.pt"
    rounds = tape.of(fairmean.RoundEnded)
    assert [event.round for event in rounds] == list(range(6))
    assert [event.round for event in rounds if event.accuracy is not None] == [0, 4]
    told = [row for event in [*rounds, ended.last] for row in as_rows(event, started.regular)]
    assert told == rows(result.folder)
    assert all((event.weights is None) == (method == "median") for event in rounds)
    assert ended.summary == result.summary
    assert ended.last.metrics == {name: result.summary[name] for name in ended.last.metrics}
    assert (ended.rounds, ended.together, ended.found) == (6, 1, False)
    assert ended.seconds > 0


def test_a_run_that_ended_before_is_told_in_one_event(own):
    result = fairmean.run(**settings(own))
    tape = Tape()
    fairmean.run(listeners=[tape], **settings(own))
    assert tape.kinds == ["RunEnded"]
    (event,) = tape.events
    assert event.found
    assert event.last is None
    assert event.summary == result.summary
    assert event.run.folder == result.folder


def test_a_run_that_diverges(own):
    wild = settings(own, **{"model.name": "mlp", "train.lr": 1e30, "train.rounds": 20})
    for found in (False, True):
        tape = Tape()
        with pytest.raises(Diverged):
            fairmean.run(listeners=[tape], **wild)
        assert tape.events[-1].summary["status"] == "diverged"
        assert tape.events[-1].found is found
        assert found == (len(tape.events) == 1)


def test_what_the_monitor_measures(own):
    tape = Tape()
    plain = {"train.participation": 1.0, "train.batch": 0, "theory": True}
    result = fairmean.run(listeners=[tape], **settings(own, **plain))
    rounds = [*tape.of(fairmean.RoundEnded), tape.events[-1].last]
    with open(result.folder / "theory.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["round"]) for row in table] == [event.round for event in rounds]
    for row, event in zip(table, rounds, strict=True):
        assert list(event.measured) == list(MEASURED)
        for name, value in event.measured.items():
            assert row[name] == ("" if np.isnan(value) else repr(value))


def test_without_theory_nothing_is_measured(own):
    tape = Tape()
    fairmean.run(listeners=[tape], **settings(own))
    assert all(event.measured is None for event in tape.of(fairmean.RoundEnded))


def test_what_is_heard_cannot_be_written_to(own):
    tape = Tape()
    fairmean.run(listeners=[tape], **settings(own))
    event = tape.of(fairmean.RoundEnded)[0]
    for array in (event.clients, event.losses, event.weights, event.accuracy, tape.events[0].regular):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize("together", [1, 10])
def test_a_comparison_tells_of_every_run(own, together):
    known = {"methods": ["mean", "krum:f=1", "mean"], "attacks": ["none", "pairwise"], "together": together}
    tape = Tape()
    made = fairmean.compare(listeners=[tape], **known, **settings(own))
    for record in made.records:
        mine = Tape()
        mine.events = [event for event in tape.events if str(event.run.folder) == record["folder"]]
        assert mine.kinds == ["RunStarted", "Checkpointed", *["RoundEnded"] * 6, "Checkpointed", "RunEnded"]
        started, ended = mine.events[0], mine.events[-1]
        assert started.run.config.method.name == record["method"].split()[0]
        told = [row for event in [*mine.of(fairmean.RoundEnded), ended.last] for row in as_rows(event, started.regular)]
        assert told == rows(record["folder"])
        assert ended.summary["average"] == record["average"]
        assert ended.together == (4 if together > 1 else 1)
    again = Tape()
    fairmean.compare(listeners=[again], **known, **settings(own))
    assert again.kinds == ["RunEnded"] * 4


def test_several_listeners_in_their_order(own):
    heard = []

    class Named(fairmean.Listener):
        def __init__(self, name):
            self.name = name

        def round_ended(self, event):
            heard.append((event.round, self.name))

    fairmean.run(listeners=(Named(name) for name in "ab"), **settings(own, **{"train.rounds": 2}))
    assert heard == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


# Raising

KINDS = {
    fairmean.RunStarted: 0,
    fairmean.RoundEnded: 3,
    fairmean.Checkpointed: 0,
    fairmean.RunEnded: 6,
}
"""After the first event of a kind, or the third RoundEnded: the round of the checkpoint that there is."""


def assert_same(one, other):
    for name in ("clients.csv", "summary.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    first, second = (RunFolder(folder).load("cpu") for folder in (one, other))
    assert torch.equal(first["w"], second["w"])


@pytest.mark.parametrize("error", [RuntimeError("mine"), UserCodeError("mine"), Diverged("mine"), SystemExit("mine")])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_listener_that_raises_loses_nothing(own, kind, error):
    whole = fairmean.run(**settings(own), **{"run.dir": "whole"})
    tape, other = Tape(kind, 3 if kind is fairmean.RoundEnded else 1, error), Tape()
    with pytest.raises(type(error), match="mine") as raised:
        fairmean.run(listeners=[tape, other], **settings(own))
    assert raised.value is error
    assert error.__context__ is None
    assert other.events == tape.events[:-1]  # nobody is told anything more
    folder = Path("runs/run") / whole.folder.name
    assert RunFolder(folder).load("cpu")["round"] == KINDS[kind]
    again = Tape()
    result = fairmean.run(listeners=[again], **settings(own))
    assert_same(result.folder, whole.folder)
    if kind is not fairmean.RunEnded:
        assert again.events[0].start == KINDS[kind]
        assert again.events[0].resumed
        assert [event.round for event in again.of(fairmean.RoundEnded)] == list(range(KINDS[kind], 6))


@pytest.mark.parametrize("error", [RuntimeError("mine"), UserCodeError("mine"), Diverged("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("together", [1, 10])
def test_a_listener_that_raises_in_a_comparison(own, together, error):
    known = {"methods": ["mean", "krum:f=1"], "attacks": ["none"], "together": together}
    whole = fairmean.compare(**known, **settings(own), **{"run.dir": "whole"})
    tape = Tape(fairmean.RoundEnded, 5, error)
    with pytest.raises(type(error)) as raised:
        fairmean.compare(listeners=[tape], **known, **settings(own))
    assert raised.value is error
    event = tape.events[-1]
    kept = RunFolder(event.run.folder).load("cpu")["round"]
    assert kept == event.round + (1 if together == 1 else 2)  # together, the round under way was finished first
    made = fairmean.compare(**known, **settings(own))
    for one, other in zip(made.records, whole.records, strict=True):
        assert_same(Path(one["folder"]), Path(other["folder"]))


def test_a_listener_that_raises_in_the_last_round_of_runs_together(own):
    known = {"methods": ["mean", "krum:f=1"], "attacks": ["none"], "together": 10}
    with pytest.raises(ZeroDivisionError):
        fairmean.compare(listeners=[Tape(fairmean.RoundEnded, 12, ZeroDivisionError())], **known, **settings(own))
    tape = Tape()
    fairmean.compare(listeners=[tape], **known, **settings(own))
    assert [event.found for event in tape.events] == [True, True]


MODEL = """
from torch import nn
import fairmean


def make(shape, classes): return nn.Linear(shape[0], classes)


class Bad(fairmean.Listener):
    def round_ended(self, event):
        raise KeyError("mine")
"""


@pytest.mark.usefixtures("forget_modules")
@pytest.mark.parametrize("together", [1, 10])
def test_the_model_is_not_blamed_for_a_listener_in_its_file(own, here, monkeypatch, together):
    (here / "both.py").write_text(MODEL)
    monkeypatch.syspath_prepend(here)
    from both import Bad  # type: ignore[import-not-found]

    with pytest.raises(KeyError, match="mine"):
        fairmean.compare(
            methods="mean", attacks="none", together=together, listeners=[Bad()],
            **settings(own, **{"model.name": "both:make"}),
        )  # fmt: skip


def test_a_report_that_raises_loses_nothing(own):
    def report(progress):
        if progress.round == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fairmean.run(report=report, **settings(own))
    (folder,) = Path("runs/run").iterdir()
    assert RunFolder(folder).load("cpu")["round"] == 3


def test_the_folder_is_free_after_a_listener_raised(own):
    with pytest.raises(RuntimeError):
        fairmean.run(listeners=[Tape(fairmean.RoundEnded, 2, RuntimeError())], **settings(own))
    (folder,) = Path("runs/run").iterdir()
    with RunFolder(folder), pytest.raises(Busy):
        fairmean.run(**settings(own))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Tape(), "an object of 'Tape' is not a list"),
        (3, "an object of 'int' is not a list"),
        ([print], "is not a fairmean.Listener; derive its class"),
        ([Tape], "the class 'Tape' is not a fairmean.Listener"),
    ],
)
@pytest.mark.parametrize("call", [fairmean.run, fairmean.compare])
def test_what_is_no_listener_is_refused(own, call, given, said):
    with pytest.raises(UserError, match=said) as error:
        call(listeners=given, **settings(own))
    assert "\n" not in str(error.value)
    assert not Path("runs").exists()


# A recorder without a simulator


def test_a_recorder_needs_events_alone(own):
    config = resolve(
        parse({"data": {"name": own}, "train": {"rounds": 2, "device": "cpu"}, "attack": {"name": "none"}})
    )
    folder = RunFolder(folder_of(config))
    regular = np.ones(3, dtype=bool)
    accuracy = np.array([50.0, 60.0, 70.0])
    with folder:
        recorder = Recorder(folder, config)
        run = recorder.run
        assert run == Run(folder.path, config)
        assert recorder.last_checkpoint() is None
        recorder.started(fairmean.RunStarted(run, regular))
        first = fairmean.RoundEnded(run, 0, np.array([0, 2]), np.array([1.0, 3.0]), np.array([0.25, 0.75]))
        recorder.round_ended(first)
        recorder.flush()
        recorder.checkpoint(1, {"w": torch.ones(4), "state": {}})
    with folder:
        recorder = Recorder(folder, config)
        checkpoint = recorder.last_checkpoint()
        assert checkpoint["round"] == 1
        assert checkpoint["w"].tolist() == [1.0] * 4
        recorder.started(fairmean.RunStarted(run, regular, start=1, resumed=True))
        recorder.round_ended(fairmean.RoundEnded(run, 1, np.arange(3), torch.tensor([0.5, 1.0, 2.0])))
        last = fairmean.RoundEnded(run, 2, np.arange(3), np.zeros(3), accuracy=accuracy, own_accuracy=accuracy)
        recorder.ended(fairmean.RunEnded(run, finished(accuracy, accuracy, regular), last, rounds=1, seconds=1.0))
    assert recorder.not_finite is None
    table = [tuple(row.values()) for row in rows(folder.path)]
    assert table[:3] == [
        ("0", "0", "1", "1.0", "0.25", "", ""),
        ("0", "2", "1", "3.0", "0.75", "", ""),
        ("1", "0", "1", "0.5", "", "", ""),
    ]
    assert table[-1] == ("2", "2", "1", "0.0", "", "70.0", "70.0")
    assert folder.summary()["worst"] == 50.0
    found = fairmean.run(config.to_dict())  # it is a run like any other
    assert found.accuracy.tolist() == accuracy.tolist()


def test_a_recorder_notices_what_is_not_finite(own):
    config = resolve(parse({"data": {"name": own}, "train": {"rounds": 200, "device": "cpu"}}))
    with RunFolder(folder_of(config)) as folder:
        recorder = Recorder(folder, config)
        recorder.started(fairmean.RunStarted(recorder.run, np.ones(1, dtype=bool)))
        for t in range(60):
            loss = np.array([np.nan if t in (30, 40) else 1.0])
            recorder.round_ended(fairmean.RoundEnded(recorder.run, t, np.arange(1), loss))
        assert recorder.not_finite == (30, "step")
        assert recorder.checkpoint(60, {"w": torch.tensor([np.inf]), "state": {}}) is None


# The log


def messages(caplog):
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_the_log(own, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, "fairmean")
    with pytest.raises(RuntimeError):
        fairmean.run(listeners=[Tape(fairmean.RoundEnded, 2, RuntimeError())], **settings(own))
    (folder,) = Path("runs/run").iterdir()
    assert messages(caplog) == [
        ("INFO", f"Run {folder} starts: fairmean on {own}, 10 clients, 6 rounds, float32 on cpu."),
        ("DEBUG", f"Run {folder} can go on with round 0 from its checkpoint."),
        ("DEBUG", f"Run {folder} can go on with round 2 from its checkpoint."),
    ]
    caplog.clear()
    fairmean.run(**settings(own))
    said = messages(caplog)
    assert said[0] == ("INFO", f"Run {folder} goes on with round 2 of 6.")
    assert said[-1][1].startswith(f"Run {folder} finished 4 rounds in ")
    caplog.clear()
    fairmean.run(**settings(own))
    assert messages(caplog) == [("INFO", f"Run {folder} had finished already; it is not computed again.")]
    caplog.clear()
    with pytest.raises(Diverged):
        fairmean.run(**settings(own, **{"model.name": "mlp", "train.lr": 1e30, "train.rounds": 20}))
    assert " diverged in round " in messages(caplog)[-1][1]


def test_runs_together_are_logged(own, caplog):
    caplog.set_level(logging.INFO, "fairmean")
    fairmean.compare(methods=["mean", "krum:f=1"], attacks="none", together=10, **settings(own))
    said = [text for _, text in messages(caplog)]
    assert "The next 2 of the runs advance together from round 0." in said
    assert sum(" finished 6 rounds in " in text for text in said) == 2


def test_the_log_on_the_command_line(own, capsys):
    words = [f"{key}={value}" for key, value in settings(own).items()]
    assert main(["run", *words, "run.name=quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["run", *words, "--verbose"]) == 0
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("fairmean: Run runs/run/")
    assert " finished 6 rounds in " in last
    assert main(["compare", *words, "-v", "--methods", "mean", "--attacks", "none"]) == 0
    assert "mean on " in capsys.readouterr().err
    assert main(["run", *words]) == 0
    assert capsys.readouterr().err == ""
    assert logging.getLogger("fairmean").level == logging.NOTSET


def test_a_checkpoint_on_the_way_is_told_after_its_round(own, monkeypatch):
    monkeypatch.setattr(session, "CHECKPOINT_SECONDS", -1.0)
    tape = Tape()
    fairmean.run(listeners=[tape], **settings(own, **{"train.rounds": 2}))
    kinds = ["RunStarted", "Checkpointed", *["RoundEnded", "Checkpointed"] * 2, "Checkpointed", "RunEnded"]
    assert tape.kinds == kinds


def test_names_of_settings_are_not_taken_for_arguments(own, capsys):
    """'fairmean compare listeners=3' is a setting that does not exist."""
    for word in ("listeners=3", "report=3", "methods=mean", "together=2", "source=x"):
        assert main(["compare", word]) == 2
        assert "unknown config key" in capsys.readouterr().err
