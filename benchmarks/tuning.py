"""``fairmean tune`` beside an exhaustive search of the same settings: what each chooses, and what it costs in rounds.

The exhaustive search runs every point of the grid on every draw for all rounds, and takes the best by the same rule.
For six methods the grid has step sizes alone, and ``tune`` has a third of its cost; for two more it has the method's
own hyper-parameter, too, and ``tune`` has its usual budget.

    python benchmarks/tuning.py                                     writes results/tune-against-grid.csv
    python benchmarks/tuning.py --draws 2001-2003 --out other.csv   other draws, and elsewhere
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fairmean
from fairmean.experiments.choosing import ranked, score
from fairmean.experiments.search import FACTOR, HALF_WIDTHS, round_step
from fairmean.experiments.study import spec, written
from fairmean.experiments.tune import BUDGET, BY
from fairmean.rules.scales import QFFL, FairMean
from fairmean.terminal.words import numbers

RESULTS = Path(__file__).parent.parent / "results"
SETTINGS: dict[str, Any] = {"train.rounds": 90, "train.batch": 32, "run.eval_every": 90, "data.validation": 0.2}
STEP = 0.1
GRID = [round_step(STEP * FACTOR**k) for k in range(-HALF_WIDTHS[0], HALF_WIDTHS[0] + 1)]
STEPS_ALONE = ("mean", "fedavg", "qffl:q=1", "fairmean:kappa=1:tau=1", "multi-krum", "rfa:nu=1e-05")
JOINT = {"qffl": ("q", QFFL.search["q"]), "fairmean:tau=1": ("kappa", FairMean.search["kappa"])}
DRAWS = ((1001, 1002, 1003), (2001, 2002, 2003), (3001, 3002, 3003))
FIELDS = (
    "method", "by", "draws", "grid_best", "tune_best", "steps_apart", "grid_value", "tune_value", "points_lost",
    "grid_settings", "tune_settings", "grid_rounds", "tune_rounds", "cost_share",
)  # fmt: skip


def figures(text: str, draws: Sequence[int], settings: dict[str, Any]) -> list[dict[str, float]]:
    """The validation figures of a setting on every draw; NaN where the run diverged."""
    result = []
    for seed in draws:
        try:
            run = fairmean.run(**settings | {"seed": seed, "attack.name": "none"} | _flat(spec(text, "method")))
            result.append(run.summary["validation"])
        except fairmean.Diverged:
            result.append(dict.fromkeys(("average", "worst", "worst_tenth"), math.nan))
    return result


def _flat(overrides: dict[str, Any]) -> dict[str, Any]:
    method = overrides.pop("method")
    return {"method": method, **overrides}


def rows(
    text: str, draws: Sequence[int], settings: dict[str, Any], by: Sequence[str], own: tuple[str, Sequence[Any]] | None
) -> list[dict[str, Any]]:
    """One row for each criterion."""
    key, values = own or ("", ())
    others = [f":{key}={written(value)}" for value in values] or [""]
    steps = {f"{text}{other}:train.lr={written(step)}": step for other, step in itertools.product(others, GRID)}
    known = {setting: figures(setting, draws, settings) for setting in steps}
    result = []
    for criterion in by:
        scores = {s: score([BY[criterion](figure) for figure in known[s]]) for s in known}
        best = ranked(scores, steps.__getitem__)[0]
        grid_rounds = len(steps) * len(draws) * settings["train.rounds"]
        budget = BUDGET * len(draws) if own else len(GRID) * len(draws) // 3
        tuned = fairmean.tune(methods=[text], seeds=draws, budget=budget, by=criterion, **settings)
        chosen, search = tuned.specs[0], tuned.searches[text]
        step = tuned.chosen[text]["train.lr"]
        if own and key not in tuned.chosen[text]:
            chosen = f"{text}:{key}={written(search.defaults[key])}:train.lr={written(step)}"
        value = scores.get(chosen, score(search.values[search.best, search.ladder.last]))
        result.append(
            {
                "method": text,
                "by": criterion,
                "draws": f"{draws[0]}-{draws[-1]}",
                "grid_best": best.removeprefix(text).lstrip(":"),
                "tune_best": chosen.removeprefix(text).lstrip(":"),
                "steps_apart": round(abs(math.log(step / steps[best], FACTOR))),
                "grid_value": f"{scores[best]:.2f}",
                "tune_value": f"{value:.2f}",
                "points_lost": f"{scores[best] - value:.2f}",
                "grid_settings": len(steps),
                "tune_settings": len(search.reached),
                "grid_rounds": grid_rounds,
                "tune_rounds": search.spent,
                "cost_share": f"{search.spent / grid_rounds:.3f}",
            }
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", help="as 2001-2003; default: three times three")
    parser.add_argument("--methods", help=f"default: {', '.join([*STEPS_ALONE, *JOINT])}")
    parser.add_argument("--out", type=Path, default=RESULTS / "tune-against-grid.csv")
    parser.add_argument("--runs", help="where runs are kept, so that they need not be computed again; default: nowhere")
    arguments = parser.parse_args()
    every = DRAWS if arguments.draws is None else (tuple(numbers(arguments.draws) or ()),)
    methods = arguments.methods.split(",") if arguments.methods else [*STEPS_ALONE, *JOINT]
    with tempfile.TemporaryDirectory() as folder, open(arguments.out, "w", newline="") as out:
        writer = csv.DictWriter(out, FIELDS, lineterminator="\n")
        writer.writeheader()
        for draws, text in itertools.product(every, methods):
            settings = SETTINGS | {"run.dir": arguments.runs or folder, "run.name": "tune"}
            for row in rows(text, draws, settings, ("average", "worst"), JOINT.get(text)):
                writer.writerow(row)
                out.flush()
                print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
