"""The study of fairmean-recess: paired draws, an oracle beside the methods, and what clients measured of themselves.

    python -m paper.recess run PART --draws 20     appends to results/recess.csv what is not there yet
    python -m paper.recess run PART --together 31  the same on a GPU, where so many runs advance together
    python -m paper.recess run PART --share 1/2    every second draw, for the first of two processes
    python -m paper.recess steps                   a step size for each method of the part 'tuned', on other draws
    python -m paper.recess show                    the tables
    python -m paper.recess write                   the same, into docs/recess.md

The parts, the draws and the tests were written down in docs/recess.md before the first run. Several parts may run at
once, each in a process of its own.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmean.data.federation import Federation
from fairmean.engine import Simulator
from fairmean.engine.fleet.fleet import Fleet
from fairmean.experiments.building import build_federation, build_simulator
from fairmean.experiments.config import gather, parse
from fairmean.experiments.identity import resolve
from fairmean.experiments.metrics import summarise
from fairmean.experiments.sections import Config
from fairmean.experiments.statistics import Difference, holm, paired
from fairmean.rules.context import Context, Means
from fairmean.rules.recess import FairMeanRecess
from fairmean.rules.round import State
from paper.oracle import told, told_in_a_fleet

RESULTS = Path(__file__).parents[1] / "results"
FILE, STEPS = RESULTS / "recess.csv", RESULTS / "recess-steps.csv"
PAGE, MARKS = RESULTS.parent / "docs" / "recess.md", ("<!-- tables -->", "<!-- /tables -->")
FIELDS = ("part", "setting", "method", "seed", "average", "variance", "worst", "seconds", "poisoned", "excess", "trust")
METRICS = ("average", "variance", "worst")
FEWEST = 3  # draws, below which an interval says nothing, and a row is not shown
ATTACKS = ("none", "pairwise", "random_class", "random", "adaptive")
ORACLE = "oracle"
RECESS, FIRST = "fairmean-recess", "fairmean-recess:until_asked=false"
"""The rule, and its first version, in which the excess that clients measure while they train counts all along."""
HIGHER, NO_EXCESS = f"{FIRST}:theta=0.4", f"{RECESS}:beta=0"
"""With a higher threshold, which was tried after most of the study was run; and without that excess."""
COMPARED = ("mean", ORACLE, "fairmean-split", RECESS, FIRST, "fednoro:warm=100", "antiflipper", "centered-clipping")
SMALL: dict[str, Any] = {
    "data.name": "fashion-mnist", "model.name": "mlp", "partition.alpha": 0.1, "attack.pick": "random",
    "train.batch": 64, "train.rounds": 600, "train.lr": 0.2, "train.schedule": "cosine",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Some settings by name, the methods that are compared in each, and the first draw."""

    settings: Mapping[str, Mapping[str, Any]]
    methods: Sequence[str]
    first: int


def _attacks(more: Mapping[str, Any], attacks: Sequence[str] = ATTACKS) -> dict[str, dict[str, Any]]:
    return {attack: SMALL | {"attack.name": attack} | dict(more) for attack in attacks}


FULL: dict[str, Any] = {
    "train.batch": 0, "train.rounds": 2000, "train.lr": 0.4, "train.schedule": "exponential", "train.lr_decay": 0.999,
    "train.dtype": "bfloat16",
}  # fmt: skip
CIFAR: dict[str, Any] = {
    "data.name": "cifar10", "model.name": "cnn", "train.batch": 256, "train.rounds": 1200, "train.lr": 0.2,
    "train.schedule": "exponential", "train.lr_decay": 0.999, "train.dtype": "bfloat16",
}  # fmt: skip
ABLATIONS = (
    f"{FIRST}:begin=0.69:until=0.6901",  # no recess to speak of
    f"{FIRST}:rare=0.999:seldom=0.000001",  # no adjustment by label shares
    f"{FIRST}:kappa=0",  # no priority for badly served clients
    NO_EXCESS,
    f"{FIRST}:cap=1:floor=0",  # no guard
)
MANY: dict[str, Any] = {
    "partition.clients": 100, "attack.clients": 20, "train.participation": 0.1, "train.local_epochs": 1,
    "train.rounds": 150,
}  # fmt: skip
STALE, SPELLS, TENTH = "stale shares", "half are there, in spells", "20 of 100, a tenth takes part, an epoch"
PARTS = {
    "alpha-0.1": Part(_attacks({}), (*COMPARED, NO_EXCESS), 11_000),
    "alpha-0.5": Part(_attacks({"partition.alpha": 0.5}), (*COMPARED, NO_EXCESS), 11_000),
    "harder": Part(
        {
            "one poisoned": SMALL | {"attack.name": "pairwise", "attack.clients": 1},
            "three poisoned": SMALL | {"attack.name": "pairwise", "attack.clients": 3},
            "half of the labels": SMALL | {"attack.name": "pairwise", "attack.rho": 0.5},
            "look-alike": SMALL | {"attack.name": "look-alike"},
            "confused": SMALL | {"attack.name": "confused"},
            STALE: SMALL | {"attack.name": "adaptive"},
        },
        (*COMPARED[:5], NO_EXCESS),
        12_000,
    ),
    "training": Part(
        {
            "five local steps": SMALL | {"attack.name": "pairwise", "train.local_steps": 5, "train.rounds": 120},
            "half take part": SMALL | {"attack.name": "pairwise", "train.participation": 0.5},
            SPELLS: SMALL
            | {
                "attack.name": "pairwise", "train.participation": 0.5, "train.presence": "markov", "train.spell": 15,
            },
            TENTH: SMALL | {"attack.name": "pairwise"} | MANY,
        },
        (*COMPARED[:5], NO_EXCESS),
        13_000,
    ),
    "ablations": Part(_attacks({}, ("none", "pairwise")), ("mean", FIRST, *ABLATIONS), 14_000),
    "others": Part(
        _attacks({}, ("none", "pairwise")), ("mean", FIRST, "term:t=-1", "rfa", "h-nobs:q=0.1"), 17_000
    ),
    "tuned": Part(_attacks({}, ("none", "pairwise")), tuple(m for m in COMPARED if m != RECESS), 18_000),
    "full-batch": Part(_attacks(FULL), COMPARED, 15_000),
    "full-batch-0.5": Part(_attacks({**FULL, "partition.alpha": 0.5}), COMPARED, 15_000),
    "cifar10": Part(_attacks(CIFAR), (*COMPARED, "rfa", "multi-krum:f=2"), 16_000),
    "cifar10-0.5": Part(_attacks({**CIFAR, "partition.alpha": 0.5}), COMPARED, 16_000),
}  # fmt: skip
REVISED = ("mean", ORACLE, FIRST, HIGHER)
HARDER = ("half of the labels", "look-alike", "confused", STALE)
PARTS["revised"] = Part(PARTS["alpha-0.1"].settings, REVISED, 19_000)
PARTS["revised-harder"] = Part(
    {name: PARTS["harder"].settings[name] for name in HARDER}
    | {name: PARTS["training"].settings[name] for name in (SPELLS, TENTH)},
    REVISED,
    19_000,
)
"""To see whether theta should be raised: draws that nothing had used before."""
SMALL_CIFAR: dict[str, Any] = {
    **SMALL, "data.name": "cifar10", "model.name": "paper.small_cnn:network", "train.lr": 0.3,
}  # fmt: skip
FLIPS = ("none", "pairwise", "random_class")
PARTS["cifar10-small"] = Part(
    {attack: {**SMALL_CIFAR, "attack.name": attack} for attack in FLIPS},
    ("mean", ORACLE, "fairmean-split", RECESS, FIRST, HIGHER),
    20_000,
)
PARTS["cifar10-robust"] = Part(
    {attack: {**SMALL_CIFAR, "attack.name": attack} for attack in FLIPS[:2]},
    ("mean", FIRST, "rfa", "multi-krum:f=2", "centered-clipping"),
    20_000,
)
"""CIFAR-10 at the scale that a processor allows. The step is the one of 0.2, 0.3, 0.4 at which Mean's average without
attack was best on the draws 8000 and 8001."""
PARTS["no-excess"] = Part(_attacks({}), ("mean", ORACLE, "fairmean-split", RECESS, FIRST, NO_EXCESS), 21_000)
"""Whether the excess that clients measure while they train helps beside what they measure after a recess."""
GRID, CHOOSING = (0.1, 0.2, 0.4), (9_000, 9_001)
"""Step sizes for the part 'tuned', and the draws on which one of them is chosen for each method."""


@dataclass(frozen=True, eq=False)
class StaleShares(FairMeanRecess):
    """Clients that tell the shares of other labels than those they train on: a row of ``told`` for each that lies."""

    __eq__, __hash__ = object.__eq__, object.__hash__  # ``told`` counts, too

    told: Tensor | None = None

    def side(self, scales: Tensor, means: Means, context: Context) -> State:
        assert self.told is not None
        told = self.told.to(means["labels"].device)[context.clients]
        labels = torch.where(told.isnan(), means["labels"], told)
        return super().side(scales, {**means, "labels": labels}, context)


def stale(simulator: Simulator) -> Simulator:
    """The same simulator, whose poisoned clients tell the shares of their labels before the attack."""
    federation, scale = simulator.federation, simulator.method.scale
    if isinstance(scale, FairMeanRecess):
        counts = federation.class_counts(federation.clean_y)
        shares = torch.from_numpy(counts / counts.sum(1, keepdims=True)).to(simulator.w.device)
        shares[torch.from_numpy(federation.regular).to(shares.device)] = torch.nan
        known = {field.name: getattr(scale, field.name) for field in fields(scale)}
        server = simulator.server
        server.method = replace(simulator.method, scale=StaleShares(**known, told=shares))
        simulator.method = server.method
    return simulator


def configured(setting: Mapping[str, Any], spec: str, seed: int) -> Config:
    """The run of a method in a setting."""
    name, *hyper = (spec if spec != ORACLE else "mean").split(":")
    pairs = [one.partition("=") for one in hyper]
    own = {f"method.{key}": json.loads(value) for key, _, value in pairs}
    return resolve(parse(gather({}, {**setting, "seed": seed, "method.name": name, **own})))


def one(
    setting: Mapping[str, Any], spec: str, seed: int, lies: bool = False, like: Federation | None = None
) -> tuple[dict[str, Any], Federation]:
    """Train to the end; figures of the regular clients, and what all clients measured. ``like`` saves reading data."""
    simulator = prepared(setting, spec, seed, lies, like)
    began = time.perf_counter()
    for t in range(simulator.training.rounds):
        simulator.step(t)
    return row_of(simulator, simulator.evaluate()[0], time.perf_counter() - began), simulator.federation


def prepared(
    setting: Mapping[str, Any],
    spec: str,
    seed: int,
    lies: bool = False,
    like: Federation | None = None,
    fleet: bool = False,
) -> Simulator:
    """The run of a method in a setting, before its first round."""
    config = configured(setting, spec, seed)
    simulator = build_simulator(config, build_federation(config, like=like))
    if spec == ORACLE:
        simulator = told_in_a_fleet(simulator) if fleet else told(simulator)
    return stale(simulator) if lies else simulator


def row_of(simulator: Simulator, accuracies: Any, seconds: float) -> dict[str, Any]:
    """What is kept of a run that has ended."""
    regular = simulator.federation.regular
    figures = summarise(accuracies, regular)
    shown = {name: [round(value, 4) for value in values.tolist()] for name, values in simulator.shown().items()}
    return {
        **{metric: round(figures[metric], 4) for metric in METRICS},
        "seconds": round(seconds, 2),
        "poisoned": json.dumps(np.flatnonzero(~regular).tolist()),
        **{name: json.dumps(shown.get(name, [])) for name in ("excess", "trust")},
    }


Key = tuple[str, str, str, int]
"""Part, setting, method and draw."""


@dataclass(frozen=True)
class Wanted:
    """A run that is not in the file yet. ``same``: what runs of the oracle have in common that are one and the same."""

    key: Key
    settings: Mapping[str, Any]
    lies: bool
    same: str


@dataclass(frozen=True)
class Asked:
    """So many draws of some parts, or ``only`` some of their settings and ``methods``; rows go to the end of a file.

    ``share``: (i, n) leaves every n-th draw from the i-th on.
    """

    parts: Sequence[str]
    draws: int
    only: Sequence[str] = ()
    methods: Sequence[str] = ()
    file: Path | None = None
    share: tuple[int, int] = (1, 1)

    def keep(self, key: Key, row: Mapping[str, Any]) -> None:
        append(self.file or FILE, FIELDS, dict(zip(FIELDS, key, strict=False)) | dict(row))


def wanted(asked: Asked) -> Iterator[Wanted]:
    """What is asked for and not in the file, draw after draw."""
    done = {(row["part"], row["setting"], row["method"], int(row["seed"])) for row in read(asked.file or FILE)}
    only, methods = asked.only, asked.methods
    mine, processes = asked.share
    for k in range(mine - 1, asked.draws, processes):
        for name in asked.parts:
            part = PARTS[name]
            steps = chosen_steps() if name == "tuned" else {}
            for setting, settings in part.settings.items():
                if only and setting not in only:
                    continue
                for method in part.methods:
                    key = (name, setting, method, part.first + k)
                    idle = method == ORACLE and settings["attack.name"] == "none"
                    if key in done or idle or (methods and method not in methods):
                        continue
                    own = {"train.lr": steps[method]} if name == "tuned" else {}
                    same = json.dumps([{**settings, "attack.name": "", "attack.rho": 1}, part.first + k])
                    yield Wanted(key, {**settings, **own}, setting == STALE, same)


def run(asked: Asked) -> None:
    """One run after the other."""
    like: dict[str, Federation] = {}
    oracles: dict[str, dict[str, Any]] = {}  # the poisoned clients never take part, so how they lie does not matter
    for one_wanted in wanted(asked):
        _, _, method, seed = one_wanted.key
        if method == ORACLE and one_wanted.same in oracles:
            row = oracles[one_wanted.same]
        else:
            data = str(one_wanted.settings["data.name"])
            row, like[data] = one(one_wanted.settings, method, seed, one_wanted.lies, like.get(data))
        if method == ORACLE:
            oracles[one_wanted.same] = row
        asked.keep(one_wanted.key, row)


def run_together(asked: Asked, most: int) -> None:
    """The same, where up to ``most`` runs advance together; their seconds are the time of all over their number.

    An oracle is computed under one attack, and its row stands for the others, too.
    """
    waves: list[list[Wanted]] = [[]]
    others: dict[str, list[Key]] = {}
    for one_wanted in wanted(asked):
        if one_wanted.key[2] == ORACLE:
            others.setdefault(one_wanted.same, []).append(one_wanted.key)
            if len(others[one_wanted.same]) > 1:
                continue
        wave = waves[-1]
        if len(wave) >= most or (wave and wave[0].settings["train.rounds"] != one_wanted.settings["train.rounds"]):
            waves.append(wave := [])
        wave.append(one_wanted)
    like: dict[str, Federation] = {}
    for wave in waves:
        began = time.perf_counter()
        simulators = []
        for one_wanted in wave:
            _, _, method, seed = one_wanted.key
            data = str(one_wanted.settings["data.name"])
            built = prepared(one_wanted.settings, method, seed, one_wanted.lies, like.get(data), fleet=True)
            simulators.append(built)
            like[data] = built.federation
        if not simulators:
            continue
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            fleet = Fleet(simulators)
            for _ in fleet.rounds(0, simulators[0].training.rounds, lambda t: False, lambda t: False):
                pass
            accuracies = fleet.evaluate()
        seconds = (time.perf_counter() - began) / len(wave)
        for one_wanted, simulator, (accuracy, _) in zip(wave, simulators, accuracies, strict=True):
            row = row_of(simulator, accuracy, seconds)
            for key in others[one_wanted.same] if one_wanted.key[2] == ORACLE else [one_wanted.key]:
                asked.keep(key, row)
        last = wave[-1].key
        print(f"{last[0]} {last[3]}: {len(wave)} runs, {seconds * len(wave):.1f} s", flush=True)
        del fleet, simulators


def choose_steps() -> None:
    """Every method with every step size, without attack and under pairwise flips, on draws that nothing else uses."""
    like: Federation | None = None
    done = {(row["method"], float(row["lr"]), row["setting"], int(row["seed"])) for row in read(STEPS)}
    for seed in CHOOSING:
        for setting, settings in PARTS["tuned"].settings.items():
            for method in PARTS["tuned"].methods:
                for lr in GRID:
                    if (method, lr, setting, seed) in done or (method == ORACLE and setting == "none"):
                        continue
                    row, like = one({**settings, "train.lr": lr}, method, seed, like=like)
                    known = {"method": method, "lr": lr, "setting": setting, "seed": seed, "average": row["average"]}
                    append(STEPS, tuple(known), known)


def chosen_steps() -> dict[str, float]:
    """For each method the step with the best average accuracy, over the draws and both settings."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in read(STEPS):
        found.setdefault(row["method"], {}).setdefault(float(row["lr"]), []).append(float(row["average"]))
    return {method: max(own, key=lambda lr: float(np.mean(own[lr]))) for method, own in found.items()}


def append(file: Path, names: Sequence[str], row: Mapping[str, Any]) -> None:
    """One row, in one piece, so that several processes can add to the same file."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    if not file.exists():
        writer.writeheader()
    writer.writerow(row)
    with file.open("a", newline="", encoding="utf-8") as there:
        there.write(text.getvalue())


def read(file: Path) -> list[dict[str, str]]:
    """The rows of a file."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as there:
        return list(csv.DictReader(there))


def show(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """A table for each part: differences to Mean with 95 % intervals, a star where they hold after Holm's correction.

    Detection is trust below one half; AUC is of the excess, over all clients of a setting's draws, if all were asked.
    """
    for name, part in PARTS.items():
        mine = [row for row in rows if row["part"] == name]
        if len({row["seed"] for row in mine}) < FEWEST:
            continue
        cells: dict[tuple[str, str, str], Difference] = {}
        for setting in part.settings:
            base = {row["seed"]: row for row in mine if (row["setting"], row["method"]) == (setting, "mean")}
            for method in part.methods[1:]:
                pairs = [
                    (row, base[row["seed"]])
                    for row in mine
                    if (row["setting"], row["method"]) == (setting, method) and row["seed"] in base
                ]
                for metric in METRICS:
                    if len(pairs) >= FEWEST:
                        a, b = zip(*((float(one[metric]), float(other[metric])) for one, other in pairs), strict=True)
                        cells[setting, method, metric] = paired(a, b)
        p_values = {key: cell.p for key, cell in cells.items()}
        corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
        yield f"\n**{name}**\n"
        yield "| setting | method | n | average | variance | worst | found | wrong alarms | AUC |"
        yield "|---|---|---|---|---|---|---|---|---|"
        for setting in part.settings:
            own = [row for row in mine if (row["setting"], row["method"]) == (setting, "mean")]
            if len(own) >= FEWEST:
                means = " | ".join(f"{np.mean([float(row[m]) for row in own]):.1f}" for m in METRICS)
                yield f"| {setting} | mean, absolute | {len(own)} | {means} | | | |"
            for method in part.methods[1:]:
                if (setting, method, "average") not in cells:
                    continue
                texts = []
                for metric in METRICS:
                    difference = cells[setting, method, metric]
                    star = "*" if corrected[setting, method, metric] < 0.05 else ""
                    texts.append(f"{difference.mean:+.1f} ± {difference.half:.1f}{star}")
                found = _detection([row for row in mine if (row["setting"], row["method"]) == (setting, method)])
                yield f"| {setting} | {method} | {difference.n} | {' | '.join(texts)} | {found} |"


def written(page: str, rows: Sequence[Mapping[str, str]]) -> str:
    """The page with the tables of these rows."""
    before, _, rest = page.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return "\n".join([before + MARKS[0], *show(rows), "", MARKS[1] + after])


def _detection(rows: Sequence[Mapping[str, str]]) -> str:
    bad_excess: list[float] = []
    good_excess: list[float] = []
    found = wrong = 0
    for row in rows:
        poisoned = set(json.loads(row["poisoned"]))
        for i, (excess, trust) in enumerate(zip(json.loads(row["excess"]), json.loads(row["trust"]), strict=True)):
            (bad_excess if i in poisoned else good_excess).append(excess)  # NaN: never asked
            found, wrong = found + (i in poisoned and trust < 0.5), wrong + (i not in poisoned and trust < 0.5)
    if not good_excess:
        return " | | "
    if not bad_excess:
        return f" | {wrong} of {len(good_excess)} | "
    bad, good = np.array(bad_excess)[:, None], np.array(good_excess)[None]
    known = not (np.isnan(bad).any() or np.isnan(good).any())
    auc = f"{np.mean((bad > good) + 0.5 * (bad == good)):.3f}" if known else ""
    return f"{found} of {len(bad_excess)} | {wrong} of {len(good_excess)} | {auc}"


def _share(text: str) -> tuple[int, int]:
    mine, _, processes = text.partition("/")
    return int(mine), int(processes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("parts", nargs="+", choices=PARTS)
    running.add_argument("--draws", type=int, default=10)
    running.add_argument("--only", action="append", default=[], metavar="SETTING", help="may be given several times")
    running.add_argument("--method", action="append", default=[], metavar="METHOD", help="likewise")
    running.add_argument("--together", type=int, default=0, metavar="N", help="so many runs advance together")
    running.add_argument("--share", type=_share, default=(1, 1), metavar="I/N", help="the I-th of N processes")
    running.add_argument("--file", type=Path, help="append to another file, with rows like those of results/recess.csv")
    verbs.add_parser("steps")
    verbs.add_parser("show")
    verbs.add_parser("write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.verb == "run":
        known = (arguments.parts, arguments.draws, arguments.only, arguments.method, arguments.file)
        asked = Asked(*known, arguments.share)
        if arguments.together:
            run_together(asked, arguments.together)
        else:
            run(asked)
    elif arguments.verb == "steps":
        choose_steps()
    elif arguments.verb == "write":
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), read(FILE)), encoding="utf-8")
    else:
        print("\n".join(show(read(FILE))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
