"""``fairmean watch``: runs at work, as they go."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fairmean.errors import UserError
from fairmean.terminal.words import parser_for, takes_directory, takes_json

if TYPE_CHECKING:
    from fairmean.terminal.watching import Group

_ABOUT = """\
Watch runs that are at work: how far each one has come, how fast it is, how long it will take, and a small chart of the
average accuracy of its regular clients, of the variance across them, and of the worst client. Where numbers are
predicted, it is their error in place of the accuracy. Without RUN, all runs at work are watched, also those that begin
later.

The command ends when all of them have ended, or with Ctrl-C; the runs themselves go on. Where the output is not a
terminal, it prints one line for each run and ends, as --once does."""
_EXAMPLES = (
    "fairmean watch                                          all runs at work",
    "fairmean watch demo                                     the runs of that name",
    "fairmean watch 3f2a --once                              one line, now",
    "fairmean watch --web                                    the report in a browser, which renews itself",
)
_GRACE = 5.0  # seconds without any run at work, after which no further one is waited for
_FRESH = 5.0  # seconds that a web page is good for


def add_to(verbs: Any) -> None:
    """Add the verb to the command line."""
    parser = parser_for(verbs, "watch", "runs at work: speed, time left, small charts", _ABOUT, _EXAMPLES)
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="a run's folder, a beginning of its hash, or the name of several runs"
    )
    parser.add_argument("--once", action="store_true", help="print one line for each run, and end")
    parser.add_argument(
        "--every", type=float, default=1.0, metavar="SECONDS", help="how often to look; default: %(default)s"
    )
    parser.add_argument("--web", action="store_true", help="serve the report to browsers on this machine, until Ctrl-C")
    parser.add_argument("--port", type=int, metavar="N", help="with --web: which port; default: a free one")
    takes_directory(parser)
    takes_json(parser)
    parser.set_defaults(call=_watch)


def _watch(arguments: argparse.Namespace) -> None:
    from fairmean.experiments.listing import find_all
    from fairmean.terminal.watching import Group, is_terminal

    if not 0.05 <= arguments.every <= 3600:
        raise UserError(f"--every {arguments.every:g}: write seconds from 0.05 to 3600")
    if arguments.port is not None and not arguments.web:
        raise UserError(f"--port {arguments.port}: is for --web, which serves the report to browsers")
    named = bool(arguments.runs)
    folders = find_all(arguments.runs, arguments.dir) if named else []
    group = Group(folders, None if named else arguments.dir)
    if arguments.web:
        _serve(arguments, group)
    elif arguments.json or arguments.once or not is_terminal(sys.stdout):
        _once(arguments, group)
    else:
        _live(arguments, group)


def _once(arguments: argparse.Namespace, group: Group) -> None:
    group.look()
    memory = group.memory()
    if arguments.json:
        print(json.dumps([run.record(memory) for run in group.runs], indent=1, ensure_ascii=False))
    elif group.runs:
        print("\n".join(run.line(memory) for run in group.runs))
    else:
        print(_nothing(arguments.dir))


def _nothing(directory: str) -> str:
    return f"No run is at work in '{directory}'. 'fairmean ls' shows the runs that are there."


def _live(arguments: argparse.Namespace, group: Group) -> None:
    from fairmean.terminal.watching import clear, until_ended

    group.look()
    if not group.runs:
        print(_nothing(arguments.dir))
        return
    shown = 0

    def show(group: Group) -> None:
        nonlocal shown
        size = shutil.get_terminal_size()
        lines = group.page(size.columns, size.lines)
        sys.stdout.write(clear(shown) + "".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        shown = len(lines)

    with suppress(KeyboardInterrupt):  # the runs go on
        until_ended(group, arguments.every, _GRACE, show)


def _serve(arguments: argparse.Namespace, group: Group) -> None:
    from threading import Lock

    from fairmean.terminal import live_page

    looking = Lock()  # every request has a thread of its own

    def at_work() -> bool:
        with looking:
            group.look()
            return group.at_work

    def make() -> str:
        with looking:
            folders = [run.folder for run in group.runs]
        if not folders:
            raise UserError(_nothing(arguments.dir))
        return live_page.html_of(folders)

    def goes_on() -> bool:
        return at_work() or group.directory is not None  # where no run was named, one may begin later

    at_work()
    if group.runs:
        make()  # what is wrong with the report is said here, and not in a browser
    server = live_page.server(live_page.Page(make, _FRESH), goes_on, _FRESH, arguments.port or 0)
    address = f"http://{live_page.HOST}:{server.server_port}/"
    print(json.dumps({"address": address}) if arguments.json else f"The report is at {address} (Ctrl-C ends this).")
    sys.stdout.flush()
    with server, suppress(KeyboardInterrupt):
        server.serve_forever(poll_interval=0.2)
