"""Which runs there are, read from their folders with the standard library alone, so that listing them takes no time.

A run lives in ``runs/<name>/<hash>/``. Wherever a run is asked for, its folder, ``name/hash`` or a beginning of its
hash that no other run has is enough.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fairmean.errors import UserError

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows, where runs are not locked
    fcntl = None  # type: ignore[assignment]

FORMAT = 2
"""The format of run folders that this version writes; it reads this one and those before it (0.1 wrote format 1)."""
FACTS = "run.json"
"""The file of a run folder that says its format, and what is known of the run before it begins."""
DIRECTORY = "runs"
ERRORS = {"regression": "rmse"}
"""The figure of tasks whose clients are judged by an error, of which less is better; of others it is the accuracy in %.

``fairmean.data.tasks`` says more about each, and takes longer to import.
"""


@dataclass(frozen=True)
class Entry:
    """A run folder, as far as its small text files tell."""

    folder: Path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What run.json says; a folder of version 0.1 has none, and its format is 1."""
        facts = _json(self.folder / FACTS) or {"format": 1}
        if facts.get("format", 1) > FORMAT:
            raise UserError(
                f"'{self.folder}' was written by a newer fairmean (format {facts['format']}, and this version reads up "
                f"to {FORMAT}); install a newer fairmean to read it"
            )
        return facts

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config as plain values by dotted key, such as ``train.lr``."""
        try:
            tree = tomllib.loads((self.folder / "config.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"'{self.folder / 'config.toml'}' cannot be read ({error}); is it a run folder?") from None
        return dict(flat(tree))

    @property
    def metric(self) -> str:
        """The figure by which the clients are judged: ``accuracy``, in %, or the name of an error."""
        return ERRORS.get(str(self.settings.get("data.task")), "accuracy")

    @property
    def client_names(self) -> list[str] | None:
        """What the clients are called; None where they have no names but their numbers."""
        names = self.facts.get("client_names")
        return [str(name) for name in names] if names else None

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The summary of a run that has ended; None before."""
        return _json(self.folder / "summary.json")

    @cached_property
    def status(self) -> str:
        """``finished``, ``diverged``, ``running`` (a process is at work in the folder) or ``interrupted``."""
        if self.summary is not None:
            return str(self.summary.get("status", "damaged"))
        return "running" if _locked(self.folder / "lock") else "interrupted"

    @cached_property
    def changed(self) -> float:
        """When something was last written here, in seconds since 1970."""
        names = ("summary.json", "checkpoint.pt", "config.toml")
        return max((file.stat().st_mtime for name in names if (file := self.folder / name).exists()), default=0.0)


def entries(directory: str | Path = DIRECTORY) -> list[Entry]:
    """Every run below a directory, the one that changed last at the end."""
    return sorted(map(Entry, _folders(Path(directory))), key=lambda entry: (entry.changed, entry.folder))


def find(text: str | Path, directory: str | Path = DIRECTORY) -> Path:
    """The folder of one run: a path, ``name/hash``, or a beginning of either that only one run has."""
    folder = Path(text)
    if (folder / "config.toml").is_file():
        return folder
    if folder.name in ("config.toml", "summary.json", "clients.csv") and (folder.parent / "config.toml").is_file():
        return folder.parent
    asked = str(text).strip("/").removeprefix(f"{directory}/")
    fitting = [folder for folder in _folders(Path(directory)) if asked and _fits(folder, Path(directory), asked)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(sorted(str(folder.relative_to(directory)) for folder in fitting)[:5])
        more = f" and {len(fitting) - 5} more" if len(fitting) > 5 else ""
        raise UserError(f"'{text}' fits {len(fitting)} runs ({names}{more}); write more of the one you want")
    if folder.is_dir() and any(_folders(folder)):
        raise UserError(f"'{text}' holds several runs and is none itself; 'fairmean ls --dir {text}' shows them")
    raise UserError(f"there is no run '{text}' in '{directory}'; 'fairmean ls' shows what is there")


def find_all(words: Iterable[str | Path], directory: str | Path = DIRECTORY) -> list[Path]:
    """The folders of all runs that these words name. A name of several runs, or a folder above them, stands for all."""
    folders: dict[Path, None] = {}
    for word in words:
        folder = Path(word)
        if (folder / "config.toml").is_file():
            some = [folder]
        else:
            asked = str(word).strip("/").removeprefix(f"{directory}/")
            some = [run for run in _folders(Path(directory)) if asked and _fits(run, Path(directory), asked)]
            some = some or list(_folders(folder))
        folders |= dict.fromkeys(some or [find(word, directory)])
    return list(folders)


def differing(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all of these settings, in the order of the config."""
    every = list(settings)
    keys = list(dict.fromkeys(key for one in every for key in one))
    return [key for key in keys if any(one.get(key) != every[0].get(key) for one in every)]


def flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by dotted key."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _folders(directory: Path) -> Iterator[Path]:
    """The run folders below a directory; there are no runs inside a run."""
    try:
        children = sorted(child for child in directory.iterdir() if child.is_dir() and not child.name.startswith("."))
    except OSError:
        return
    for child in children:
        if (child / "config.toml").is_file():
            yield child
        else:
            yield from _folders(child)


def _fits(folder: Path, directory: Path, asked: str) -> bool:
    return folder.name.startswith(asked) or str(folder.relative_to(directory)).startswith(asked)


def _json(file: Path) -> dict[str, Any] | None:
    """What a JSON file says; None where there is none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError):
        return {"status": "damaged"}
    return value if isinstance(value, dict) else {"status": "damaged"}


def _locked(lock: Path) -> bool:
    """Whether a living process has locked this file."""
    if fcntl is None:  # pragma: no cover - nobody can tell
        return False
    try:
        os.kill(int(lock.read_text() or 0), 0)  # asked first, so that a lock is hardly ever taken just to look
    except PermissionError:
        pass
    except (OSError, ValueError):
        return False
    handle = os.open(lock, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
