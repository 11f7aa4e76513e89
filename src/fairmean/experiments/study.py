"""Many runs: methods × attacks × seeds, paired by seed, as one comparison."""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairmean.data.registry import SPECS
from fairmean.data.tasks import task
from fairmean.engine.ranks import World
from fairmean.errors import UserError
from fairmean.experiments.building import TRUST
from fairmean.experiments.comparison_table import comparison
from fairmean.experiments.config import assign, gather, literal, parse, unknown_key
from fairmean.experiments.events import NOBODY, Audience, Listener, Progress, unwrapping
from fairmean.experiments.folder import RunFolder
from fairmean.experiments.identity import Sources, folder_of, resolve
from fairmean.experiments.in_python import by_name
from fairmean.experiments.listing import Entry, differing, flat
from fairmean.experiments.metrics import METRICS
from fairmean.experiments.run import run_to_an_end
from fairmean.experiments.sections import Config, MethodConfig
from fairmean.experiments.statistics import interval
from fairmean.experiments.together import run_together
from fairmean.rules.method import Method
from fairmean.rules.named import USUAL, named_methods
from fairmean.rules.objectives import OBJECTIVES
from fairmean.rules.recess import FairMeanRecess

Planned = tuple[str, str, Config]
Report = Callable[[int, int, str, Progress], None]
ANY_TASK = ("mean", "fedavg", "qffl:q=1", "fairmean:kappa=1:tau=1")
MOST_RUNS = 100_000
_SETTINGS = (
    "data.name", "partition.name", "partition.alpha", "partition.clients", "train.rounds", "train.lr", "train.batch",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A method under an attack: one value of each metric per seed, NaN where the seed's run gave none.

    ``status``: how each seed's run ended: finished, diverged or failed.
    """

    metrics: dict[str, NDArray[np.float64]]
    status: list[str] = field(default_factory=list)

    def estimate(self, metric: str, baseline: Cell | None = None) -> tuple[float, float]:
        """Mean over the seeds that have a value, and half the width of its 95 % confidence interval (NaN: none).

        With a ``baseline``, of the differences to it, over the seeds that both have.
        """
        values = self.metrics[metric]
        if baseline is not None:
            values = values - baseline.metrics[metric]
        mean, half, _ = interval(values)
        return mean, half

    @property
    def lost(self) -> dict[str, int]:
        """How many seeds did not finish, by what became of them."""
        return {status: self.status.count(status) for status in ("diverged", "failed") if status in self.status}


@dataclass(frozen=True)
class Comparison:
    """The cells by (method, attack), in the order asked for. ``failures``: a line for every run that failed.

    ``records`` has a row for every run: method, attack, seed, its settings, metrics and folder. The file ``table``
    holds the same, and no other study writes to it.
    """

    config: Config
    methods: list[str]
    attacks: list[str]
    seeds: list[int]
    cells: dict[tuple[str, str], Cell]
    folder: Path
    records: list[dict[str, Any]] = field(default_factory=list)
    assumes: dict[str, str] = field(default_factory=dict)
    table: Path = Path("table.csv")

    def __str__(self) -> str:
        """The table, as the command line prints it."""
        return comparison(self)

    def _repr_html_(self) -> str:
        """What a notebook shows. The room above this one draws it, so it is asked for by name when it is needed."""
        return str(importlib.import_module("fairmean.report.inline").shown(self))

    @property
    def client_names(self) -> list[str]:
        """What the clients are called, where the data says so; else nothing."""
        ended = (Path(r["folder"]) for r in self.records if r["status"] != "failed")
        facts = next((Entry(folder).facts for folder in ended), {})
        return [str(name) for name in facts.get("client_names", ())]

    @property
    def failures(self) -> list[str]:
        """One line for each failure, with how many runs ended so."""
        runs: dict[str, list[str]] = {}
        for r in self.records:
            if r["status"] == "failed":
                runs.setdefault(r["reason"], []).append(f"{r['method']} · {r['attack']} · seed {r['seed']}")
        return [
            f"{some[0]}{f' and {len(some) - 1} more' if len(some) > 1 else ''}: {reason}"
            for reason, some in runs.items()
        ]


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
    methods: Sequence[str | Method] | str | Method | None = None,
    attacks: Sequence[str] | str | None = None,
    seeds: Sequence[int] | int | None = None,
    sources: Sources | None = None,
) -> list[tuple[str, str, Config]]:
    """(method, attack, config) of every run; lists under ``[grid]`` (methods, attacks, seeds, or any key) are swept.

    A ``[method]`` of the config takes the place of the default method of that name, or is one more; hyper-parameters in
    it hold wherever that method is named without them.
    """
    for key in overrides:
        if key.split(".")[0] == "method":
            raise UserError(f"{key}: a comparison takes its methods by name, as --methods mean,fairmean:kappa=4")
        if key == "attack.name":
            raise UserError(f"{key}: a comparison takes its attacks by name, as --attacks none,pairwise:rho=0.5")
    tree = gather(source, overrides)
    grid = _grid(tree.pop("grid", {}))
    tree.setdefault("run", {}).setdefault("name", "compare")
    own = tree.get("method", {})
    base = parse(tree)  # a mistake in a section that the sweep replaces is still a mistake
    sources = sources or Sources()
    usual_attacks = _usual_attacks(base, sources) if attacks is None and "attacks" not in grid else ()
    usual = _usual(own, usual_methods(base, sources)) if methods is None and "methods" not in grid else ()
    swept: dict[str, Any] = {"methods": usual, "attacks": usual_attacks, "seeds": [tree.get("seed", 1)]}
    swept = {name: grid.pop(name, default) for name, default in swept.items()}
    method_specs = [with_own(text, own) for text in texts("methods", methods, swept["methods"])]
    attack_specs = texts("attacks", attacks, swept["attacks"])
    chosen_seeds = _unique(_whole_numbers(swept["seeds"] if seeds is None else seeds))
    swept_values = list(itertools.product(*grid.values()))
    total = len(method_specs) * len(attack_specs) * len(chosen_seeds) * len(swept_values)
    if total > MOST_RUNS:
        raise UserError(f"this would be {total:,} runs; at most {MOST_RUNS:,} are planned at a time: use fewer seeds")
    runs = []
    owners = [spec(text, "method")["method"] for text in method_specs]
    if "trust" not in tree.get("data", {}) and any(_needs_trust(owner) for owner in owners):
        assign(tree, "data.trust", TRUST)  # left out of the test data for every method, so that the runs stay paired
    for method_spec, values in itertools.product(_unique(method_specs), swept_values):
        others = dict(zip(grid, values, strict=True))
        name = " ".join([label(method_spec), *(f"{key.split('.')[-1]}={value}" for key, value in others.items())])
        for attack_spec, seed in itertools.product(attack_specs, chosen_seeds):
            one = gather(tree, {})
            one.pop("method", None)
            for key, value in [*others.items(), *spec(method_spec, "method").items()]:
                assign(one, key, value)
            for key, value in spec(attack_spec, "attack").items():
                assign(one, key, value)
            assign(one, "seed", seed)
            runs.append((name, label(attack_spec), parse(one)))
    return runs


def usual_methods(config: Config, sources: Sources) -> list[str]:
    """The methods of a comparison that names none, as far as they fit the data and the number of clients."""
    what, clients = "classification", config.partition.clients
    if config.data.name not in SPECS:
        data = sources.dataset(config.data)
        what = data.task
        clients = clients if data.train_clients is None else int(data.train_clients.max()) + 1
    if what not in ("classification", "binary"):
        return [*ANY_TASK, "fairmean-normalised:kappa=1:tau=1"]
    present = min(clients - 1, math.ceil(clients * config.train.participation))  # one at least is in recess
    return [*ANY_TASK, "fairmean-split", *(["fairmean-recess"] if present >= FairMeanRecess.fewest else [])]


def _usual_attacks(config: Config, sources: Sources) -> tuple[str, ...]:
    """No attack, and two that fit the task."""
    if config.data.name in SPECS:
        return task("classification").compared
    return task(sources.dataset(config.data).task).compared


def _usual(own: Mapping[str, Any], methods: list[str]) -> list[str]:
    """The usual methods, and the config's own if it has one."""
    if not own:
        return methods
    name = _name(own)
    mine = ":".join([name, *(f"{key}={written(value)}" for key, value in _hyper(own).items())])
    usual = [mine if text.partition(":")[0] == name and _hyper(own) else text for text in methods]
    return usual if any(text.partition(":")[0] == name for text in usual) else [*usual, mine]


def with_own(text: str, own: Mapping[str, Any]) -> str:
    """A method as it was named, with those hyper-parameters of the config's own that it does not set itself."""
    name, *settings = text.split(":")
    if not own or name != _name(own):
        return text
    said = {setting.partition("=")[0] for setting in settings}
    return ":".join([text, *(f"{key}={written(value)}" for key, value in _hyper(own).items() if key not in said)])


def _name(own: Mapping[str, Any]) -> str:
    return parse({"method": own}).method.name


def _hyper(own: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in own.items() if key not in ("name", "scale", "aggregator", "pre", "sha256")}


def written(value: Any) -> str:
    """A value as a text that means exactly it; numbers in their shortest form."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


def texts(name: str, given: Any, default: Any) -> list[str]:
    """A list of methods or attacks by name; one alone may stand for a list, and a method for its name."""
    given = default if given is None else given
    items = [given] if isinstance(given, str | Method) else list(given)
    texts = [
        ":".join([item.name, *_objective_of(item), *(f"{key}={written(value)}" for key, value in item.hyper.items())])
        if isinstance(item, Method)
        else item
        for item in items
    ]
    for text in texts:
        if not isinstance(text, str):
            raise UserError(f"{name}: {text!r} is not a name; write names such as 'mean' or 'fairmean:kappa=4'")
    if not texts:
        raise UserError(f"{name}: the list is empty; name at least one")
    return _unique(texts)


def _objective_of(method: Method) -> list[str]:
    """``objective=name`` of a method that has another one than its name says."""
    name = next((name for name, cls in OBJECTIVES.items() if cls is type(method.objective)), None)
    named = named_methods().get(method.name)
    return [] if name is None or name == (named.objective if named else USUAL) else [f"objective={name}"]


def _whole_numbers(given: Any) -> list[int]:
    items = [given] if isinstance(given, int) else given
    if not isinstance(items, Collection) or isinstance(items, str):
        raise UserError(f"seeds = {given!r}: must be whole numbers, such as [1, 2, 3]")
    if len(items) > MOST_RUNS:
        raise UserError(
            f"seeds: {len(items):,} of them are more than the {MOST_RUNS:,} runs that are planned at a time"
        )
    numbers = [item.item() if isinstance(item, np.integer) else item for item in items]
    for number in numbers:
        if type(number) is not int:
            raise UserError(f"seeds: {number!r} is not a whole number")
    if not numbers:
        raise UserError("seeds: the list is empty; name at least one")
    return numbers


def _needs_trust(owner: dict[str, Any]) -> bool:
    known = ("name", "scale", "aggregator", "pre", "objective")
    method = MethodConfig(**{key: owner[key] for key in known if key in owner})
    return "trust" in method.build().aggregator.requires


def _grid(given: Any) -> dict[str, list[Any]]:
    """What is swept, by dotted key; ``[grid.train] lr = […]`` and ``"train.lr" = […]`` mean the same."""
    if not isinstance(given, dict):
        raise UserError(f"grid = {given!r}: is a section with lists of values to sweep")
    flat: dict[str, list[Any]] = {}
    for key, values in given.items():
        inner = {f"{key}.{k}": v for k, v in values.items()} if isinstance(values, dict) else {key: values}
        for written, choices in inner.items():
            dotted = written.replace('"', "")  # as a TOML file would have it: grid."train.lr"=[0.1, 0.2]
            if not isinstance(choices, list) or not choices:
                raise UserError(f"grid.{dotted} = {choices!r}: must be a list of values to sweep")
            if dotted in ("methods", "attacks") and not all(isinstance(value, str) for value in choices):
                example = "'mean' or 'fairmean:kappa=4'" if dotted == "methods" else "'none' or 'pairwise'"
                raise UserError(f"grid.{dotted} = {choices!r}: must be a list of texts, such as {example}")
            if "." not in dotted and dotted not in ("methods", "attacks", "seeds", "seed", "theory"):
                known = str(unknown_key(dotted)).partition("did you mean '")[2].rstrip("'?")
                hint = f"did you mean grid.{known}?" if known else 'write whole keys, as grid.train.lr or "train.lr"'
                raise UserError(f"grid.{dotted}: there is no such key; {hint}")
            flat[dotted] = choices
    return flat


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
    methods: Sequence[str | Method] | str | Method | None = None,
    attacks: Sequence[str] | str | None = None,
    seeds: Sequence[int] | int | None = None,
    report: Report | None = None,
    listeners: Iterable[Listener] = (),
    together: int | None = None,
    **overrides: Any,
) -> Comparison:
    """Run every method under every attack for every seed; the same seed means the same clients, labels and model.

    ``together``: how many runs at most advance at once (None: as many as fit on a GPU, one on a CPU). A method whose
    own code fails is left out of the table and named in ``failures``; the others are run all the same.

    Data and models may be objects, as for ``fairmean.run``.

    ``listeners`` are told of every run (see ``fairmean.Listener``); the events of runs that advance at once alternate.
    """
    audience, sources = Audience(listeners), Sources()
    planned = plan(source, by_name(overrides), methods, attacks, seeds, sources)
    return compare_planned(planned, report, together, audience, sources)


def compare_planned(
    runs: list[Planned],
    report: Report | None = None,
    together: int | None = None,
    audience: Audience = NOBODY,
    sources: Sources | None = None,
) -> Comparison:
    """As ``compare``, for runs that were planned already."""
    sources = sources or Sources()
    runs = resolved(runs, sources)
    return _collect(runs, _records(runs, together, report, sources, audience))


def resolved(runs: list[Planned], sources: Sources) -> list[Planned]:
    """The runs with configs that say what is really run; data and code are looked at once."""
    return [(method, attack, resolve(config, sources)) for method, attack, config in runs]


def spread(runs: list[Planned], world: World, report: Report | None = None, together: int | None = None) -> None:
    """Rank r of W makes runs r, r + W, … of those that are not there yet; returns when all ranks have.

    Afterwards ``compare`` finds every run done. All ranks must see the same results folder.
    """
    sources = Sources()
    runs = resolved(runs, sources)
    folders = {str(folder_of(config)): i for i, (_, _, config) in reversed(list(enumerate(runs)))}
    left = [i for folder, i in folders.items() if RunFolder(Path(folder)).summary() is None]
    chosen = world.first(sorted(left))[world.rank :: world.size]
    if chosen:
        _records([runs[i] for i in chosen], together, report, sources)
    world.wait()


def _records(
    runs: list[Planned],
    together: int | None,
    report: Report | None,
    sources: Sources,
    audience: Audience = NOBODY,
) -> list[dict[str, Any]]:
    """Make the runs, together or one after the other."""
    if together is not None and together < 1:
        raise UserError(f"together = {together}: must be a whole number ≥ 1 (1: one run after the other)")
    on_gpu = torch.device(runs[0][2].train.device).type == "cuda"
    most = together or (len(runs) if on_gpu else 1)
    if any(config.theory or config.data.validation for _, _, config in runs):  # these look at one run at a time
        most = 1
    if most > 1:
        return unwrapping(lambda: _at_once(runs, most, report, sources, audience))
    return unwrapping(
        lambda: [_one(planned, index, len(runs), report, sources, audience) for index, planned in enumerate(runs)]
    )


def _at_once(
    runs: list[Planned], most: int, report: Report | None, sources: Sources, audience: Audience
) -> list[dict[str, Any]]:
    """The records of runs that advance together."""
    total = len(runs)
    tell = (lambda done, progress: report(done, total, "together", progress)) if report else None
    ended = run_together([config for _, _, config in runs], most, tell, sources, audience)
    return [_record(planned, summary) for planned, summary in zip(runs, ended, strict=True)]


def _one(
    planned: Planned, index: int, total: int, report: Report | None, sources: Sources, audience: Audience
) -> dict[str, Any]:
    """The record of one run, made on its own."""
    method, attack, config = planned
    what = f"{method} · {attack} · seed {config.seed}"
    tell = (lambda progress: report(index, total, what, progress)) if report else None
    return _record(planned, run_to_an_end(config, tell, sources, audience))


def _record(planned: Planned, ended: dict[str, Any]) -> dict[str, Any]:
    method, attack, config = planned
    values = {name: ended.get(name, math.nan) for name in METRICS}
    status = {"method": method, "attack": attack, "seed": config.seed, "status": ended["status"]}
    return status | values | {"folder": str(folder_of(config)), "reason": ended.get("reason", "")}


def _with_settings(runs: list[Planned], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with their settings: those that people look for in a table, and those in which the runs differ."""
    settings = [dict(flat(config.to_dict())) for _, _, config in runs]
    names = ("method.name", "attack.name", "seed", "partition.seed", "run.name", "run.dir")
    swept = [key for key in differing(settings) if key not in names and not key.endswith("sha256")]
    keys = list(dict.fromkeys([*_SETTINGS, *swept]))
    return [
        {key: record[key] for key in ("method", "attack", "seed")} | {key: one.get(key, "") for key in keys} | record
        for one, record in zip(settings, records, strict=True)
    ]


def _collect(runs: list[Planned], records: list[dict[str, Any]]) -> Comparison:
    records = _with_settings(runs, records)
    methods, attacks = _unique(m for m, _, _ in runs), _unique(a for _, a, _ in runs)
    cells = {}
    for key in itertools.product(methods, attacks):
        of_cell = [r for r in records if (r["method"], r["attack"]) == key]
        values = {name: np.array([r[name] for r in of_cell]) for name in METRICS}
        cells[key] = Cell(values, [r["status"] for r in of_cell])
    first = next((config for _, _, config in runs if config.attack.name != "none"), runs[0][2])
    folder = Path(first.run.dir) / first.run.name
    text = io.StringIO()
    writer = csv.DictWriter(text, records[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    folder.mkdir(parents=True, exist_ok=True)  # not there if no run came through
    study = hashlib.sha256("\n".join(Path(r["folder"]).name for r in records).encode()).hexdigest()[:8]
    table = folder / f"table-{study}.csv"
    for name in (table.name, "table.csv"):  # its own, which other studies of this name leave alone; and the newest
        RunFolder(folder).write(name, text.getvalue())
    seeds = _unique(config.seed for _, _, config in runs)
    assumes = {method: config.method.build().assumes for method, _, config in runs}
    return Comparison(first, methods, attacks, seeds, cells, folder, records, assumes, table)


def _unique(items: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(items))
