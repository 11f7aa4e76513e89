"""A fair search for each method: the same budget, the same draws, judged on samples held out from training."""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.data.tasks import Metric, task
from fairmean.errors import UserError, unknown
from fairmean.experiments.config import assign, gather, parse
from fairmean.experiments.continuing import depends_on_rounds
from fairmean.experiments.events import Audience, Listener, Progress, unwrapping
from fairmean.experiments.identity import Sources, folder_of, resolve
from fairmean.experiments.in_python import by_name
from fairmean.experiments.ladder import ladder
from fairmean.experiments.listing import flat
from fairmean.experiments.run import run_to_an_end
from fairmean.experiments.search import Search, Setting
from fairmean.experiments.sections import Config
from fairmean.experiments.study import Report, plan, spec, texts, usual_methods, with_own, written
from fairmean.experiments.tuning_table import tuning
from fairmean.rules.method import Method
from fairmean.rules.search_space import search_space

VALIDATION = 0.2
SEEDS = (1001, 1002, 1003)
COMPARED = (1, 2, 3, 4, 5)
BUDGET = 8
"""So many runs for each draw and attack, where no budget is set."""

BY: dict[str, Callable[[Mapping[str, float]], float]] = {
    "average": lambda figures: figures["average"],
    "worst": lambda figures: figures["worst"],
    "worst_tenth": lambda figures: figures["worst_tenth"],
    "average+worst": lambda figures: (figures["average"] + figures["worst"]) / 2,
}
"""What a setting is judged by; the last one is their mean, which the evidence uses."""

FIELDS = ("method", "stage", "spec", "attack", "seed", "rounds", "status", "average", "worst", "worst_tenth", "folder")


@dataclass(frozen=True)
class Tuning:
    """What was chosen for each method, as ``chosen = {"fairmean": {"kappa": 4.0, "train.lr": 0.1}}``, and why.

    ``records`` has a row for every run of the search, with its figures on validation samples. ``command`` is the
    comparison that follows. ``searches`` has for each method all that was tried.
    """

    config: Config
    by: str
    seeds: list[int]
    searches: dict[str, Search]
    chosen: dict[str, dict[str, Any]]
    specs: list[str]
    records: list[dict[str, Any]]
    command: str
    budget: int = 0
    metric: Metric = field(default_factory=lambda: task("classification").metric)

    def __str__(self) -> str:
        """The table, as the command line prints it."""
        return tuning(self)

    def csv(self) -> str:
        """The records as CSV."""
        text = io.StringIO()
        writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return text.getvalue()


@dataclass(frozen=True)
class Planned:
    """The search for one method, before it begins: a config for each attack of each draw."""

    spec: str
    configs: list[list[tuple[str, Config]]]
    search: Search


def tune(
    source: str | Path | Mapping[str, Any] | None = None,
    *,
    methods: Sequence[str | Method] | str | Method | None = None,
    attacks: Sequence[str] | str = "none",
    seeds: Sequence[int] | int = SEEDS,
    budget: int | None = None,
    by: str = "average",
    compare_seeds: Sequence[int] | int = COMPARED,
    report: Report | None = None,
    listeners: Iterable[Listener] = (),
    **overrides: Any,
) -> Tuning:
    """Look for the step size and the own hyper-parameters of each method, with the same budget for each.

    A setting is judged by its mean over the draws ``seeds`` of what ``by`` names (average, worst, worst_tenth or
    average+worst), on samples that data.validation holds out from training (a fifth, unless it is set). These draws
    must not be among ``compare_seeds``, which the comparison will report. ``budget``: how many runs of train.rounds
    rounds each method may cost; the default is eight for each draw.

    What a method's name sets already, as in ``fairmean:kappa=4``, is not searched. Runs are stored like all others, so
    a search that was interrupted goes on where it stopped.
    """
    audience, sources = Audience(listeners), Sources()
    settings = by_name(overrides)
    searches = planned(source, settings, methods, attacks, seeds, budget, by, compare_seeds, sources)
    return unwrapping(lambda: _tune(searches, source, settings, attacks, by, compare_seeds, report, audience, sources))


def planned(
    source: str | Path | Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
    methods: Sequence[str | Method] | str | Method | None = None,
    attacks: Sequence[str] | str = "none",
    seeds: Sequence[int] | int = SEEDS,
    budget: int | None = None,
    by: str = "average",
    compare_seeds: Sequence[int] | int = COMPARED,
    sources: Sources | None = None,
) -> list[Planned]:
    """The searches, each with a first setting; every mistake of the user shows here, before anything is run."""
    if by not in BY:
        raise unknown("--by", by, BY)
    tree = gather(source, overrides)
    if tree.get("grid"):
        raise UserError("[grid]: a search chooses its own values; leave it out, or sweep it with 'fairmean compare'")
    asked = tree.get("data", {}).get("validation")
    if asked is None:
        assign(tree, "data.validation", VALIDATION)
    fraction = parse({key: value for key, value in tree.items() if key != "method"}).data.validation
    if not fraction:
        raise UserError(f"data.validation = {fraction:g}: a search needs samples to judge by; set data.validation=0.2")
    train = tree.get("train", {})
    tree.setdefault("run", {}).setdefault("name", "tune")
    if not train.get("patience") and train.get("keep", "last") == "last":  # only the last figures are looked at
        tree["run"].setdefault("eval_every", train.get("rounds", Config().train.rounds))
    sources = sources or Sources()
    if methods is None:  # those of a comparison that names none, with nothing set
        methods = [text.partition(":")[0] for text in usual_methods(parse({**tree, "method": {}}), sources)]
    specs = [with_own(text, tree.get("method", {})) for text in texts("methods", methods, ())]
    runs = plan(tree, overrides, specs, attacks, seeds, sources)
    _apart([config.seed for _, _, config in runs], compare_seeds)
    attack_count = len({attack for _, attack, _ in runs})
    every = len(runs) // len(specs)
    return [
        _planned(text, runs[i * every : (i + 1) * every], attack_count, budget, sources) for i, text in enumerate(specs)
    ]


def _apart(tuned: list[int], compare_seeds: Sequence[int] | int) -> None:
    reported = {compare_seeds} if isinstance(compare_seeds, int) else set(compare_seeds)
    both = sorted(reported & set(tuned))
    if both:
        raise UserError(
            f"seeds {', '.join(map(str, both))}: a draw that settings are chosen on cannot be reported too; tune on "
            "others, such as --seeds 1001-1003, or compare on others with --compare-seeds"
        )


def _planned(
    text: str, runs: list[tuple[str, str, Config]], attacks: int, budget: int | None, sources: Sources
) -> Planned:
    """The search for one method, with its first setting; ``runs``: a config for each attack and draw."""
    by_seed: dict[int, list[tuple[str, Config]]] = {}
    for _, attack, config in runs:
        by_seed.setdefault(config.seed, []).append((attack, resolve(config, sources)))
    first = by_seed[runs[0][2].seed][0][1]
    method = spec(text, "method")
    fixed = {*method["method"], *method}
    single = first.train.local_steps == 1 and first.train.local_epochs == 0
    step = "server.lr" if first.server.lr is not None and single else "train.lr"
    start = first.server.lr if step == "server.lr" and first.server.lr is not None else first.train.lr
    built = first.method.build()
    space = {key: values for key, values in search_space(built.parts).items() if key not in fixed}
    if step in fixed and not space:
        raise UserError(
            f"method '{text}': has nothing to search, since its step size is set and it has no other hyper-parameters; "
            f"leave out {step}"
        )
    levels = ladder(first.train.rounds, len(by_seed), attacks, continued=not depends_on_rounds(first))
    runs_each = BUDGET * len(runs) if budget is None else budget
    search = Search(
        method=text,
        ladder=levels,
        budget=runs_each * first.train.rounds,
        measure=_unmeasured,
        step=None if step in fixed else step,
        start=start,
        space=space,
        defaults=built.hyper,
        possible=lambda setting: _is_possible(first, setting),
        digits=_digits(task(first.data.task).metric),
    )
    if search.budget < search.least():
        needed = math.ceil(search.least() / first.train.rounds)
        raise UserError(
            f"budget = {budget}: is too small for '{text}', which needs at least {needed} runs of {first.train.rounds} "
            f"rounds on {len(by_seed)} draws; allow so many, or use fewer seeds"
        )
    return Planned(text, list(by_seed.values()), search)


def _unmeasured(stage: str, setting: Setting, level: int) -> NDArray[np.float64]:
    raise AssertionError("a search is given its measure when it begins")


def _digits(metric: Metric) -> int:
    """Percentages that are equal to two decimals are equal; figures in other units must be the same."""
    return 2 if metric.unit == "%" else 12


def _is_possible(config: Config, setting: Setting) -> bool:
    """Whether the method takes these values."""
    try:
        _with(config, setting)
    except UserError:
        return False
    return True


def _with(config: Config, setting: Setting) -> Config:
    """The config with a setting."""
    tree = config.to_dict()
    for key, value in setting:
        assign(tree, key if "." in key else f"method.{key}", value)
    return parse(tree)


def _tune(
    searches: list[Planned],
    source: str | Path | Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
    attacks: Sequence[str] | str,
    by: str,
    compare_seeds: Sequence[int] | int,
    report: Report | None,
    audience: Audience,
    sources: Sources,
) -> Tuning:
    records: list[dict[str, Any]] = []
    chosen: dict[str, dict[str, Any]] = {}
    specs = []
    for i, one in enumerate(searches):
        runner = _Runner(one, by, report, audience, sources, records, i, len(searches))
        one.search.measure = runner.measure
        best = one.search.run()
        chosen[one.spec] = dict(best)
        specs.append(_spec(one.spec, best))
    first = searches[0].configs[0][0][1]
    return Tuning(
        config=first,
        by=by,
        seeds=[draw[0][1].seed for draw in searches[0].configs],
        searches={one.spec: one.search for one in searches},
        chosen=chosen,
        specs=specs,
        records=records,
        command=_command(source, overrides, specs, attacks, compare_seeds),
        budget=searches[0].search.budget // first.train.rounds,
        metric=task(first.data.task).metric,
    )


@dataclass(frozen=True)
class _Runner:
    """Makes the runs that a search asks for, and notes them."""

    planned: Planned
    by: str
    report: Report | None
    audience: Audience
    sources: Sources
    records: list[dict[str, Any]]
    before: int
    methods: int

    def measure(self, stage: str, setting: Setting, level: int) -> NDArray[np.float64]:
        """One figure for each draw: the mean over attacks, more being better, NaN where a run diverged."""
        search = self.planned.search
        rounds, draws = search.ladder.levels[level]
        text = _spec(self.planned.spec, setting)
        figures = []
        for draw in self.planned.configs[:draws]:
            of_draw = [
                self._run(stage, text, attack, _shortened(_with(config, setting), rounds)) for attack, config in draw
            ]
            figures.append(float(np.mean(of_draw)))
        return np.array(figures)

    def _run(self, stage: str, text: str, attack: str, config: Config) -> float:
        config = resolve(config, self.sources)
        ended = run_to_an_end(config, self._tell(text, stage, attack, config), self.sources, self.audience)
        if ended["status"] == "failed":
            raise UserError(f"{text}: {ended['reason']}")
        held_out = ended.get("validation", {})
        names = ("average", "worst", "worst_tenth")
        row = {"method": self.planned.spec, "stage": stage, "spec": text, "attack": attack, "seed": config.seed}
        row |= {"rounds": config.train.rounds, "status": ended["status"]}
        row |= {name: held_out.get(name, math.nan) for name in names} | {"folder": str(folder_of(config))}
        if all(row["folder"] != other["folder"] for other in self.records):  # a run of several levels is noted once
            self.records.append(row)
        if ended["status"] == "diverged":
            return math.nan
        value = BY[self.by]({name: math.nan if held_out.get(name) is None else held_out[name] for name in names})
        if math.isnan(value):
            raise UserError(
                f"data.validation = {config.data.validation:g}: holds out no sample of any client that counts; "
                "use a larger fraction, or clients with more samples"
            )
        return value if task(config.data.task).metric.higher else -value

    def _tell(self, text: str, stage: str, attack: str, config: Config) -> Callable[[Progress], None] | None:
        """Progress in whole runs, of at most so many as the budgets of all methods allow."""
        report, budget, whole = self.report, self.planned.search.budget, self.planned.configs[0][0][1].train.rounds
        if report is None:
            return None
        done = (self.before * budget + self.planned.search.spent) // whole
        total = self.methods * budget // whole
        what = f"{text} · {stage} · {attack} · seed {config.seed}"
        return lambda progress: report(min(done, total - 1), total, what, progress)


def _shortened(config: Config, rounds: int) -> Config:
    tree = config.to_dict()
    assign(tree, "train.rounds", rounds)
    return parse(tree)


def _spec(text: str, setting: Setting) -> str:
    """A method as it was named, with a setting: ``fairmean:kappa=4:train.lr=0.1``."""
    own = [(key, value) for key, value in setting if "." not in key]
    others = [(key, value) for key, value in setting if "." in key]
    return ":".join([text, *(f"{key}={written(value)}" for key, value in [*own, *others])])


def _command(
    source: str | Path | Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
    specs: list[str],
    attacks: Sequence[str] | str,
    compare_seeds: Sequence[int] | int,
) -> str:
    """The comparison that follows, on draws of its own; it trains on the samples that were held out, too."""
    tree = {} if source is None or isinstance(source, str | Path) else gather(source, {})
    words = [str(source)] if isinstance(source, str | Path) else []
    settings = dict(flat(gather(tree, overrides)))
    stops = settings.get("train.patience") or settings.get("train.keep") == "best"
    words += [f"{k}={_word(v)}" for k, v in settings.items() if k != "data.validation" or stops]
    words += ["--methods", ",".join(specs)]
    under = [attacks] if isinstance(attacks, str) else list(attacks)
    words += [] if under == ["none"] else ["--attacks", ",".join(under)]
    words += ["--seeds", _range([compare_seeds] if isinstance(compare_seeds, int) else list(compare_seeds))]
    return shlex.join(["fairmean", "compare", *words])


def _word(value: Any) -> str:
    return f"[{','.join(map(_word, value))}]" if isinstance(value, list) else written(value)


def _range(seeds: list[int]) -> str:
    """As ``--seeds`` takes them: 1-5, or 1,2,7."""
    together = len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if together else ",".join(map(str, seeds))
