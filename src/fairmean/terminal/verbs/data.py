"""``fairmean data``: data sets, where they are and how to get them."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fairmean.errors import UserError
from fairmean.terminal.words import parser_for, takes_json

_ABOUT = "List the data sets that fairmean knows by name, fetch one into the cache, or say where it lies."
_EXAMPLES = (
    "fairmean data list",
    "fairmean data get fashion-mnist",
    "fairmean data get cifar10 --from ~/downloads            from files that you have already",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "data", "data sets: list, get, path", _ABOUT, _EXAMPLES)
    parser.add_argument("action", choices=("list", "get", "path"))
    parser.add_argument("name", nargs="?", help="the data set")
    parser.add_argument("--from", dest="source", metavar="PATH", help="with get: a folder or file that holds it")
    takes_json(parser)
    parser.set_defaults(call=_data)


def _data(arguments: argparse.Namespace) -> None:
    from fairmean import data
    from fairmean.data.store import folder as cache_folder
    from fairmean.terminal.progress import Live
    from fairmean.terminal.stored_catalogue import datasets
    from fairmean.text import columns

    if arguments.action == "list":
        rows = datasets()
        if arguments.json:
            print(json.dumps(rows, indent=1, ensure_ascii=False))
            return
        print(columns([[str(value) for value in row.values()] for row in rows], list(rows[0])))
        print(f"cache: {cache_folder()} (set FAIRMEAN_DATA to move it)")
        return
    if arguments.name is None:
        raise UserError(f"data {arguments.action}: name a data set; 'fairmean data list' shows them")
    if arguments.action == "get":
        live = Live()
        file = data.get(arguments.name, arguments.source, progress=live.line)
        live.clear()
    else:
        file = data.path(arguments.name)
    print(json.dumps({"name": arguments.name, "path": str(file)}) if arguments.json else file)
