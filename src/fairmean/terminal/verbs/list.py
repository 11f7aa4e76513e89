"""``fairmean list``: what there is."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fairmean.errors import UserError
from fairmean.terminal.words import parser_for, takes_json, takes_modules

WHAT = (
    "methods", "attacks", "datasets", "models", "partitions", "objectives", "scales", "aggregators", "pre",
    "optimisers",
)  # fmt: skip
_ABOUT = """\
List what there is. With a NAME, say all about one; of a method: its equation, when to use it, what it assumes, and
what clients and server send and keep in a round."""
_EXAMPLES = (
    "fairmean list methods",
    "fairmean list methods fairmean-split",
    "fairmean list methods fairmean+nnm+cwtm:kappa=4:f=1     a method is written as for compare",
    "fairmean list attacks",
    "fairmean list methods --csv > methods.csv",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "list", "what there is: methods, attacks, …; all about one of them", _ABOUT, _EXAMPLES)
    parser.add_argument("what", choices=WHAT, metavar="WHAT", help=", ".join(WHAT))
    parser.add_argument("name", nargs="?", metavar="NAME", help="one of them; without it, all are listed")
    takes_json(parser, table=True)
    takes_modules(parser)
    parser.set_defaults(call=_list)


def _list(arguments: argparse.Namespace) -> None:
    from fairmean.terminal import pages
    from fairmean.terminal.stored_catalogue import one, rows
    from fairmean.text import to_csv

    what = arguments.what
    if arguments.name is not None:
        if arguments.csv:
            raise UserError(f"list {what} {arguments.name} --csv: one of them is no table; use --json")
        facts = one(what, arguments.name)
        page = pages.method if what == "methods" else pages.record
        print(_json(facts) if arguments.json else page(facts))
        return
    found = rows(what)
    if arguments.csv:
        print(to_csv(found))
        return
    print(_json(found) if arguments.json else (pages.methods if what == "methods" else pages.records)(found))


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)
