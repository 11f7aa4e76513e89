"""``fairmean compare``: many runs, one table."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from fairmean.terminal.words import numbers, parser_for, settings_of, split, takes_training

if TYPE_CHECKING:
    from fairmean.engine.ranks import World
    from fairmean.experiments.study import Comparison

_ABOUT = """\
Run every method under every attack for every seed, and print one table.

A seed is one draw of everything random: the clients' samples, the poisoned labels, the initial model. All methods have
the same draws, so their differences are paired. Runs that are there already are not computed again.

A list below [grid] in a config file is swept: [grid] "train.lr" = [0.05, 0.1] runs everything with both step sizes.
On the command line that is written grid.train.lr=[0.05,0.1]."""
_EXAMPLES = (
    "fairmean compare                                        the defaults, on embedded images",
    "fairmean compare --methods mean,fairmean:kappa=4 --attacks none,pairwise --seeds 1-5",
    "fairmean compare --methods fairmean,mean:train.lr=0.2   a setting for one method alone",
    "fairmean compare --seeds 1-5 --csv > runs.csv           a row for every run",
    "fairmean compare grid.train.lr=[0.05,0.1,0.2] --methods mean --attacks none",
    "fairmean compare --seeds 1-5 --report report.html       and a page to look at",
    "'fairmean run --help' lists all keys; 'fairmean list methods' all methods.",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "compare", "several methods × attacks × seeds in one table", _ABOUT, _EXAMPLES)
    takes_training(parser, table=True)
    usual = "mean, fedavg, qffl, fairmean and what fits the task: for classes fairmean-split and fairmean-recess"
    parser.add_argument("--methods", metavar="A,B:key=value", help=f"which methods, or all; default: {usual}")
    fitting = "default: none, and what fits the task: for classes random_class and pairwise"
    parser.add_argument("--attacks", metavar="A,B:key=value", help=fitting)
    parser.add_argument("--seeds", metavar="1-5", help="which draws, as 1,2,3 or 1-5; default: the config's seed")
    parser.add_argument(
        "--together", type=int, metavar="N", help="runs at once; default: all that fit on a GPU, one on a CPU"
    )
    parser.add_argument("--report", metavar="FILE", help="also write a report of it: one HTML file to look at")
    parser.set_defaults(call=_compare, ranks=True)


def _compare(arguments: argparse.Namespace, world: World | None) -> int:
    source, overrides = settings_of(arguments.settings)
    everything = arguments.methods == "all"
    lists: dict[str, Any] = {
        "methods": None if everything else split("--methods", arguments.methods, "mean,fairmean:kappa=4"),
        "attacks": split("--attacks", arguments.attacks, "none,pairwise:rho=0.5"),
        "seeds": numbers(arguments.seeds),
    }

    from fairmean.engine.ranks import ALONE
    from fairmean.experiments.comparison_table import comparison
    from fairmean.experiments.folder import to_json
    from fairmean.experiments.identity import Sources, folder_of
    from fairmean.experiments.study import compare_planned, plan, resolved, spread
    from fairmean.rules.named import named_methods
    from fairmean.terminal import tables
    from fairmean.terminal.progress import Live
    from fairmean.text import to_csv

    world = world or ALONE
    if everything:
        lists["methods"] = list(named_methods())
    if arguments.dry_run:
        planned = [
            {"folder": str(folder_of(config)), "method": method, "attack": attack, "seed": config.seed}
            for method, attack, config in resolved(plan(source, overrides, **lists), Sources())
        ]
        lines = (f"{run['folder']}  {run['method']} · {run['attack']} · seed {run['seed']}" for run in planned)
        print(to_json(planned) if arguments.json else to_csv(planned) if arguments.csv else "\n".join(lines))
        return 0
    with Live(arguments.quiet or arguments.json or arguments.csv or world.rank > 0) as live:
        if world.size > 1:
            spread(plan(source, overrides, **lists), world, live.study, arguments.together)
        if world.rank:
            return world.first(0)
        result = compare_planned(plan(source, overrides, **lists), live.study, arguments.together)
    report = _reported(result, arguments.report) if arguments.report else None
    if arguments.json:
        print(to_json(result.records))
    elif arguments.csv:
        print(to_csv(result.records))
    else:
        ending = tables.footer(result, _again(arguments), report)
        said = tables.headline(result.config, result.client_names, result.records)
        print("\n".join([said, comparison(result), ending]))
    for line in result.failures:
        arguments.fail(line, 1)
    return world.first(1 if result.failures else 0)


def _reported(result: Comparison, file: str) -> str:
    """Write the report, and say where it is."""
    from fairmean.report import write

    return str(write(result, file))


def _again(arguments: argparse.Namespace) -> str:
    """The command as it was given, but for its seeds, so that what comes next can be written from it."""
    lists = {"--methods": arguments.methods, "--attacks": arguments.attacks}
    words = ["fairmean", "compare", *arguments.settings]
    words += [word for option, value in lists.items() if value for word in (option, value)]
    words += [word for module in arguments.modules for word in ("--import", module)]
    return shlex.join(words)
