"""``fairmean compare``: many runs, one table."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from fairmean.terminal.words import numbers, parser_for, settings_of, split, takes_training

if TYPE_CHECKING:
    from fairmean.engine.ranks import World

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
    "fairmean compare grid.train.lr=[0.05,0.1,0.2] --methods mean --attacks none",
    "'fairmean run --help' lists all keys; 'fairmean list methods' all methods.",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "compare", "several methods × attacks × seeds in one table", _ABOUT, _EXAMPLES)
    takes_training(parser)
    usual = "mean, fedavg, qffl, fairmean and fairmean-normalised"
    parser.add_argument("--methods", metavar="A,B:key=value", help=f"which methods, or all; default: {usual}")
    parser.add_argument("--attacks", metavar="A,B:key=value", help="default: none, random_class, pairwise")
    parser.add_argument("--seeds", metavar="1-5", help="which draws, as 1,2,3 or 1-5; default: the config's seed")
    parser.add_argument(
        "--together", type=int, metavar="N", help="runs at once; default: all that fit on a GPU, one on a CPU"
    )
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

    world = world or ALONE
    if everything:
        lists["methods"] = list(named_methods())
    if arguments.dry_run:
        for method, attack, config in resolved(plan(source, overrides, **lists), Sources()):
            print(f"{folder_of(config)}  {method} · {attack} · seed {config.seed}")
        return 0
    with Live(arguments.quiet or arguments.json or world.rank > 0) as live:
        if world.size > 1:
            spread(plan(source, overrides, **lists), world, live.study, arguments.together)
        if world.rank:
            return world.first(0)
        result = compare_planned(plan(source, overrides, **lists), live.study, arguments.together)
    if arguments.json:
        print(to_json(result.records))
    else:
        print("\n".join([tables.headline(result.config), comparison(result), tables.footer(result, _again(arguments))]))
    for line in result.failures:
        arguments.fail(line, 1)
    return world.first(1 if result.failures else 0)


def _again(arguments: argparse.Namespace) -> str:
    """The command as it was given, but for its seeds, so that what comes next can be written from it."""
    lists = {"--methods": arguments.methods, "--attacks": arguments.attacks}
    words = ["fairmean", "compare", *arguments.settings]
    words += [word for option, value in lists.items() if value for word in (option, value)]
    words += [word for module in arguments.modules for word in ("--import", module)]
    return shlex.join(words)
