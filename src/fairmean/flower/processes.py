"""Programs that run in the background, each with a log file, and how they are stopped for certain.

Flower's programs start further ones, some of them in sessions of their own: one for the server's side of an app, one
for each message to a client. All of them inherit a mark in their environment, and by that mark they are found again
(on Linux; elsewhere by their process group), also when the one that started them was killed. They are stopped by their
ids, never by a name.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

GRACE = 10.0  # seconds that a process has to end by itself
MARK = "FAIRMEAN_FEDERATION"
_PDEATHSIG = 1  # prctl's number for: send me a signal when my parent ends
_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
_LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None) if _LINUX else None


class Process:
    """A program that runs in the background and writes into ``log``; it can be started again after it has ended."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.starts = 0
        self._mark = uuid.uuid4().hex
        self._environment = {**environment, MARK: self._mark}
        self._folder = folder
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again; what it says is added to its log."""
        with open(self.log, "ab") as log, _held_back():
            self.starts += 1
            self._popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self._folder,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    @property
    def pid(self) -> int:
        """The id of the process that was started last."""
        assert self._popen is not None, f"{self.name} was not started"
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """What it ended with; None while it runs."""
        return None if self._popen is None else self._popen.poll()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._popen is not None and self._popen.poll() is None

    def ended_how(self) -> str:
        """How it ended, in words."""
        code = self.returncode
        if code is None:
            return "still runs"
        if code >= 0:
            return f"ended with code {code}"
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"

    def everything(self) -> dict[int, str]:
        """It and all that it started, as far as they run: the command of each, by process id."""
        if self._popen is None:
            return {}
        self._popen.poll()
        if _LINUX:
            return marked(self._mark)
        try:
            os.killpg(self._popen.pid, 0)
        except (ProcessLookupError, PermissionError):
            return {}
        return {-self._popen.pid: self.name}  # a negative id is a group

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it started."""
        for pid in self.everything():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def text(self) -> str:
        """What it has said so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""


def marked(mark: str) -> dict[int, str]:
    """The processes with this mark in their environment (Linux): the command of each, by process id."""
    entry = f"{MARK}={mark}".encode()
    answer = {}
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        try:
            if entry in (place / "environ").read_bytes().split(b"\0"):  # that of one that has ended is empty
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                answer[int(place.name)] = command.strip()
        except OSError:  # somebody else's, or gone meanwhile
            continue
    return answer


def stop(processes: Iterable[Process], grace: float = GRACE) -> None:
    """Stop all of them: they are asked first, and ended if they have not gone after ``grace`` seconds."""
    left = list(processes)
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
        deadline = time.monotonic() + seconds
        for process in left:
            process.signal(number)
        while (left := [process for process in left if process.alive or process.everything()]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.1)


@contextmanager
def _held_back() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until this is over.

    While a process forks, Python calls functions of its own and ignores what they raise, so an interruption in just
    that moment would be lost. Blocking the signals in this thread would not do: another thread may receive them, and
    Python then calls the handler here all the same. Threads other than the main one are never interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {number: signal.signal(number, lambda heard, _: waiting.append(heard)) for number in _INTERRUPTIONS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for heard in waiting:
            signal.raise_signal(heard)


def _end_with_parent() -> None:
    """In the new process, on Linux: be told to end when the process that started it dies."""
    if _libc is not None:
        _libc.prctl(_PDEATHSIG, signal.SIGTERM)
