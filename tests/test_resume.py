"""Interrupted at any moment, a run ends as if it had not been; two processes do not share a folder."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import fairmean
from fairmean.errors import Busy, Diverged, UserError
from fairmean.experiments import run as experiment
from fairmean.experiments import session
from fairmean.experiments.events import Progress
from fairmean.experiments.folder import RunFolder
from fairmean.terminal.main import main
from tests.own import turns

pytestmark = pytest.mark.usefixtures("here")

CODE = """
import sys, torch
torch.set_num_threads(1)
import fairmean.experiments.session
fairmean.experiments.session.CHECKPOINT_SECONDS = 0.0
from fairmean.terminal.main import main
sys.exit(main(sys.argv[1:]))
"""

FULL = ["model.name=linear", "train.rounds=60"]
LOCAL = [
    "model.name=linear",
    "train.rounds=100",
    "train.batch=16",
    "train.participation=0.5",
    "train.local_steps=3",
    "train.lr_decay=0.99",
    "attack.name=furthest",
    "attack.rho=0.7",
]
OWN = [
    *LOCAL,
    "--import",
    "my_turns",
    "method.objective=turns",
    "method.scale=turns",
    "method.aggregator=rfa",
    "server.name=momentum",
    "server.beta=0.5",
]


def run(*arguments, **settings):
    return experiment.run(*arguments, **settings)


def start(*settings):
    """The command in a process of its own."""
    env = os.environ | {"PYTHONPATH": str(Path(fairmean.__file__).parents[1])}
    command = [sys.executable, "-c", CODE, "run", "train.device=cpu", *settings]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(process, pattern, newer_than=0.0):
    """The file that matches, once it is there, and was written after that time; None if the process ends before."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        for file in Path("runs").glob(pattern):
            if file.stat().st_mtime > newer_than:
                return file
        if process.poll() is not None:
            return None
        time.sleep(0.001)
    process.kill()
    raise AssertionError(f"no {pattern} within a minute")


def ended(process):
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of a run that nothing disturbs, in this process; computed once."""
    place = tmp_path_factory.mktemp("whole")

    def folder(settings):
        name = str(hash(tuple(settings)))
        assert main(["run", "train.device=cpu", f"run.dir={place}", f"run.name=s{name}", "--quiet", *settings]) == 0
        (found,) = (place / f"s{name}").iterdir()
        return found

    return folder


def assert_same(one, other):
    """Bitwise: the model, the table, the summary."""
    assert one.name == other.name
    saved = [torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (one, other)]
    assert saved[0]["round"] == saved[1]["round"]
    assert saved[0]["w"].numpy().tobytes() == saved[1]["w"].numpy().tobytes()
    for name in ("clients.csv", "summary.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    with np.load(one / "partition.npz") as first, np.load(other / "partition.npz") as second:
        assert all((first[name] == second[name]).all() for name in first.files)
    assert {p.name for p in one.iterdir()} == {p.name for p in other.iterdir()}


@pytest.mark.usefixtures("forget_modules", "registries")
@pytest.mark.parametrize(
    "settings", [FULL, LOCAL, OWN], ids=["full gradients", "batches, participation, local steps", "clients remember"]
)
def test_kill_at_a_random_moment(settings, uninterrupted):
    Path("my_turns.py").write_text(Path(turns.__file__).read_text())
    whole = uninterrupted(settings)
    kills = 0
    for _ in range(2):
        began = time.time()
        process = start(*settings)
        if wait_for(process, "run/*/checkpoint.pt", began):
            delay = random.uniform(0, 0.3)
            print(f"killed {delay:.4f} s after its first checkpoint")  # shown when the test fails
            time.sleep(delay)
        process.kill()
        kills += ended(process)[0] == -signal.SIGKILL
    assert kills, "the run is too short to be killed"
    code, _, err = ended(start(*settings))
    assert (code, err) == (0, "")
    (folder,) = Path("runs/run").iterdir()
    assert_same(folder, whole)


def test_ctrl_c(uninterrupted):
    whole = uninterrupted(FULL)
    process = start(*FULL)
    assert wait_for(process, "run/*/checkpoint.pt")
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert (code, out) == (130, "")
    assert err.count("\n") == 1
    assert err.startswith("fairmean: interrupted")
    (folder,) = Path("runs/run").iterdir()
    assert not (folder / "summary.json").exists()
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["round"] < 60
    code, _, err = ended(start(*FULL))
    assert (code, err) == (0, "")
    assert_same(folder, whole)


class Stop(BaseException):
    """The end of a process, for one that has to live on."""


def stop_at(monkeypatch, number, after):
    """Stop before or after write operation ``number`` of a run; returns the names of the operations, as they come."""
    seen: list[str] = []

    def wrap(name):
        original = getattr(RunFolder, name)

        def wrapped(self, *arguments):
            seen.append(name)
            mine = len(seen) == number
            if mine and not after:
                raise Stop
            result = original(self, *arguments)
            if mine:
                raise Stop
            return result

        return wrapped

    for name in ("write", "append", "cut", "close_tables", "save"):
        monkeypatch.setattr(RunFolder, name, wrap(name))
    return seen


def stopped_everywhere(settings):
    """Results folders of runs that were stopped before and after each of their write operations, with the place."""
    with pytest.MonkeyPatch.context() as patch:
        operations = stop_at(patch, 0, after=False)
        with contextlib.suppress(Diverged):
            run(settings, **{"run.dir": "count"})
    assert {"write", "append", "cut", "close_tables", "save"} == set(operations)
    for number in range(1, len(operations) + 1):
        for after in (False, True):
            place = f"{'after' if after else 'before'} write {number}, {operations[number - 1]}"
            with pytest.MonkeyPatch.context() as patch:
                stop_at(patch, number, after)
                with pytest.raises(Stop):
                    run(settings, **{"run.dir": place})
            yield place


@pytest.fixture
def always_checkpoint(monkeypatch):
    monkeypatch.setattr(session, "CHECKPOINT_SECONDS", -1.0)


def tiny(own, **train):
    train = {"rounds": 3, "device": "cpu", "batch": 8, "participation": 0.5} | train
    return {"data": {"name": own}, "model": {"name": "linear"}, "train": train}


@pytest.mark.usefixtures("always_checkpoint")
def test_stopped_before_or_after_any_write(own):
    """Not at a random moment but at every one that matters: between any two changes on disk."""
    settings = tiny(own)
    whole = run(settings, **{"run.dir": "whole"}).folder
    failures = []
    for place in stopped_everywhere(settings):
        try:
            assert_same(run(settings, **{"run.dir": place}).folder, whole)
        except (AssertionError, OSError) as error:
            failures.append(f"stopped {place}: {type(error).__name__} {str(error).splitlines()[0]}")
    assert not failures, "\n".join(failures)


@pytest.mark.usefixtures("always_checkpoint")
def test_a_diverging_run_stopped_before_or_after_any_write(own):
    settings = tiny(own, lr=1e8, rounds=40) | {"model": {"name": "mlp"}}
    with pytest.raises(Diverged) as whole:
        run(settings, **{"run.dir": "whole"})
    (folder,) = Path("whole/run").iterdir()
    failures = []
    for place in stopped_everywhere(settings):
        try:
            with pytest.raises(Diverged) as again:
                run(settings, **{"run.dir": place})
            assert str(again.value) == str(whole.value).replace("whole", place, 1)
            for name in ("clients.csv", "summary.json"):
                assert (Path(place) / "run" / folder.name / name).read_bytes() == (folder / name).read_bytes(), name
        except (AssertionError, OSError) as error:
            failures.append(f"stopped {place}: {type(error).__name__} {str(error).splitlines()[0]}")
    assert not failures, "\n".join(failures)


@pytest.mark.usefixtures("always_checkpoint")
def test_rows_after_the_checkpoint_are_forgotten(own):
    """A table that was flushed further than the checkpoint, with half a row at its end."""
    settings = tiny(own, rounds=6)
    whole = run(settings, **{"run.dir": "whole"}).folder

    def stop(progress):
        if progress.round == 4:
            raise Stop

    with pytest.raises(Stop):
        run(settings, report=stop)
    folder = Path("runs/run") / whole.name
    with open(folder / "clients.csv.part", "a") as table:
        table.write("3,0,1,2.5,0.1,,\n3,1,1,2.")
    assert_same(run(settings).folder, whole)


def test_an_interrupted_report_saves_the_round(own):
    """Without a checkpoint on the way: Ctrl-C between two rounds loses nothing."""
    settings = tiny(own, rounds=6)
    whole = run(settings, **{"run.dir": "whole"}).folder

    def interrupt(progress):
        if progress.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, report=interrupt)
    folder = Path("runs/run") / whole.name
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["round"] == 4
    told: list[Progress] = []
    assert_same(run(settings, report=told.append).folder, whole)
    assert [progress.round for progress in told] == [5, 6]


# Two processes


def test_busy(own, capsys):
    settings = [f"data.name={own}", "model.name=linear", "train.rounds=2", "train.device=cpu"]
    folder = run(tiny(own, rounds=2, batch=0, participation=1.0), **{"run.dir": "whole"}).folder
    mine = Path("runs/run") / folder.name
    with RunFolder(mine):
        assert main(["run", *settings]) == 3
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert f"another process (pid {os.getpid()})" in err
        assert str(mine) in err
        assert {path.name for path in mine.iterdir()} == {"lock"}
        assert main(["run", *settings, "seed=2"]) == 0  # another run is free
    capsys.readouterr()
    assert main(["run", *settings]) == 0
    assert_same(mine, folder)


def test_the_lock_is_released_when_a_run_fails(here):
    folder = RunFolder(here / "some")
    with pytest.raises(RuntimeError), folder:
        raise RuntimeError
    with folder, pytest.raises(Busy):
        RunFolder(here / "some").__enter__()
    with RunFolder(here / "some"):
        pass


def test_two_processes_on_one_run(uninterrupted):
    first = start(*FULL)
    assert wait_for(first, "run/*/checkpoint.pt")
    first.send_signal(signal.SIGSTOP)  # so that it is still at work when the other comes
    try:
        code, out, err = ended(start(*FULL))
    finally:
        first.send_signal(signal.SIGCONT)
    assert (code, out) == (3, "")
    assert err.count("\n") == 1
    assert f"pid {first.pid}" in err
    assert ended(first)[0] == 0
    (folder,) = Path("runs/run").iterdir()
    assert_same(folder, uninterrupted(FULL))


def test_sigterm_saves_like_ctrl_c(uninterrupted):
    whole = uninterrupted(FULL)
    process = start(*FULL)
    assert wait_for(process, "run/*/checkpoint.pt")
    process.send_signal(signal.SIGTERM)
    code, out, err = ended(process)
    assert (code, out) == (143, "")
    assert err.count("\n") == 1
    assert "SIGTERM" in err
    assert "the same command continues" in err
    code, _, err = ended(start(*FULL))
    assert (code, err) == (0, "")
    (folder,) = Path("runs/run").iterdir()
    assert_same(folder, whole)


@pytest.mark.usefixtures("always_checkpoint")
def test_a_shortened_table_is_refused(own):
    """It was filled up with NUL bytes."""

    def stop(progress):
        if progress.round == 2:
            raise Stop

    with pytest.raises(Stop):
        run(tiny(own, rounds=4), report=stop)
    (part,) = Path("runs/run").glob("*/clients.csv.part")
    part.write_bytes(part.read_bytes()[:-5])
    before = part.read_bytes()
    with pytest.raises(UserError, match=r"clients\.csv\.part' has \d+ bytes, where the checkpoint says \d+; remove"):
        run(tiny(own, rounds=4))
    assert part.read_bytes() == before


def test_a_temporary_file_of_a_killed_process_is_swept(own):
    folder = run(tiny(own, rounds=2), **{"run.dir": "whole"}).folder
    mine = Path("runs/run") / folder.name
    mine.mkdir(parents=True)
    (mine / ".checkpoint.pt.0123abcd.tmp").write_bytes(b"half of it")
    assert_same(run(tiny(own, rounds=2)).folder, folder)


def test_a_folder_that_was_removed_while_it_was_locked_is_made_anew(here, monkeypatch):
    """Another process ended with an error and removed it between the opening of the lock and the locking."""
    folder, original = RunFolder(here / "some"), os.open
    removed = []

    def open_and_lose(path, *rest, **more):
        lock = original(path, *rest, **more)
        if not removed:
            removed.append(path)
            shutil.rmtree(here / "some")
        return lock

    monkeypatch.setattr(os, "open", open_and_lose)
    with folder:
        assert removed
        assert (here / "some" / "lock").exists()
        with pytest.raises(Busy):
            RunFolder(here / "some").__enter__()
