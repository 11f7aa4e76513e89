"""``fairmean reproduce``: the paper's tables and figures, in a checkout of the repository."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from fairmean.errors import UserError
from fairmean.terminal.words import parser_for, takes_json


def add_to(verbs: Any) -> None:
    """Add the verb, whose work is done by the package ``paper`` of the checkout."""
    paper = papers_verb()
    if paper is not None:
        paper.add_to(verbs)
        return
    about = "The paper's tables and figures. They come with a checkout of the repository; this installation has none."
    examples = ("fairmean reproduce table2                               in a checkout of the repository",)
    parser = parser_for(verbs, "reproduce", "the paper's tables and figures (in a checkout)", about, examples)
    parser.add_argument("settings", nargs="*")
    takes_json(parser)
    parser.set_defaults(call=_no_paper)


def papers_verb() -> Any:
    """The module of 'fairmean reproduce', which comes with a checkout of the repository; None where there is none."""
    checkout = Path(__file__).resolve().parents[4]
    if not (checkout / "paper" / "verb.py").is_file():
        return None
    known = sys.modules.get("paper")
    if known is not None and checkout / "paper" not in map(Path, getattr(known, "__path__", [])):
        return None  # somebody else's module of that name is in use
    before = list(sys.path)
    sys.path.insert(0, str(checkout))  # first, so that a paper.py in the working folder is not taken for it
    try:
        return importlib.import_module("paper.verb")
    finally:
        sys.path[:] = before


def _no_paper(arguments: argparse.Namespace) -> None:
    raise UserError("reproduce: the paper's settings and results come with a checkout of the repository; use it there")
