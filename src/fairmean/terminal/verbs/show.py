"""``fairmean show``: one run, from its folder."""

from __future__ import annotations

import argparse
from typing import Any

from fairmean.terminal.words import parser_for, takes_directory, takes_json, takes_modules

_ABOUT = """\
Show one run: its settings where they are not the defaults, its figures, and every client with its samples, the weight
of its gradient and its accuracy (or its error, where numbers are predicted), the interval that its number of test
samples leaves, and further figures."""
_EXAMPLES = (
    "fairmean show 3f2a                                      a beginning of the run's hash is enough",
    "fairmean show runs/demo/3f2a8c0de111 --clients 100",
    "fairmean show 3f2a --csv > clients.csv                  a row for every client",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "show", "one run: settings, figures, every client", _ABOUT, _EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="the run's folder, or a beginning of its hash")
    parser.add_argument("--clients", type=int, default=20, metavar="N", help="how many clients; default: %(default)s")
    takes_directory(parser)
    takes_json(parser, table=True)
    takes_modules(parser)
    parser.set_defaults(call=_show)


def _show(arguments: argparse.Namespace) -> None:
    from fairmean.experiments.listing import find

    folder = find(arguments.run, arguments.dir)

    from fairmean.experiments.folder import to_json
    from fairmean.experiments.reading import load
    from fairmean.terminal import one_run
    from fairmean.text import to_csv

    run = load(folder)
    if arguments.csv:
        print(to_csv(one_run.record(run)["clients"]))
        return
    print(to_json(one_run.record(run)) if arguments.json else one_run.page(run, arguments.clients))
