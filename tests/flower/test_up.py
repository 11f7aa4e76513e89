"""'fairmean flower new' and 'fairmean flower up', as somebody types them."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import fairmean
from fairmean.flower.processes import Process, stop
from fairmean.flower.round_lines import RoundLines
from fairmean.flower.template import FILES, app_name, write
from fairmean.terminal.main import main
from tests.flower.federations import WAIT, nobody_left, parameters, simulated, small_app, until, with_mark

needs_flower = pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower")
needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found by /proc")


def said(capsys) -> str:
    text: str = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


def test_new_writes_an_app(here, capsys):
    assert main(["flower", "new", "Five Hospitals"]) == 0
    assert "next: fairmean flower up" in capsys.readouterr().out
    folder = here / "Five Hospitals"
    assert {file.name for file in folder.iterdir()} == set(FILES.values())
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "five-hospitals"
    config = project["tool"]["flwr"]["app"]["config"]
    assert config["method"] == "fairmean:kappa=1"
    server = (folder / "server_app.py").read_text()
    assert set(re.findall(r'settings\["(.*?)"\]', server)) == set(config)
    for file in folder.glob("*.py"):
        compile(file.read_text(), file.name, "exec")
    assert "$" not in (folder / "README.md").read_text() + (folder / "pyproject.toml").read_text()


def test_new_as_json(here, capsys):
    assert main(["flower", "new", "app", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]) == len(FILES)


def test_names():
    assert [app_name(Path(name)) for name in ("x", "A b_c", "3 wards", "…")] == ["x", "a-b-c", "app-3-wards", "app"]


def test_a_line_for_every_round(here, capsys):
    """The listener speaks of any run, the simulator's included."""
    logger = logging.getLogger("fairmean.flower")
    handlers, level = list(logger.handlers), logger.level
    train = {"rounds": 2, "device": "cpu"}
    try:
        for method in ({"name": "mean"}, {"name": "median"}):
            fairmean.run(method=method, model={"name": "linear"}, train=train, listeners=[RoundLines()])
        logger.warning("something odd")
    finally:
        logger.handlers[:], logger.level = handlers, level
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" · ")[0].partition("/run/")[0] for line in lines] == [
        *[
            "fairmean: run folder runs",
            "fairmean: round 1/2",
            "fairmean: round 2/2",
            "fairmean: finished after 2 rounds",
        ]
        * 2,
        "fairmean: something odd",
    ]
    assert re.fullmatch(
        r"fairmean: round 1/2 · average [\d.]+ · worst [\d.]+ · loss [\d.]+ · 10 of 10 clients · [\d.]+ s", lines[1]
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["new"], "name a folder"),
        (["new", "full"], "'full' holds something already; name a folder that is new or empty"),
        (["new", "file"], "'file' is a file"),
        (["new", "file/app"], "cannot be written"),
        (["new", "a", "b"], "'b' is a second folder"),
        (["new", "a", "--tls"], "'--tls' belongs to 'fairmean flower up'"),
        (["new", "a", "method=mean"], "'method=mean' belongs to 'fairmean flower up'"),
        (["up", "nowhere"], "'nowhere' is no folder with a Flower app; 'fairmean flower new DIR' writes one"),
        (["up", "full"], "'full' holds no pyproject.toml"),
        (["up", "other"], "has no section [tool.flwr.app.components]"),
        (["up", "broken"], "cannot be read"),
        (["up", "app", "--clients", "0"], "--clients 0: a federation on one machine has 1 to 64 clients"),
        (["up", "app", "methd=mean"], "did you mean 'method'?"),
        (["up", "app", "lr=fast"], "lr = 'fast': must be a number, as 0.1 is"),
        (["up", "app", "clients=1.5"], "clients = '1.5': must be a whole number, as 3 is"),
        (["up", "app", "--clients", "3", "clients=4"], "clients=4 does not fit --clients 3"),
    ],
)
def test_mistakes_are_one_line(here, capsys, words, why):
    (here / "full").mkdir()
    (here / "full" / "thing").touch()
    (here / "file").touch()
    for name, text in {"other": "[project]\n", "broken": "[["}.items():
        (here / name).mkdir()
        (here / name / "pyproject.toml").write_text(text)
    write(here / "app")
    assert main(["flower", *words]) == 2
    assert why in said(capsys)


@needs_flower
@needs_proc
def test_an_app_that_fails_is_named_with_its_log(here, capsys, monkeypatch):
    app = small_app(here / "app")
    server = app / "server_app.py"
    server.write_text(
        server.read_text().replace("    settings = ", '    raise RuntimeError("out of order")\n    settings = ')
    )
    monkeypatch.setattr("tempfile.tempdir", str(here))
    with nobody_left(monkeypatch):
        assert main(["flower", "up", "app", "--clients", "1"]) == 1
    text = said(capsys)
    assert "the app ended too early: RuntimeError: out of order; see " in text
    log = Path(text.strip().rpartition("; see ")[2])
    assert "Traceback" in log.read_text()
    assert {file.suffix for file in log.parent.iterdir()} == {".log"}  # neither keys nor data


@needs_flower
@needs_proc
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_stops_everything(here, monkeypatch, number):
    code, errors = interrupted(small_app(here / "app"), monkeypatch, number)
    assert code == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert "the same command continues where it stopped" in errors
    assert errors.count("\n") == 1


@needs_flower
@needs_proc
@pytest.mark.exhaustive
def test_killed_it_leaves_nobody_behind(here, monkeypatch):
    code, _ = interrupted(small_app(here / "app"), monkeypatch, signal.SIGKILL)
    assert code == -signal.SIGKILL


@needs_flower
@needs_proc
@pytest.mark.exhaustive
def test_the_same_command_goes_on_where_it_stopped(here, monkeypatch, capsys):
    app = small_app(here / "app")
    words = [str(app), "--clients", "2", "num-server-rounds=3", "local-steps=1", "batch=0"]
    code, _ = interrupted(app, monkeypatch, signal.SIGKILL, words, "round 1/3")
    assert code == -signal.SIGKILL
    with nobody_left(monkeypatch):
        assert main(["flower", "up", *words]) == 0
    said_now = capsys.readouterr().out
    assert re.search(r"run folder runs/app/\w+, which goes on with round 2", said_now)
    assert re.findall(r"^round (\d)/3", said_now, re.MULTILINE) == ["2", "3"]
    (folder,) = (here / "runs" / "app").iterdir()
    other = simulated(here / "simulated", {"name": "fairmean", "kappa": 1.0}, 3, clients=2)
    torch.testing.assert_close(parameters(folder), parameters(Path(other.folder)), rtol=0, atol=1e-5)
    assert main(["flower", "up", *words]) == 0  # and what is finished is not made again
    assert "has ended already" in capsys.readouterr().out


def interrupted(
    app: Path, monkeypatch, number: signal.Signals, words: Sequence[str] = (), when: str = "up after"
) -> tuple[int, str]:
    """Start a federation from the command line, and send a signal when it says a word: that it is up."""
    with nobody_left(monkeypatch), open(app.parent / "errors", "wb") as errors, open(app.parent / "out", "wb") as out:
        command = [sys.executable, "-m", "fairmean", "flower", "up", *(words or [str(app), "--clients", "2"])]
        own = os.environ | {"TMPDIR": str(app.parent)}  # who is killed cannot clean up
        listening = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also if these tests do not
        process = subprocess.Popen(
            command, stdout=out, stderr=errors, start_new_session=True, env=own, preexec_fn=listening
        )
        try:
            until(lambda: when in (app.parent / "out").read_text() or process.poll() is not None)
            os.kill(process.pid, number)
            process.wait(WAIT)
        finally:
            process.kill()
        if number == signal.SIGKILL:  # those that are left notice it by themselves
            until(lambda: not with_mark(os.environ["FAIRMEAN_TEST"]), 30)
    return process.returncode, (app.parent / "errors").read_text()


def test_an_interruption_in_the_moment_of_a_start_is_not_lost(tmp_path):
    """Python ignores what is raised while it forks; so the signal waits."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("after" if process.alive else "inside"))
    fork = subprocess._fork_exec if hasattr(subprocess, "_fork_exec") else None
    process = Process("sleep", ["sleep", "60"], tmp_path / "log", os.environ, tmp_path)
    try:
        with pytest.MonkeyPatch.context() as patch:

            def meanwhile(*arguments):
                os.kill(os.getpid(), signal.SIGTERM)
                assert heard == []
                return fork(*arguments)

            patch.setattr(subprocess, "_fork_exec", meanwhile)
            process.start()
        assert heard == ["after"]
        assert process.alive  # it did not inherit the waiting signal
        stop([process])
        assert process.returncode == -signal.SIGTERM  # and listens to one of its own
    finally:
        signal.signal(signal.SIGTERM, before)
        stop([process])
