"""What a search chose, and how flat the optimum is, as a plain-text table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fairmean.text import columns

if TYPE_CHECKING:
    from fairmean.experiments.search import Search, Setting
    from fairmean.experiments.tune import Tuning

HALF_A_POINT = 0.5
_EDGE = "†"


def tuning(result: Tuning) -> str:
    """A row for each method: what was chosen, its figure, the next best setting, and which settings are as good."""
    percent = result.metric.unit == "%"
    rows = []
    for method, search in result.searches.items():
        rows.append(
            [
                method,
                _chosen(search),
                _figure(search, result.metric.higher),
                _next(search),
                _as_good(search, HALF_A_POINT if percent else 0.0),
                f"{len(search.reached)}",
                f"{search.spent / result.config.train.rounds:.1f}",
            ]
        )
    header = ["method", "chosen", f"{result.by} ± s.e.", "next best", "as good", "settings", "runs"]
    tolerance = "half a point or one standard error" if percent else "one standard error"
    notes = [
        f"{result.by} of the clients' {result.metric.label} on samples held out from training, mean over "
        f"{_count(len(result.seeds), 'draw')} that no comparison reports",
        "next best: how much worse it is, paired by draw; as good: the values, of those that had all rounds, within "
        f"{tolerance} of the best",
        f"runs: what the search cost, in runs of {result.config.train.rounds} rounds; each method had {result.budget}",
    ]
    if any(_EDGE in row[1] for row in rows):
        notes.append(f"{_EDGE} lies at the edge of what was searched; better values may lie beyond")
    notes += [f"{method}: {note}" for method, search in result.searches.items() for note in dict.fromkeys(search.notes)]
    return "\n".join([columns(rows, header), *notes])


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def value(item: Any) -> str:
    """A value in short."""
    return f"{item:g}" if isinstance(item, float) else str(item).lower()


def words(setting: Setting) -> str:
    """A setting in short; the section of a key is left out."""
    return " ".join(f"{key.split('.')[-1]}={value(item)}" for key, item in setting) or "as named"


def _chosen(search: Search) -> str:
    """The best setting, with a mark where it lies at an edge of what was searched."""
    marked = []
    for key, item in search.best:
        tried = search.searched(key)
        at_edge = len(tried) > 2 and not isinstance(item, bool) and item in (tried[0], tried[-1])
        marked.append(f"{key.split('.')[-1]}={value(item)}{_EDGE if at_edge else ''}")
    return " ".join(marked) or "as named"


def _figure(search: Search, higher: bool) -> str:
    """The best setting's mean with its standard error."""
    values = search.values[search.best, search.ladder.last]
    mean = float(values.mean()) * (1 if higher else -1)
    digits = 2 if search.digits == 2 else 4
    if len(values) < 2:
        return f"{mean:.{digits}f}" if digits == 2 else f"{mean:.{digits}g}"
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return f"{mean:.2f} ± {error:.2f}" if digits == 2 else f"{mean:.{digits}g} ± {error:.2g}"


def _next(search: Search) -> str:
    """The best of the others among those that were run furthest."""
    others = [setting for setting in search.reached if setting != search.best]
    if not others:
        return "none"
    furthest = max(search.reached[setting] for setting in others)
    gap, setting = min(
        ((search.gap(setting)[0], setting) for setting in others if search.reached[setting] == furthest),
        key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0],
    )
    worse = "diverged" if math.isnan(gap) else f"−{gap:.2g}".replace("−-", "+")
    return f"{words(setting)} ({worse}{_where(search, furthest)})"


def _where(search: Search, number: int) -> str:
    """On what part of the rounds or draws settings were compared; nothing for the whole."""
    level, whole = search.ladder.levels[number], search.ladder.levels[-1]
    if level.rounds < whole.rounds:
        return f" at {level.rounds} rounds"
    return "" if level == whole else f" on {_count(level.draws, 'draw')}"


def as_good(search: Search, tolerance: float) -> list[Setting]:
    """The best setting, and those within the tolerance or one standard error of it, of those that had all rounds."""
    whole = search.ladder.levels[-1].rounds
    close = []
    for setting, reached in search.reached.items():
        gap, error = search.gap(setting)
        near = gap <= max(tolerance, 0.0 if math.isnan(error) else error)
        if setting == search.best or (near and search.ladder.levels[reached].rounds == whole):
            close.append(setting)
    return close


def _as_good(search: Search, tolerance: float) -> str:
    """The range of every key over the settings that are as good as the best."""
    close = [dict(search.defaults) | dict(setting) for setting in as_good(search, tolerance)]
    searched = {key: None for setting in search.reached for key, _ in setting}
    ranges = []
    for key in searched:
        items = sorted({setting[key] for setting in close if key in setting})
        span = value(items[0]) if len(items) == 1 else f"{value(items[0])}–{value(items[-1])}"
        ranges.append(f"{key.split('.')[-1]} {span}")
    return ", ".join(ranges)
