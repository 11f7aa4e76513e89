"""``fairmean ls``: which runs there are."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from fairmean.errors import UserError
from fairmean.experiments.listing import Entry, differing, entries
from fairmean.terminal.stored_catalogue import defaults
from fairmean.terminal.words import parser_for, takes_directory, takes_json
from fairmean.text import columns, figure, to_csv

_ABOUT = """\
List the runs in a folder, the newest last: method, attack, seed, the settings in which the runs differ (those of a
method where they are not its defaults, or where its own runs differ), how each one ended, the average accuracy of its
regular clients in %, and the worst client's. Where a run predicts numbers, both are errors (rmse, less is better) in
the target's unit."""
_EXAMPLES = (
    "fairmean ls",
    "fairmean ls demo                                        only runs of that name",
    "fairmean ls --dir elsewhere --all",
    "fairmean ls --csv > runs.csv                            all runs with all their settings, for a spreadsheet",
)
_SHOWN = 40
_TOLD_ALREADY = ("method.name", "attack.name", "seed", "partition.seed", "run.name", "run.dir")


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "ls", "which runs there are", _ABOUT, _EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="only runs whose name or hash begins so")
    parser.add_argument("--all", action="store_true", help=f"all of them, not only the newest {_SHOWN}")
    takes_directory(parser)
    takes_json(parser, table=True)
    parser.set_defaults(call=_ls)


def _ls(arguments: argparse.Namespace) -> int:
    """The exit code is 2 if a run could not be read; the others are listed all the same."""
    found = entries(arguments.dir)
    every = [entry for entry in found if _readable(entry)]
    _list(arguments, every)
    return 2 if len(every) < len(found) else 0


def _list(arguments: argparse.Namespace, every: list[Entry]) -> None:
    if arguments.name:
        every = [entry for entry in every if _named(entry, arguments.name, arguments.dir)]
    if arguments.json:
        print(json.dumps([_record(entry) for entry in every], indent=1, ensure_ascii=False))
        return
    if arguments.csv:
        print(to_csv([_flat(entry) for entry in every]))
        return
    if not every:
        begins = f" that begins with '{arguments.name}'" if arguments.name else ""
        print(f"There is no run{begins} in '{arguments.dir}'. 'fairmean run' makes one.")
        return
    shown = every if arguments.all else every[-_SHOWN:]
    swept = [key for key in differing(entry.settings for entry in shown) if _telling(key)]
    by_method: dict[str, list[Mapping[str, Any]]] = {}
    for entry in shown:
        by_method.setdefault(str(entry.settings.get("method.name")), []).append(entry.settings)
    told = {
        method: [key for key in swept if key in differing(every) or every[0].get(key) != defaults(method).get(key)]
        for method, every in by_method.items()
    }
    now = time.time()
    if len(shown) < len(every):
        print(f"… {len(every) - len(shown)} more (--all shows them)")
    header = ["run", "name", "method", "attack", "seed", "settings", "status", "avg", "worst", "age"]
    rows = [_row(entry, told[str(entry.settings.get("method.name"))], now) for entry in shown]
    if any(entry.metric != "accuracy" for entry in shown):
        header.insert(7, "metric")
        for row, entry in zip(rows, shown, strict=True):
            row.insert(7, entry.metric)
    print(columns(rows, header))


def _readable(entry: Entry) -> bool:
    """Whether the run's small files can be read; one that cannot is named, and the others are listed."""
    try:
        _ = entry.settings, entry.facts
        return True
    except UserError as error:
        print(f"fairmean: {error}", file=sys.stderr)
        return False


def _named(entry: Entry, name: str, directory: str) -> bool:
    return entry.folder.name.startswith(name) or str(entry.folder.relative_to(directory)).startswith(name)


def _telling(key: str) -> bool:
    return key not in _TOLD_ALREADY and not key.endswith("sha256")


def _called(key: str) -> str:
    """A setting in short: data.name is 'data', train.lr is 'lr'."""
    section, _, last = key.rpartition(".")
    return section if last == "name" else last


def _row(entry: Entry, told: list[str], now: float) -> list[str]:
    settings, summary = entry.settings, entry.summary or {}
    own = " ".join(f"{_called(key)}={_short(settings[key])}" for key in told if key in settings)
    share = entry.metric == "accuracy"
    figures = [
        figure(value, share) if isinstance(value := summary.get(key), float) else "" for key in ("average", "worst")
    ]
    names = [str(settings.get(key, "")) for key in ("run.name", "method.name", "attack.name", "seed")]
    return [entry.folder.name[:8], *names, own or "·", entry.status, *figures, _age(now - entry.changed)]


def _record(entry: Entry) -> dict[str, Any]:
    """A run for programs."""
    summary: Mapping[str, Any] = entry.summary or {}
    metrics = {key: value for key, value in summary.items() if isinstance(value, int | float)}
    return {
        "folder": str(entry.folder),
        "status": entry.status,
        "changed": entry.changed,
        "metric": entry.metric,
        **metrics,
        "settings": entry.settings,
    }


def _flat(entry: Entry) -> dict[str, Any]:
    """A run in one row: its settings are columns of their own."""
    record = _record(entry)
    settings = record.pop("settings")
    return {**record, **settings}


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "")


def _age(seconds: float) -> str:
    """How long ago, in the largest unit that fits."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
