"""``fairmean new``: a commented config to start from."""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

from fairmean.errors import UserError
from fairmean.terminal.words import parser_for, takes_json

_ABOUT = """\
Write a commented config to start from: the settings that people change most, with their defaults. With --all it has
every setting there is."""
_EXAMPLES = (
    "fairmean new my.toml                                    then: fairmean run my.toml",
    "fairmean new --all                                      print every setting",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "new", "write a commented config to start from", _ABOUT, _EXAMPLES)
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="where to; without it, print")
    parser.add_argument("--all", action="store_true", help="every setting there is")
    takes_json(parser)
    parser.set_defaults(call=_new)


def _new(arguments: argparse.Namespace) -> None:
    from fairmean.terminal import starter

    text = starter.text(arguments.all)
    if arguments.file == "-":
        print(json.dumps(tomllib.loads(text), indent=1, ensure_ascii=False) if arguments.json else text.rstrip("\n"))
        return
    file = Path(arguments.file)
    if file.exists():
        raise UserError(f"'{file}' exists; name another file")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        if file.is_file():  # half of it
            file.unlink()
        raise UserError(f"'{file}': cannot be written ({error.strerror})") from None
    print(json.dumps({"file": str(file)}) if arguments.json else f"wrote {file}; next: fairmean run {file}")
