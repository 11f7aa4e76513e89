"""``fairmean completion``: what lets a shell complete words of this command line."""

from __future__ import annotations

import argparse
import json
from typing import Any

from fairmean.terminal.words import parser_for, takes_json

SHELLS = ("bash", "zsh", "fish")
_ABOUT = """\
Print what lets a shell complete the words of this command line with the TAB key: verbs, options, settings and their
values, methods, attacks and the runs in the folder 'runs'. The shell reads it once; no program runs when you press
TAB."""
_EXAMPLES = (
    'eval "$(fairmean completion bash)"                      in ~/.bashrc',
    'eval "$(fairmean completion zsh)"                       in ~/.zshrc, after compinit',
    "fairmean completion fish > ~/.config/fish/completions/fairmean.fish",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "completion", "let bash, zsh or fish complete with TAB", _ABOUT, _EXAMPLES)
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    takes_json(parser)
    parser.set_defaults(call=_completion)


def _completion(arguments: argparse.Namespace) -> None:
    from importlib.resources import files

    file = files("fairmean.terminal").joinpath("completions", f"fairmean.{arguments.shell}")
    text = file.read_text(encoding="utf-8")
    print(json.dumps({"shell": arguments.shell, "text": text}) if arguments.json else text, end="")
