"""``fairmean check``: what the paper's theorems say about a run."""

from __future__ import annotations

import argparse
from typing import Any

from fairmean.terminal.words import parser_for, takes_directory, takes_json

_ABOUT = """\
Check every inequality of the paper's theorems on a run that was made with theory=true: both sides, how far apart they
are, and what that means. The exit code is 1 if one is broken."""
_EXAMPLES = (
    "fairmean run theory=true train.lr=0.005                 prints the run's folder",
    "fairmean check 3f2a                                     a beginning of the run's hash is enough",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "check", "what the paper's theorems say about a run", _ABOUT, _EXAMPLES)
    parser.add_argument("folder", metavar="RUN", help="the run's folder, or a beginning of its hash")
    takes_directory(parser)
    takes_json(parser)
    parser.set_defaults(call=_check)


def _check(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from fairmean.experiments.folder import to_json
    from fairmean.experiments.listing import find
    from fairmean.theory import words
    from fairmean.theory.certificate import certify

    folder = Path(arguments.folder)
    certificate = certify(folder if folder.is_dir() else find(arguments.folder, arguments.dir))
    print(to_json(words.record(certificate)) if arguments.json else words.page(certificate))
    return 0 if certificate.holds else 1
