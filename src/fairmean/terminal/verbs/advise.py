"""``fairmean advise``: before a run, a safe step size."""

from __future__ import annotations

import argparse
from typing import Any

from fairmean.terminal.words import parser_for, settings_of, takes_json, takes_settings

_ABOUT = """\
Before a run: estimate at the initial model how long a step may safely be, and what FairMean's κ and τ cost in step
size."""
_EXAMPLES = ("fairmean advise", "fairmean advise my.toml method.kappa=4")


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "advise", "before a run: a safe step size", _ABOUT, _EXAMPLES)
    takes_settings(parser)
    parser.add_argument(
        "--samples", type=int, default=2_000, metavar="N", help="samples of a client, at most; default: %(default)s"
    )
    takes_json(parser)
    parser.set_defaults(call=_advise)


def _advise(arguments: argparse.Namespace) -> None:
    from fairmean.experiments.config import gather

    tree = gather(*settings_of(arguments.settings))

    from fairmean.experiments.advise import advise
    from fairmean.experiments.folder import to_json
    from fairmean.terminal.progress import Live
    from fairmean.theory import advice

    live = Live(arguments.json)
    given = advise(tree, samples=arguments.samples, tell=live.line)
    live.clear()
    print(to_json(advice.record(given)) if arguments.json else advice.page(given))
