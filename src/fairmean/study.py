"""Many runs: methods × attacks × seeds, paired by seed, as one comparison."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairmean.config import Config, MethodConfig, assign, gather, literal, parse
from fairmean.distributed import World
from fairmean.errors import Diverged, UserError
from fairmean.experiment import TRUST, folder_of, resolve, run_config
from fairmean.metrics import METRICS
from fairmean.recorder import Progress
from fairmean.runfolder import RunFolder
from fairmean.statistics import interval
from fairmean.together import run_together

Planned = tuple[str, str, Config]
Report = Callable[[int, int, str, Progress], None]
METHODS = ("mean", "fedavg", "qffl:q=1", "fairmean:kappa=1:tau=1", "fairmean-normalised:kappa=1:tau=1")
ATTACKS = ("none", "random_class", "pairwise")


@dataclass(frozen=True)
class Cell:
    """A method under an attack: one value of each metric per seed, NaN where the run diverged."""

    metrics: dict[str, NDArray[np.float64]]

    def estimate(self, metric: str, baseline: Cell | None = None) -> tuple[float, float]:
        """Mean over seeds, and the half-width of its 95 % confidence interval; of paired differences to a baseline."""
        values = self.metrics[metric]
        if baseline is not None:
            values = values - baseline.metrics[metric]
        mean, half, n = interval(values)
        return (mean, half) if n == len(values) else (math.nan, math.nan)  # a diverged run is no figure


@dataclass(frozen=True)
class Comparison:
    """The cells by (method, attack), in the order asked for."""

    config: Config
    methods: list[str]
    attacks: list[str]
    seeds: list[int]
    cells: dict[tuple[str, str], Cell]
    folder: Path
    records: list[dict[str, Any]] = field(default_factory=list)
    assumes: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The table, as the command line prints it."""
        from fairmean.tables import comparison

        return comparison(self)


def spec(text: str, section: str) -> dict[str, Any]:
    """``name:key=value:key=value`` as overrides; a plain key belongs to the section, a dotted one to the config.

    >>> spec("fairmean:kappa=4:train.lr=0.05", "method")
    {'method': {'name': 'fairmean', 'kappa': 4}, 'train.lr': 0.05}
    """
    name, *settings = text.split(":")
    inner: dict[str, Any] = {"name": name}
    result: dict[str, Any] = {section: inner}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"{section} '{text}': '{setting}' is not key=value; write {name}:key=value:key=value")
        place = result if "." in key else inner
        if key in place:
            raise UserError(f"{section} '{text}': '{key}' is there twice")
        place[key] = literal(value)
    return result


def plan(
    source: str | Path | Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
    methods: Sequence[str] | None = None,
    attacks: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[tuple[str, str, Config]]:
    """(method, attack, config) of every run; lists under ``[grid]`` (methods, attacks, seeds, or any key) are swept."""
    for key in overrides:
        if key.split(".")[0] == "method":
            raise UserError(f"{key}: a comparison takes its methods by name, as --methods mean,fairmean:kappa=4")
        if key == "attack.name":
            raise UserError(f"{key}: a comparison takes its attacks by name, as --attacks none,pairwise:rho=0.5")
    tree = gather(source, overrides)
    grid = _grid(tree.pop("grid", {}))
    tree.setdefault("run", {}).setdefault("name", "compare")
    parse(tree)  # a mistake in a section that the sweep replaces is still a mistake
    swept = {"methods": METHODS, "attacks": ATTACKS, "seeds": [tree.get("seed", 1)]}
    swept = {name: grid.pop(name, default) for name, default in swept.items()}
    methods, attacks = _unique(methods or swept["methods"]), _unique(attacks or swept["attacks"])
    seeds = _unique(seeds or swept["seeds"])
    runs = []
    owners = [spec(text, "method")["method"] for text in methods]
    if "trust" not in tree.get("data", {}) and any(_needs_trust(owner) for owner in owners):
        assign(tree, "data.trust", TRUST)  # left out of the test data for every method, so that the runs stay paired
    for method_spec, values in itertools.product(methods, list(itertools.product(*grid.values()))):
        others = dict(zip(grid, values, strict=True))
        name = " ".join([label(method_spec), *(f"{key.split('.')[-1]}={value}" for key, value in others.items())])
        for attack_spec, seed in itertools.product(attacks, seeds):
            one = gather(tree, {})
            one.pop("method", None)
            for key, value in [*others.items(), *spec(method_spec, "method").items()]:
                assign(one, key, value)
            for key, value in spec(attack_spec, "attack").items():
                assign(one, key, value)
            assign(one, "seed", seed)
            runs.append((name, label(attack_spec), parse(one)))
    return runs


def _needs_trust(owner: dict[str, Any]) -> bool:
    method = MethodConfig(**{key: owner[key] for key in ("name", "scale", "aggregator", "pre") if key in owner})
    return "trust" in method.build().aggregator.requires


def _grid(given: Any) -> dict[str, list[Any]]:
    if not isinstance(given, dict):
        raise UserError(f"grid = {given!r}: is a section with lists of values to sweep")
    for key, values in given.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"grid.{key} = {values!r}: must be a list of values to sweep")
        if key in ("methods", "attacks") and not all(isinstance(value, str) for value in values):
            raise UserError(f"grid.{key} = {values!r}: must be a list of texts, such as 'mean' or 'fairmean:kappa=4'")
    return dict(given)


_GREEK = {"kappa": "κ", "tau": "τ", "gamma": "γ", "epsilon": "ε", "beta": "β", "theta": "θ", "rho": "ρ"}


def label(text: str) -> str:
    """A spec as tables show it: ``fairmean:kappa=4`` is 'fairmean κ=4'."""
    name, *settings = text.split(":")
    return " ".join(
        [
            name,
            *(f"{_GREEK.get(s.partition('=')[0], s.partition('=')[0])}={s.partition('=')[2]}" for s in settings),
        ]
    )


def compare(
    source: str | Path | Mapping[str, Any] | None = None,
    *,
    methods: Sequence[str] | None = None,
    attacks: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    report: Report | None = None,
    together: int | None = None,
    **overrides: Any,
) -> Comparison:
    """Run every method under every attack for every seed; the same seed means the same clients, labels and model.

    ``together``: how many runs at most advance at once (None: as many as fit on a GPU, one on a CPU).
    """
    runs = plan(source, overrides, methods, attacks, seeds)
    return _collect(runs, _records(runs, together, report))


def spread(runs: list[Planned], world: World, report: Report | None = None, together: int | None = None) -> None:
    """Rank r of W makes runs r, r + W, … of those that are not there yet; returns when all ranks have.

    Afterwards ``compare`` finds every run done. All ranks must see the same results folder.
    """
    folders = {str(folder_of(resolve(config))): i for i, (_, _, config) in reversed(list(enumerate(runs)))}
    left = [i for folder, i in folders.items() if RunFolder(Path(folder)).summary() is None]
    mine = world.first(sorted(left))[world.rank :: world.size]
    if mine:
        _records([runs[i] for i in mine], together, report)
    world.wait()


def _records(runs: list[Planned], together: int | None, report: Report | None) -> list[dict[str, Any]]:
    """Make the runs, together or one after the other."""
    if together is not None and together < 1:
        raise UserError(f"together = {together}: must be a whole number ≥ 1 (1: one run after the other)")
    on_gpu = torch.device(resolve(runs[0][2]).train.device).type == "cuda"
    most = together or (len(runs) if on_gpu else 1)
    if any(config.theory for _, _, config in runs):  # the monitor looks at one run at a time
        most = 1
    if most > 1:
        return _at_once(runs, most, report)
    return [_record(*planned, index, len(runs), report) for index, planned in enumerate(runs)]


def _at_once(runs: list[Planned], most: int, report: Report | None) -> list[dict[str, Any]]:
    """The records of runs that advance together."""
    total = len(runs)
    tell = (lambda done, progress: report(done, total, "together", progress)) if report else None
    ended = run_together([config for _, _, config in runs], most, tell)
    records = []
    for (method, attack, config), summary in zip(runs, ended, strict=True):
        values = {name: summary.get(name, math.nan) for name in METRICS}
        record: dict[str, Any] = {"method": method, "attack": attack, "seed": config.seed, "status": summary["status"]}
        records.append(record | values | {"folder": str(folder_of(resolve(config)))})
    return records


def _record(
    method: str,
    attack: str,
    config: Config,
    index: int,
    total: int,
    report: Report | None,
) -> dict[str, Any]:
    label = f"{method} · {attack} · seed {config.seed}"
    tell = (lambda progress: report(index, total, label, progress)) if report else None
    record: dict[str, Any] = {"method": method, "attack": attack, "seed": config.seed}
    try:
        result = run_config(config, tell)
        values = {name: result.summary[name] for name in METRICS}
        return record | {"status": "finished"} | values | {"folder": str(result.folder)}
    except Diverged:
        nothing = dict.fromkeys(METRICS, math.nan)
        return record | {"status": "diverged"} | nothing | {"folder": str(folder_of(resolve(config)))}


def _collect(runs: list[tuple[str, str, Config]], records: list[dict[str, Any]]) -> Comparison:
    methods, attacks = _unique(m for m, _, _ in runs), _unique(a for _, a, _ in runs)
    cells = {}
    for key in itertools.product(methods, attacks):
        mine = [r for r in records if (r["method"], r["attack"]) == key]
        cells[key] = Cell({name: np.array([r[name] for r in mine]) for name in METRICS})
    first = resolve(next((config for _, _, config in runs if config.attack.name != "none"), runs[0][2]))
    folder = Path(first.run.dir) / first.run.name
    text = io.StringIO()
    writer = csv.DictWriter(text, records[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    RunFolder(folder).write("table.csv", text.getvalue())
    seeds = _unique(config.seed for _, _, config in runs)
    assumes = {method: config.method.build().assumes for method, _, config in runs}
    return Comparison(first, methods, attacks, seeds, cells, folder, records, assumes)


def _unique(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))
