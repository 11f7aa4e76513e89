"""What a report is about: runs, each with the names of its method and its attack, and its draw."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fairmean.data.tasks import ACCURACY, Metric
from fairmean.errors import UserError
from fairmean.experiments.listing import DIRECTORY
from fairmean.experiments.reading import load
from fairmean.experiments.reading import runs as all_runs
from fairmean.experiments.study import Comparison, label

BASELINE = "mean"
APART = ("seed", "theory")
_SECTIONS_APART = ("method.", "attack.", "run.")


class RunLike(Protocol):
    """What a report reads of a run; ``fairmean.Run`` has it."""

    folder: Path

    @property
    def status(self) -> str: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def config(self) -> Any: ...
    @property
    def summary(self) -> dict[str, Any]: ...
    @property
    def environment(self) -> dict[str, Any]: ...
    @property
    def columns(self) -> dict[str, NDArray[Any]]: ...
    @property
    def partition(self) -> Any: ...
    @property
    def regular(self) -> NDArray[np.bool_]: ...
    @property
    def certificate(self) -> Any: ...
    @property
    def metric(self) -> Metric: ...
    @property
    def has_names(self) -> bool: ...
    @property
    def client_names(self) -> list[str]: ...
    @property
    def class_names(self) -> list[str] | None: ...


@dataclass(frozen=True)
class Entry:
    """One run under the names that the page gives it. ``run`` is None where a run failed and left nothing."""

    method: str
    attack: str
    seed: int
    status: str
    run: RunLike | None
    reason: str = ""


@dataclass(frozen=True)
class Material:
    """The runs of a page, its title, and what the methods were told that others were not."""

    title: str
    entries: list[Entry]
    assumes: dict[str, str] = field(default_factory=dict)

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order of the runs."""
        return list(dict.fromkeys(entry.method for entry in self.entries))

    @property
    def attacks(self) -> list[str]:
        """Names of the attacks, in the order of the runs."""
        return list(dict.fromkeys(entry.attack for entry in self.entries))

    @property
    def seeds(self) -> list[int]:
        """Seeds of the draws, sorted."""
        return sorted({entry.seed for entry in self.entries})

    @property
    def baseline(self) -> str | None:
        """The method that the others are compared to: mean, where it is there and not alone."""
        return BASELINE if BASELINE in self.methods and len(self.methods) > 1 else None

    @property
    def metric(self) -> Metric:
        """The figure by which the clients of all runs are judged."""
        runs = [entry.run for entry in self.entries if entry.run is not None]
        for run in runs:
            if run.metric != runs[0].metric:
                raise UserError(
                    f"report: clients of run '{runs[0].folder}' are judged by {runs[0].metric.name} and those of run "
                    f"'{run.folder}' by {run.metric.name}; write a report about each kind of run"
                )
        return runs[0].metric if runs else ACCURACY

    def values(self, method: str, attack: str, metric: str) -> NDArray[np.float64]:
        """One figure for every seed of the page; NaN where there is no finished run."""
        by_seed = {e.seed: e for e in self.entries if (e.method, e.attack) == (method, attack)}
        found = [by_seed.get(seed) for seed in self.seeds]
        return np.array([_figure(entry, metric) for entry in found], dtype=np.float64)

    def ends(self, method: str, attack: str) -> list[str]:
        """How the runs of a cell ended."""
        return [e.status for e in self.entries if (e.method, e.attack) == (method, attack)]


def _figure(entry: Entry | None, metric: str) -> float:
    if entry is None or entry.run is None or entry.status != "finished":
        return math.nan
    value = entry.run.summary.get(metric)
    return math.nan if value is None else float(value)


def gather(source: Any, directory: str | Path = DIRECTORY) -> Material:
    """The material of a comparison, a run, several runs, or folders and tables on disk.

    A text may be a path, the name of a study in ``directory``, or a beginning of a run's hash there.
    """
    if isinstance(source, Material):
        return source
    if isinstance(source, Comparison):
        return _study(source.folder.name, source.records)
    if isinstance(source, str | Path) or not isinstance(source, Iterable):
        source = [source]
    items = list(source)
    if not items:
        raise UserError("report: there is no run to report on; name a run's folder or a study's")
    items = [_there(item, Path(directory)) if isinstance(item, str | Path) else item for item in items]
    tables = [_table(item) if isinstance(item, Path) else None for item in items]
    if any(tables):
        if len(items) > 1:
            raise UserError(f"report: '{items[0]}' and others: name one study, or any number of runs, not both")
        return _study(*next(filter(None, tables)))
    runs: list[Any] = []
    for item in items:
        several = all_runs(item) if isinstance(item, Path) and _holds_runs(item) else None
        runs += several or [load(item, directory) if isinstance(item, str | Path) else item]
    return of_runs(list({str(run.folder): run for run in runs}.values()))


def _there(text: str | Path, directory: Path) -> Path | str:
    """A path that exists, as it was given or inside the directory of runs; else the text, which may be a hash."""
    for path in (Path(text), directory / text):
        if path.exists():
            return path
    return str(text)


def _holds_runs(path: Path) -> bool:
    """A folder of several runs that is none itself."""
    return path.is_dir() and not (path / "config.toml").exists()


def _table(path: Path) -> tuple[str, list[dict[str, Any]]] | None:
    """The records of a study on disk, by its folder or its table; None for anything else."""
    file = path / "table.csv" if path.is_dir() else path
    if file.suffix != ".csv" or not file.exists() or (file.parent / "config.toml").exists():
        return None
    try:
        with open(file, newline="", encoding="utf-8") as stream:
            records: list[dict[str, Any]] = list(csv.DictReader(stream))
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"'{file}' cannot be read as a table ({error})") from None
    lacking = [name for name in ("method", "attack", "seed", "status", "folder") if name not in (records or [{}])[0]]
    if lacking:
        raise UserError(f"'{file}' is not the table of a study: it has no column '{lacking[0]}'")
    for record in records:
        try:
            record["seed"] = int(record["seed"])
        except (TypeError, ValueError):
            raise UserError(f"'{file}': seed '{record['seed']}' is not a whole number") from None
        record["folder"] = _moved(Path(record["folder"]), file.parent)
    return file.parent.name, records


def _moved(folder: Path, beside: Path) -> str:
    """A run's folder as the table names it; or beside the table, if the whole study was moved."""
    there = beside / folder.name
    return str(there if there.is_dir() and not folder.is_dir() else folder)


def _assumes(run: RunLike) -> str:
    """What the method was told that others were not; nothing where its code is not here."""
    try:
        return str(run.config.method.build().assumes)
    except UserError:
        return ""


def _study(title: str, records: Sequence[Mapping[str, Any]]) -> Material:
    entries = []
    assumes: dict[str, str] = {}
    for record in records:
        run = None if record["status"] == "failed" else load(record["folder"])
        status = record["status"] if run is None else run.status
        names = (str(record["method"]), str(record["attack"]), int(record["seed"]))
        entries.append(Entry(*names, status, run, str(record.get("reason") or "")))
        if run is not None and names[0] not in assumes:
            assumes[names[0]] = _assumes(run)
    return Material(title, entries, assumes)


def of_runs(runs: Sequence[RunLike]) -> Material:
    """Runs that no study has named: by their settings, with whatever else tells them apart."""
    methods = [_method(run.settings, runs) for run in runs]
    attacks = [_attack(run.settings, runs) for run in runs]
    seeds = [int(run.settings.get("seed", 1)) for run in runs]
    telling = _telling(runs)
    _of_one_data_set(runs)
    if telling:
        methods = [
            " ".join([name, *(f"{key.split('.')[-1]}={_short(run.settings.get(key))}" for key in telling)])
            for name, run in zip(methods, runs, strict=True)
        ]
    title = runs[0].folder.parent.name if len(runs) > 1 else str(runs[0].settings.get("run.name", "run"))
    entries = [
        Entry(method, attack, seed, run.status, run, str(run.summary.get("reason") or ""))
        for method, attack, seed, run in zip(methods, attacks, seeds, runs, strict=True)
    ]
    return Material(title, entries)


def _of_one_data_set(runs: Sequence[RunLike]) -> None:
    """Raise if the runs were made on different data, whose clients cannot be compared."""
    names = {(run.settings.get("data.name"), run.settings.get("data.sha256")): run for run in runs}
    figures = {run.settings.get("data.task") == "regression" for run in runs}  # different ones are refused elsewhere
    if len(names) > 1 and len(figures) == 1:
        first, second = list(names.values())[:2]
        raise UserError(
            f"runs '{first.folder.name}' and '{second.folder.name}' are about different data "
            f"('{first.settings.get('data.name')}' and '{second.settings.get('data.name')}'); report on each by itself"
        )


def _method(settings: Mapping[str, Any], runs: Sequence[RunLike]) -> str:
    """A method's name and those of its hyper-parameters that matter to a reader."""
    name = settings.get("method.name", "?")
    shown = {"kappa", "tau", "q", "beta"} | _varying(
        "method.", [r for r in runs if r.settings.get("method.name") == name]
    )
    hyper = {key.removeprefix("method."): value for key, value in settings.items() if key.startswith("method.")}
    kept = [f"{key}={_short(value)}" for key, value in hyper.items() if key in shown and key not in ("name", "sha256")]
    return label(":".join([name, *kept]))


def _attack(settings: Mapping[str, Any], runs: Sequence[RunLike]) -> str:
    name = settings.get("attack.name", "none")
    if name == "none":
        return "none"
    varying = _varying("attack.", [r for r in runs if r.settings.get("attack.name") == name])
    return label(":".join([name, *(f"{key}={_short(settings.get(f'attack.{key}'))}" for key in sorted(varying))]))


def _varying(section: str, runs: Sequence[RunLike]) -> set[str]:
    """Keys of a section that have several values among the runs."""
    keys = {key for run in runs for key in run.settings if key.startswith(section)}
    return {key.removeprefix(section) for key in keys if len({repr(run.settings.get(key)) for run in runs}) > 1}


def _telling(runs: Sequence[RunLike]) -> list[str]:
    """Keys outside method and attack that have several values among the runs."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    outside = [key for key in keys if key not in APART and not key.startswith(_SECTIONS_APART)]
    if all(run.settings.get("partition.seed") in (None, run.settings.get("seed")) for run in runs):
        outside = [key for key in outside if key != "partition.seed"]  # the clients belong to the draw
    return [key for key in outside if len({repr(run.settings.get(key)) for run in runs}) > 1]


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
