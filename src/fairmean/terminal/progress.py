"""Live progress on one terminal line, silent when nobody looks; and the log, when somebody asks for it."""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from fairmean.text import figure

if TYPE_CHECKING:
    from fairmean.experiments.events import Progress

_CLEAR = "\r\033[K"


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends the work as Ctrl-C does."""


class Live:
    """Shows progress on stderr when it is a terminal.

    Ctrl-C and SIGTERM take effect between two rounds, so nothing is lost. (SIGTERM is left alone where somebody else
    listens to it, as several ranks do.)
    """

    def __init__(self, quiet: bool = False) -> None:
        self._on = sys.stderr.isatty() and not quiet
        self._last = 0.0
        self._stop: type[KeyboardInterrupt] | None = None

    def __enter__(self) -> Live:
        numbers = [signal.SIGINT]
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            numbers.append(signal.SIGTERM)
        self._before = {number: signal.signal(number, self._interrupt) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.clear()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        kind = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if self._stop is not None:  # a second one does not wait for the round to end
            raise kind
        self._stop = kind

    def run(self, progress: Progress) -> None:
        """One run."""
        left = (progress.rounds - progress.round) / max(progress.rounds_per_second, 1e-9)
        self._show(f"round {progress.round}/{progress.rounds}", progress, left)

    def study(self, index: int, total: int, label: str, progress: Progress) -> None:
        """One run of many, or several together; the time left assumes that the others cost the same."""
        runs = progress.runs
        rounds = progress.rounds - progress.round + progress.rounds * (total - index - runs) / runs
        left = rounds / max(progress.rounds_per_second, 1e-9)
        which = f"{index + 1}" if runs == 1 else f"{index + 1}–{index + runs}"
        self._show(f"[{which}/{total}] {label} · round {progress.round}/{progress.rounds}", progress, left)

    def _show(self, what: str, progress: Progress, left: float) -> None:
        if self._stop is not None:
            raise self._stop
        now = time.monotonic()
        if not self._on or now - self._last < 0.1:
            return
        self._last = now
        m = progress.metrics
        shown = {"average": "avg", "variance": "var", "worst": "worst"}
        said = (f"{word} {figure(m[key], share=abs(m[key]) >= 1)}" for key, word in shown.items() if m)
        figures = "".join([" · ", " ".join(said)]) if m else ""
        minutes, seconds = divmod(round(left), 60)
        text = f"{what} · {progress.rounds_per_second:.1f} rounds/s · {minutes}:{seconds:02d} left{figures}"
        sys.stderr.write(_CLEAR + text[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()

    def line(self, text: str) -> None:
        """A line that stays, or one that is overwritten when it ends in a percentage."""
        if self._on:
            sys.stderr.write(_CLEAR + text + ("" if text.rstrip().endswith("%") else "\n"))
            sys.stderr.flush()

    def clear(self) -> None:
        """Leave the terminal clean."""
        if self._on:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()


class Log(logging.StreamHandler[TextIO]):
    """Inside this context, what fairmean logs is a line each on stderr, above the progress."""

    def __enter__(self) -> Log:
        self.setFormatter(logging.Formatter(f"{_CLEAR if sys.stderr.isatty() else ''}fairmean: %(message)s"))
        self._logger = logging.getLogger("fairmean")
        self._before = self._logger.level
        self._logger.addHandler(self)
        self._logger.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._before)
