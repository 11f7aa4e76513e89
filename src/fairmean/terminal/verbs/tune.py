"""``fairmean tune``: a fair search for each method."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import Any

from fairmean.errors import UserError
from fairmean.terminal.words import numbers, parser_for, settings_of, split, takes_training

_ABOUT = """\
Choose the step size and the hyper-parameters of each method, with the same budget for each.

Every setting is judged on samples that are held out from training (data.validation; a fifth, unless you set it), on
draws that no comparison reports. Step sizes come first: a grid of factors of two about train.lr, which grows where its
best lies at an edge. Then come the method's own hyper-parameters with steps near the best one, drawn at random where
there are too many, and then the steps beside the best. Most settings have a third of the rounds on one draw alone; the
best go on.

A table says what was chosen and how much it matters, and the comparison that follows is there to copy. What a method's
name sets, as in fairmean:kappa=4, is not searched. Runs that are there already are not computed again, so the same
command goes on after an interruption."""
_EXAMPLES = (
    "fairmean tune --methods mean,fairmean train.rounds=50",
    "fairmean tune my.toml --methods mean,qffl,fairmean:tau=1 --by worst --budget 30",
    "fairmean tune --methods krum:f=2 --attacks pairwise --seeds 1001-1005 --compare-seeds 1-20",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "tune", "choose step sizes and hyper-parameters fairly", _ABOUT, _EXAMPLES)
    takes_training(parser)
    parser.add_argument("--methods", metavar="A,B:key=value", help="which methods, or all; default: those of 'compare'")
    parser.add_argument("--attacks", metavar="A,B", default="none", help="what to tune under; default: %(default)s")
    parser.add_argument("--seeds", metavar="1001-1003", help="draws to tune on; default: 1001-1003")
    parser.add_argument("--compare-seeds", metavar="1-5", help="draws that the comparison will report; default: 1-5")
    parser.add_argument(
        "--budget", metavar="N", help="runs of train.rounds rounds for each method; default: 8 per draw"
    )
    parser.add_argument(
        "--by", metavar="WHAT", default="average", help="average, worst, worst_tenth or average+worst of the clients"
    )
    parser.add_argument("--csv", action="store_true", help="print every run of the search as CSV")
    parser.set_defaults(call=_tune)


def _tune(arguments: argparse.Namespace) -> int:
    source, overrides = settings_of(arguments.settings)
    everything = arguments.methods == "all"
    options: dict[str, Any] = {
        "methods": None if everything else split("--methods", arguments.methods, "mean,fairmean:tau=1"),
        "attacks": split("--attacks", arguments.attacks, "none,pairwise:rho=0.5"),
        "budget": _budget(arguments.budget),
        "by": arguments.by,
    }
    seeds = {"seeds": arguments.seeds, "compare_seeds": arguments.compare_seeds}
    options |= {name: numbers(text) for name, text in seeds.items() if text is not None}

    from fairmean.experiments.folder import to_json
    from fairmean.experiments.tune import planned, tune
    from fairmean.rules.named import named_methods
    from fairmean.terminal import tables
    from fairmean.terminal.progress import Live, Log

    if everything:
        options["methods"] = list(named_methods())
    if arguments.dry_run:
        for one in planned(source, overrides, **options):
            print(_plan(one.spec, one.search))
        return 0
    with (
        Log() if arguments.verbose else nullcontext(),
        Live(arguments.quiet or arguments.json or arguments.csv) as live,
    ):
        result = tune(source, report=live.study, **options, **overrides)
    if arguments.json:
        print(to_json({"chosen": result.chosen, "command": result.command, "records": result.records}))
    elif arguments.csv:
        print(result.csv(), end="")
    else:
        print("\n".join([tables.headline(result.config), str(result), f"next: {result.command}"]))
    return 0


def _budget(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or not text.isascii() or int(text) < 1:
        raise UserError(f"--budget {text}: must be a whole number of runs for each method, such as 24")
    return int(text)


def _plan(method: str, search: Any) -> str:
    """What a search would do, in a line."""
    levels = ", then ".join(
        f"{level.rounds} rounds on {level.draws} draw{'' if level.draws == 1 else 's'}"
        for level in search.ladder.levels
    )
    keys = ", ".join([*([search.step] if search.step else []), *search.space])
    return f"{method}: {keys}; {levels}; at most {search.budget} rounds"
