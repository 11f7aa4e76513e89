"""'fairmean completion': the files are those of the parser, and shells complete with them, as somebody types."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairmean.terminal.main import main
from fairmean.terminal.verbs.completion import SHELLS
from tests.terminal.made import MadeRun

ROOT = Path(__file__).parents[2]
FILES = ROOT / "src" / "fairmean" / "terminal" / "completions"


@pytest.mark.skipif(importlib.util.find_spec("shtab") is None, reason="shtab is not installed")
def test_the_files_are_up_to_date():
    """In a process of its own, for what other tests register is no part of fairmean."""
    script = (
        "import sys; sys.path.insert(0, 'scripts'); import json, make_completions as m; "
        f"print(json.dumps({{shell: m.completion(shell) for shell in {SHELLS}}}))"
    )
    made = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    for shell, text in json.loads(made.stdout).items():
        stored = (FILES / f"fairmean.{shell}").read_text(encoding="utf-8")
        assert stored == text, f"{shell}: run 'python scripts/make_completions.py'"


@pytest.mark.parametrize("shell", SHELLS)
def test_it_is_printed(shell, capsys):
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert text == (FILES / f"fairmean.{shell}").read_text(encoding="utf-8")
    assert main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shell": shell, "text": text}


START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'fairmean() {{ echo "<$*>"; }}; . {file}'),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -U compinit; compinit -u -D; zstyle ':completion:*' insert-tab false; "
        'fairmean() {{ print -r -- "<$*>"; }}; eval "$(cat {file})"',
    ),
}


class Shell:
    """A shell on a terminal, into which a test types."""

    def __init__(self, name: str, folder: Path) -> None:
        command, start = START[name]
        self._leader, follower = pty.openpty()
        self._process = subprocess.Popen(
            command,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            cwd=folder,
            env={**os.environ, "TERM": "dumb", "PS1": "$ ", "HISTFILE": "/dev/null"},
            start_new_session=True,
        )
        os.close(follower)
        self.type(start.format(file=FILES / f"fairmean.{name}") + "; echo rea''dy\n", "ready")

    def type(self, text: str, until: str) -> str:
        """Type it, and read until a pattern is on the screen."""
        os.write(self._leader, text.encode())
        seen, deadline = "", time.monotonic() + 30
        while time.monotonic() < deadline:
            if select.select([self._leader], [], [], 0.1)[0]:
                seen += os.read(self._leader, 4096).decode(errors="replace")
            if match := re.search(until, seen):
                return match[0]
        raise AssertionError(f"{until!r} did not appear in {seen!r}")

    def completed(self, typed: str) -> str:
        """What the command is given when TAB is pressed after these words, and Enter."""
        return self.type(f"{typed}\t\n", r"<[^$>]*>").strip("<>").rstrip()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._leader)


CASES = {
    "fairmean repr": "reproduce",
    "fairmean list aggr": "list aggregators",
    "fairmean run --dry": "run --dry-run",
    "fairmean run train.partic": "run train.participation=",
    "fairmean run method.name=qffl-n": "run method.name=qffl-normalised",
    "fairmean run seed=2 attack.name=furth": "run seed=2 attack.name=furthest",
    "fairmean compare --methods fairmean-sp": "compare --methods fairmean-split",
    "fairmean compare --methods mean,lfi": "compare --methods mean,lfighter",
    "fairmean compare --attacks none,furt": "compare --attacks none,furthest",
    "fairmean show abc": "show abcdef123456",
    "fairmean export abcdef123456 --to tensor": "export abcdef123456 --to tensorboard",
}


@pytest.fixture
def place(tmp_path):
    """A folder with a run in it."""
    MadeRun(tmp_path / "runs" / "made" / "abcdef123456").finish()
    return tmp_path


def is_there(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.mark.parametrize("name", START)
def test_completing_as_somebody_types(name, place):
    is_there(name)
    shell = Shell(name, place)
    try:
        assert {typed: shell.completed(typed) for typed in CASES} == CASES
    finally:
        shell.close()


def test_completing_in_fish(place):
    """It says by itself what TAB would give."""
    is_there("fish")
    for typed, words in CASES.items():
        script = f"source {FILES / 'fairmean.fish'}; complete -C '{typed}'"
        answer = subprocess.run(["fish", "--no-config", "-c", script], cwd=place, capture_output=True, text=True)
        assert words.split()[-1] in [line.partition("\t")[0] for line in answer.stdout.splitlines()], typed
