"""``fairmean data``: data sets, where they are and how to get them."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fairmean.errors import UserError
from fairmean.terminal.words import parser_for, settings_of, takes_json

_ABOUT = """\
List the data sets that fairmean knows by name, fetch one into the cache, or say where it lies. 'show' reads a data set
or a file of yours and says what is in it: columns and their types, target and task, classes, and who has what."""
_EXAMPLES = (
    "fairmean data list",
    "fairmean data get fashion-mnist",
    "fairmean data show patients.csv                         which columns there are",
    "fairmean data show patients.csv data.target=outcome data.client=site",
    "fairmean data get cifar10 --from ~/downloads            from files that you have already",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "data", "data sets: list, show, get, path", _ABOUT, _EXAMPLES)
    parser.add_argument("action", choices=("list", "show", "get", "path"))
    parser.add_argument("name", nargs="?", help="the data set; with show, also a file or folder of yours")
    parser.add_argument("settings", nargs="*", metavar="data.key=value", help="with show: how to read it")
    parser.add_argument("--from", dest="source", metavar="PATH", help="with get: a folder or file that holds it")
    takes_json(parser, table=True)
    parser.set_defaults(call=_data)


def _data(arguments: argparse.Namespace) -> None:
    from fairmean import data
    from fairmean.data.store import folder as cache_folder
    from fairmean.terminal.progress import Live
    from fairmean.terminal.stored_catalogue import datasets
    from fairmean.text import columns, to_csv

    if arguments.settings and arguments.action != "show":
        raise UserError(f"data {arguments.action}: '{arguments.settings[0]}' belongs to 'fairmean data show'")
    if arguments.action == "list":
        rows = datasets()
        if arguments.json:
            print(json.dumps(rows, indent=1, ensure_ascii=False))
            return
        if arguments.csv:
            print(to_csv(rows))
            return
        print(columns([[str(value) for value in row.values()] for row in rows], list(rows[0])))
        print(f"cache: {cache_folder()} (set FAIRMEAN_DATA to move it)")
        return
    if arguments.csv:
        raise UserError(f"data {arguments.action} --csv: prints a path, which is no table; use --json")
    if arguments.name is None:
        raise UserError(f"data {arguments.action}: name a data set; 'fairmean data list' shows them")
    if arguments.action == "show":
        _show(arguments)
        return
    if arguments.action == "get":
        live = Live()
        file = data.get(arguments.name, arguments.source, progress=live.line)
        live.clear()
    else:
        file = data.path(arguments.name)
    print(json.dumps({"name": arguments.name, "path": str(file)}) if arguments.json else file)


def _show(arguments: argparse.Namespace) -> None:
    from fairmean import data
    from fairmean.data.overview import columns_of, dataset_of, is_whole, overview, table_of
    from fairmean.experiments.config import data_section
    from fairmean.terminal import data_page

    source, overrides = settings_of(arguments.settings)
    if source is not None:
        raise UserError(f"data show: '{source}' is no setting; write data.target=COLUMN and its like")
    settings = data_section(overrides | {"data.name": arguments.name})
    table, asked = table_of(arguments.name, settings.columns)
    columns = None if table is None else columns_of(table, asked)
    if table is not None and columns is not None and not arguments.json:
        print(data_page.column_table(columns, table.rows))
        print("".join(f"\n{note}" for note in table.notes), end="\n" if table.notes else "")
    if table is not None and not is_whole(table, asked):
        facts: dict[str, Any] = {"name": arguments.name}
        rest = f"next: fairmean data show {arguments.name} data.target=COLUMN data.client=COLUMN"
    else:
        if table is not None:
            dataset = dataset_of(table, asked)
        else:
            dataset = data.load(arguments.name, settings.path, download=False, columns=asked)
        facts = overview(dataset, settings.scale)
        rest = data_page.page(facts, asked.target)
    if arguments.json:
        notes = [] if table is None else list(table.notes)
        print(json.dumps({**facts, "columns": columns, "notes": notes}, indent=1, ensure_ascii=False))
    else:
        print(f"\n{rest}" if table is not None else rest)
