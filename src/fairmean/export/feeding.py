"""From a run folder to a tracker, once or for as long as the run is at work."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairmean.errors import UserError, unknown
from fairmean.experiments.following import Following, Round
from fairmean.experiments.listing import Entry
from fairmean.export.tracker import Identity, Tracker

TRACKERS = ("tensorboard", "mlflow", "wandb", "trackio")
_FILES = ("config.toml", "environment.json", "summary.json", "clients.csv", "theory.csv")


@dataclass(frozen=True)
class Exported:
    """A run that a tracker has: how it ended, how many rounds were new to the tracker, and where it is now."""

    run: str
    tracker: str
    status: str
    rounds: int
    place: str

    def record(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def export(
    folders: Sequence[Path],
    to: str,
    follow: bool = False,
    tell: Callable[[Exported], None] = lambda exported: None,
    every: float = 1.0,
) -> list[Exported]:
    """Bring runs into a tracker, written ``tracker`` or ``tracker:place``; with ``follow``, until they have ended.

    A run's id there is its hash: what the tracker has already is not told again.
    """
    name, _, place = to.partition(":")
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    feeds = [_Feed(folder, name, _tracker(name, place)) for folder in folders]
    exported: list[Exported] = []
    while feeds:
        for feed in list(feeds):
            done = feed.go_on(follow)
            if done is not None:
                feeds.remove(feed)
                exported.append(done)
                tell(done)
        if feeds:
            time.sleep(every)
    return exported


def _tracker(name: str, place: str) -> Tracker:
    with _blamed(name):
        module = importlib.import_module(f"fairmean.export.{name}")
        try:
            tracker: Tracker = module.open_tracker(place)
        except ImportError as error:
            why = f"{error.name or error} is missing"
            raise UserError(f"--to {name}: needs a library ({why}); install it with: {module.INSTALL}") from None
    return tracker


@contextmanager
def _blamed(name: str) -> Iterator[None]:
    """What a tracker's library raises, as one line that names it."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # every library has its own kinds
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(f"--to {name}: the tracker refused ({reason}); mend that and run the same command") from error


class _Feed:
    """One run on its way into a tracker."""

    def __init__(self, folder: Path, name: str, tracker: Tracker) -> None:
        self.folder, self.name, self.tracker = folder, name, tracker
        self._table = Following(folder)
        self._first: int | None = None
        self._told = 0

    def go_on(self, follow: bool) -> Exported | None:
        """Tell what is new; at the end of the run, or of what there is to tell, what became of it."""
        entry = Entry(self.folder)
        status = entry.status  # first: what is written after this is read next time
        with _blamed(self.name):
            if self._first is None:
                entry.facts  # noqa: B018 - a folder of a newer format is refused here
                self._first = self.tracker.start(_identity(entry))
            over = status != "running" or not follow
            for news in self._table.news(whole=status != "running"):
                if news.round < self._first:
                    continue
                if news.evaluated:
                    values = {news.metric: news.values, "loss": news.loss, "weight": news.weight}
                    self.tracker.clients(news.round, _labels(news), values)
                figures = {**(news.figures() if news.evaluated else {}), "loss": news.mean_loss()}
                self.tracker.round(news.round, {key: x for key, x in figures.items() if math.isfinite(x)})
                self._told += 1
            if not over:
                return None
            files = [file for name in _FILES if (file := self.folder / name).is_file()]
            place = self.tracker.finish(entry.summary or {"status": status}, files)
        return Exported(self.folder.name, self.name, status, self._told, place)


def _labels(news: Round) -> list[str]:
    """The clients by number, in an order that is also that of the alphabet, and by name where they have one."""
    names = news.names or [""] * len(news.clients)
    return [f"{client:02d} {name}".rstrip() for client, name in zip(news.clients, names, strict=True)]


def _identity(entry: Entry) -> Identity:
    settings = entry.settings
    names = " ".join(str(settings.get(key, "")) for key in ("method.name", "attack.name"))
    name = f"{names} seed {settings.get('seed', '')} {entry.folder.name[:8]}"
    return Identity(entry.folder.name, name, str(settings.get("run.name", "fairmean")), settings)
