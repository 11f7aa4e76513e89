"""The words of a command: settings, lists and numbers as they are typed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from fairmean.errors import UserError

MOST_SEEDS = 100_000
_IMPORT = "import a module that registers parts of your own"


def settings_of(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """(config file, overrides) of ``[config.toml] [key=value …]``."""
    from fairmean.experiments.config import literal

    source, overrides = None, {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            overrides[key] = literal(value)
        elif source is None:
            source = word
        else:
            raise UserError(f"'{word}': only one config file is read; settings are written key=value")
    return source, overrides


def split(option: str, text: str | None, example: str) -> list[str] | None:
    """The items of a list with commas; commas inside brackets, as in clients=[8,9], do not part items."""
    if text is None:
        return None
    parts = [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]
    if not parts:
        raise UserError(f"{option} '{text}': names nothing; write a list such as {example}")
    return parts


def numbers(text: str | None) -> list[int] | None:
    """The whole numbers of ``1,2,3`` or ``1-5``."""
    if text is None:
        return None
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            more = range(int(first), int(last) + 1) if dash else range(int(first), int(first) + 1)
            if not more:
                raise ValueError
            if more[-1] - more[0] >= MOST_SEEDS or len(seeds) + len(more) > MOST_SEEDS:
                raise UserError(f"--seeds {text}: that is more than {MOST_SEEDS:,} runs; ask for fewer seeds")
            seeds += more
    except UserError:
        raise
    except ValueError:
        raise UserError(f"--seeds {text}: write whole numbers, as 1,2,3 or 1-5") from None
    return seeds


def parser_for(verbs: Any, name: str, help: str, about: str, examples: Sequence[str] = ()) -> argparse.ArgumentParser:
    """A verb's parser: what it does, and examples of its use at the end of its help."""
    epilog = "examples:\n" + "\n".join(f"  {example}" for example in examples) if examples else None
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=help, description=about, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return parser


def takes_settings(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Settings, and the modules that they need."""
    parser.add_argument("settings", nargs="*", metavar="[config.toml] [key=value …]", help=f"the settings{more}")
    takes_modules(parser)


def takes_modules(parser: argparse.ArgumentParser) -> None:
    """``--import MODULE``, as often as one wants."""
    parser.add_argument("--import", dest="modules", action="append", default=[], metavar="MODULE", help=_IMPORT)


def takes_json(parser: argparse.ArgumentParser, table: bool = False) -> None:
    """``--json``, for programs; where a table is printed, ``--csv`` instead."""
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print JSON, for other programs")
    if table:
        forms.add_argument("--csv", action="store_true", help="print CSV, for spreadsheets")


def takes_training(parser: argparse.ArgumentParser, table: bool = False) -> None:
    """What 'run' and 'compare' have in common."""
    takes_settings(parser)
    takes_json(parser, table)
    parser.add_argument("--dry-run", action="store_true", help="say what would be run, and write nothing")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("-v", "--verbose", action="store_true", help="say on standard error what happens")


def takes_directory(parser: argparse.ArgumentParser) -> None:
    """Where runs are looked for."""
    parser.add_argument("--dir", default="runs", metavar="FOLDER", help="where the runs are; default: %(default)s")
