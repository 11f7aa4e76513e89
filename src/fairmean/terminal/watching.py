"""Runs at work: how far each one has come, how fast it is, and how well its clients are served so far."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairmean.errors import UserError
from fairmean.experiments.following import Following
from fairmean.experiments.listing import Entry, entries
from fairmean.terminal.gpu_memory import by_process
from fairmean.text import figure

FIGURES = ("average", "variance", "worst")
_BARS = "▁▂▃▄▅▆▇█"
_LOOKS = 30  # over which a speed is measured
_SPARK = 24  # columns of a sparkline


class Watched:
    """One run, looked at again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings: Mapping[str, Any] = Entry(folder).settings
        rounds = self.settings.get("train.rounds")
        if type(rounds) is not int:
            raise UserError(f"'{folder / 'config.toml'}' does not say how many rounds there are; is it a run folder?")
        self.rounds = rounds
        self.metric = Entry(folder).metric
        self.round = 0
        self.figures: dict[str, list[float]] = {name: [] for name in FIGURES}
        self.status = "running"
        self.summary: Mapping[str, Any] = {}
        self.process = 0
        self._table = Following(folder)
        self._looks: deque[tuple[float, int]] = deque(maxlen=_LOOKS)

    @property
    def at_work(self) -> bool:
        """Whether a process is at work in the folder."""
        return self.status == "running"

    def look(self) -> None:
        """Read what is new."""
        entry = Entry(self.folder)
        self.status = entry.status  # before the table: what is written after this is read at the next look
        self.summary = entry.summary or {}
        self.process = _process(self.folder / "lock")
        for news in self._table.news(whole=not self.at_work):
            self.round = news.round
            if news.evaluated:
                for name, value in news.figures().items():
                    self.figures[name].append(value)
        if self.status == "finished":
            self.round = self.rounds
        changed = self._table.changed
        if changed is not None and (not self._looks or self._looks[-1][1] != self.round):
            self._looks.append((changed, self.round))

    @property
    def rounds_per_second(self) -> float:
        """How fast it is; NaN where that is not known yet."""
        if len(self._looks) > 1:
            (before, first), (after, last) = self._looks[0], self._looks[-1]
        else:
            began = self._began()
            if began is None or not self._looks:
                return math.nan
            (before, first), (after, last) = (began, 0), self._looks[-1]
        return (last - first) / (after - before) if after > before and last > first else math.nan

    def _began(self) -> float | None:
        """When the run began, unless it was resumed since: then its rounds are not those of one process."""
        try:
            config, lock = ((self.folder / name).stat().st_mtime for name in ("config.toml", "lock"))
        except OSError:
            return None
        return config if lock <= config else None

    @property
    def seconds_left(self) -> float:
        """The time until its last round at this speed; NaN where that is not known."""
        return (self.rounds - self.round) / self.rounds_per_second if self.at_work else math.nan

    def latest(self) -> dict[str, float]:
        """The last figures: of the final model once the run has finished."""
        return {
            name: float(value) if isinstance(value := self.summary.get(name), int | float) else (told or [math.nan])[-1]
            for name, told in self.figures.items()
        }

    def record(self, memory: Mapping[int, float]) -> dict[str, Any]:
        """The run as it is now, for programs."""
        plain = {
            "rounds_per_second": self.rounds_per_second,
            "seconds_left": self.seconds_left,
            **self.latest(),
            "gpu_gib": memory.get(self.process, math.nan) if self.at_work else math.nan,
        }
        return {
            "folder": str(self.folder),
            "status": self.status,
            "metric": self.metric,
            "round": self.round,
            "rounds": self.rounds,
            **{key: value if math.isfinite(value) else None for key, value in plain.items()},
        }

    def line(self, memory: Mapping[int, float]) -> str:
        """The run in one line."""
        return " · ".join([self._name(), *self._progress(memory), *self._judged(), *self._told()])

    def lines(self, memory: Mapping[int, float]) -> list[str]:
        """The run at work in two lines, the second with a sparkline of each figure; another one in one line."""
        if not self.at_work:
            return [self.line(memory)]
        told = self._told()
        charts = (spark(values) for values in self.figures.values())
        sparks = [f"{text} {chart}" for text, chart in zip(told, charts, strict=True)] if told else ["not evaluated"]
        first = " · ".join([self._name(), *self._progress(memory), *self._judged()])
        return [first, " " * 10 + "   ".join(sparks)]

    def _told(self) -> list[str]:
        """The last figures in words; none before the first evaluation."""
        share, latest = self.metric == "accuracy", self.latest()
        if any(map(math.isnan, latest.values())):
            return []
        return [f"{name} {figure(value, share)}" for name, value in latest.items()]

    def _judged(self) -> list[str]:
        """What the figures are, unless they are accuracies; and where samples were held out, that they are on them."""
        said = [] if self.metric == "accuracy" else [f"{self.metric.upper()}, less is better"]
        held_out = self.settings.get("data.validation") and self.status != "finished"
        return [*said, *(["on held-out samples"] if held_out else [])]

    def _name(self) -> str:
        names = (str(self.settings.get(key, "")) for key in ("method.name", "attack.name"))
        return " · ".join([f"{self.folder.name[:8]}  {next(names)}", *names, f"seed {self.settings.get('seed', '')}"])

    def _progress(self, memory: Mapping[int, float]) -> list[str]:
        if not self.at_work:
            ended = self.status == "finished"
            return [self.status if ended else f"{self.status} in round {self.round} of {self.rounds}"]
        parts = [f"round {self.round}/{self.rounds}"]
        if not math.isnan(self.rounds_per_second):
            parts += [f"{self.rounds_per_second:.3g} rounds/s", f"{_clock(self.seconds_left)} left"]
        if self.process in memory:
            parts.append(f"GPU {memory[self.process]:.1f} GiB")
        return parts


class Group:
    """The runs that are watched: those that were named, or all that are at work in a folder, also later ones."""

    def __init__(self, folders: Sequence[Path], directory: str | None = None) -> None:
        self.directory = directory
        self.runs: list[Watched] = []
        self._ended: set[Path] = set()
        for folder in folders:
            self._add(folder)

    def _add(self, folder: Path) -> None:
        if all(run.folder != folder for run in self.runs):
            self.runs.append(Watched(folder))

    def look(self) -> None:
        """Look at every run; where none was named, look for new ones too."""
        if self.directory is not None:
            for entry in entries(self.directory):
                if entry.status == "running":
                    try:
                        self._add(entry.folder)
                    except UserError:  # its config is not whole yet
                        continue
        for run in self.runs:
            if run.folder not in self._ended:
                run.look()
                if not run.at_work and self.directory is None and run.status in ("finished", "diverged"):
                    self._ended.add(run.folder)

    @property
    def at_work(self) -> bool:
        """Whether any of them is at work."""
        return any(run.at_work for run in self.runs)

    def memory(self) -> dict[int, float]:
        """GiB of GPU memory by process, asked only where a run is on a GPU."""
        on_gpu = any(run.at_work and str(run.settings.get("train.device", "")).startswith("cuda") for run in self.runs)
        return by_process() if on_gpu else {}

    def page(self, width: int, height: int) -> list[str]:
        """What a terminal shows: the runs that have ended in a line each, then those at work; cut to its size."""
        memory = self.memory()
        working = [line for run in self.runs if run.at_work for line in run.lines(memory)]
        ended = [line for run in self.runs if not run.at_work for line in run.lines(memory)]
        room = max(height - 2 - len(working), 1)
        if len(ended) > room:
            ended = [f"… {len(ended) - room} more that have ended", *ended[-room:]]
        lines = [*ended, *working]
        if len(lines) > height - 1:
            lines = [*lines[: max(height - 2, 1)], "… more runs than this terminal has lines"]
        return [line[: max(width - 1, 1)] for line in lines]


def spark(values: Sequence[float], width: int = _SPARK) -> str:
    """The last values as bars between the lowest and the highest of them; a gap where there is none.

    >>> spark([1, 2, math.nan, 3])
    '▁▅ █'
    """
    shown = list(values)[-width:]
    known = [value for value in shown if math.isfinite(value)]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    step = (len(_BARS) - 1) / span if span else 0.0
    return "".join(_BARS[round((value - low) * step)] if math.isfinite(value) else " " for value in shown)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _process(lock: Path) -> int:
    """The process that made the lock."""
    try:
        return int(lock.read_text() or 0)
    except (OSError, ValueError):
        return 0


def until_ended(
    group: Group,
    every: float,
    grace: float,
    show: Callable[[Group], None],
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Look and show until no run is at work; where none was named, until that has been so for ``grace`` seconds.

    A comparison takes a moment between two of its runs.
    """
    idle_since: float | None = None
    while True:
        group.look()
        show(group)
        if group.at_work:
            idle_since = None
        elif idle_since is None:
            idle_since = now()
        if idle_since is not None and (group.directory is None or now() - idle_since >= grace):
            return
        time.sleep(every)


def clear(lines: int) -> str:
    """Moves the cursor up over so many lines and clears all below."""
    return f"\033[{lines}F\033[J" if lines else ""


def is_terminal(stream: Any) -> bool:
    """Whether lines that were printed can be overwritten there."""
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
