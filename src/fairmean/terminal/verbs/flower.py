"""``fairmean flower``: a Flower app with our methods, and a federation on this machine to try it in."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from fairmean.errors import UserError
from fairmean.terminal.progress import Terminated
from fairmean.terminal.words import parser_for, takes_json

_ABOUT = """\
Take a method out of the simulator, into a real federation on Flower. (Flower is a library that runs federated learning
on networks. It comes with: pip install 'fairmean[flower]')

'new' writes a Flower app into a folder: a server, a client, their task, and its settings in pyproject.toml.

'up' starts a federation on this machine: a SuperLink, which is Flower's server, and a SuperNode for every client, each
in a process of its own. It runs the app in the folder (here, if none is named), shows a line for every round, and stops
everything that it started, also on Ctrl-C. Settings written as key=value replace those of the app's pyproject.toml. The
results are in a run folder, which 'fairmean ls', 'show', 'report' and 'watch' read. A federation that was interrupted
or killed goes on where it stopped when the same command is called again."""
_EXAMPLES = (
    "fairmean flower new hospitals                           then look at hospitals/task.py",
    "fairmean flower up hospitals --clients 3",
    "fairmean flower up hospitals --clients 3 --tls          with certificates, and keys for the nodes",
    "fairmean flower up hospitals method=krum:f=1 num-server-rounds=5",
)


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "flower", "a real federation on Flower: new, up", _ABOUT, _EXAMPLES)
    parser.add_argument("action", choices=("new", "up"))
    parser.add_argument(
        "settings", nargs="*", metavar="[DIR] [key=value …]", help="the app's folder; with up, also settings of the app"
    )
    parser.add_argument("--clients", type=int, metavar="N", help="with up: how many clients; else as the app says")
    parser.add_argument(
        "--tls", action="store_true", help="with up: encrypt, and admit only nodes whose keys are registered"
    )
    takes_json(parser)
    parser.set_defaults(call=_flower)


def _flower(arguments: argparse.Namespace) -> int:
    folders = [word for word in arguments.settings if "=" not in word]
    if len(folders) > 1:
        raise UserError(f"flower {arguments.action}: '{folders[1]}' is a second folder; name one")
    if arguments.action == "up":
        return _up(arguments, folders)
    _new(arguments, folders)
    return 0


def _new(arguments: argparse.Namespace, folders: list[str]) -> None:
    from fairmean.flower.template import write

    extra = [word for word in arguments.settings if "=" in word]
    extra += ["--clients"] * (arguments.clients is not None) + ["--tls"] * arguments.tls
    if extra:
        raise UserError(f"flower new: '{extra[0]}' belongs to 'fairmean flower up'")
    if not folders:
        raise UserError("flower new: name a folder for the app, as in 'fairmean flower new hospitals'")
    files = write(Path(folders[0]))
    if arguments.json:
        print(json.dumps({"folder": folders[0], "files": [str(file) for file in files]}, indent=1))
        return
    names = ", ".join(str(file.relative_to(folders[0])) for file in files)
    print(f"wrote {names} into {folders[0]}; next: fairmean flower up {folders[0]} --clients 3")


def _up(arguments: argparse.Namespace, folders: list[str]) -> int:
    from fairmean.flower.local import FederationFailed
    from fairmean.flower.up import up

    words = dict(word.split("=", 1) for word in arguments.settings if "=" in word)
    try:
        with _ended_by_sigterm():
            outcome = up(
                Path(folders[0] if folders else "."),
                clients=arguments.clients,
                tls=arguments.tls,
                settings=words,
                tell=(lambda _: None) if arguments.json else _say,
            )
    except FederationFailed as error:
        return int(arguments.fail(str(error), 1))
    if arguments.json:
        print(json.dumps(outcome, indent=1, ensure_ascii=False))
    return 1 if outcome.get("status") == "diverged" else 0


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM stops the federation as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(line: str) -> None:
    print(line, flush=True)
