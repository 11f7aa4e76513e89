"""More rounds than a finished run had: the longer run takes over what the shorter one did, and goes on from there."""

from __future__ import annotations

import json
import logging
import os
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

from fairmean.errors import UserError
from fairmean.experiments.config import to_toml
from fairmean.experiments.folder import TABLES, RunFolder
from fairmean.experiments.listing import FACTS, Entry
from fairmean.experiments.sections import Config

_FILES = ("partition.npz", "environment.json", "theory.json")
log = logging.getLogger(__name__)


def take_over(folder: RunFolder, config: Config) -> None:
    """Give a run that has not begun the state of the longest finished run that differs in ``train.rounds`` alone.

    Both runs must have the same name. A run whose steps depend on the number of rounds begins anew, and says so.
    """
    shorter = _shorter(folder.path, config)
    if shorter is None:
        return
    reason = depends_on_rounds(config)
    if reason:
        warnings.warn(
            f"a run of {_rounds(shorter)} rounds is there ({shorter}), but {reason}; the run of {config.train.rounds} "
            "rounds begins anew",
            stacklevel=2,
        )
        return
    for name in _FILES:
        if (shorter / name).exists():
            folder.write(name, (shorter / name).read_bytes())
    for table in TABLES:
        if (shorter / table).exists():  # the checkpoint says how much of it belongs to the rounds that it covers
            folder.write(f"{table}.part", (shorter / table).read_bytes())
    source = {"run": shorter.name, "rounds": _rounds(shorter)}
    folder.write_json(FACTS, {**Entry(shorter).facts, "continues": source})
    folder.write("config.toml", to_toml(config))
    folder.write("checkpoint.pt", (shorter / "checkpoint.pt").read_bytes())  # last: from now on it can be resumed
    log.info("Run %s goes on where %s ended.", folder.path, shorter)


def _shorter(path: Path, config: Config) -> Path | None:
    """The finished run beside this one that has the most rounds of those that are fewer."""
    found: list[tuple[int, Path]] = []
    with os.scandir(path.parent) as siblings:
        names = [entry.name for entry in siblings if entry.is_dir() and entry.name != path.name]
    for name in names:
        rounds = _rounds(path.parent / name)
        if rounds is not None and rounds < config.train.rounds:
            like = replace(config, train=replace(config.train, rounds=rounds))
            if like.hash() == name and _finished(path.parent / name):
                found.append((rounds, path.parent / name))
    return max(found)[1] if found else None


@cache
def _rounds(folder: Path) -> int | None:
    """How many rounds the run of a folder has; its config never changes. None where there is no run."""
    try:
        rounds = Entry(folder).settings.get("train.rounds")
    except UserError:
        return None
    return rounds if isinstance(rounds, int) else None


def _finished(folder: Path) -> bool:
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    whole = all((folder / name).exists() for name in ("checkpoint.pt", "clients.csv", "partition.npz"))
    return whole and isinstance(summary, dict) and summary.get("status") == "finished"


def depends_on_rounds(config: Config) -> str:
    """Why the steps of the first rounds depend on how many there are; '' if they do not."""
    if config.train.schedule == "cosine":
        return "with train.schedule = 'cosine' every step size depends on the number of rounds"
    if config.train.keep == "best" or config.train.patience:
        return "with train.keep = 'best' or train.patience its last state is not kept"
    method = config.method.build()
    for part, kind in ((method.scale, "scale"), (method.objective, "objective")):
        if getattr(part, "depends_on_rounds", False):
            return f"{method.name} has a timetable that depends on the number of rounds"
        if not type(part).__module__.startswith("fairmean."):
            return f"the {kind} '{type(part).__name__}' is told the number of rounds, and may depend on it"
    return ""
