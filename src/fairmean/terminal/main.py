"""The command line: words in, a verb called, errors as one line and an exit code."""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING

from fairmean import __doc__ as about
from fairmean import __version__
from fairmean.errors import Busy, Diverged, Lost, UserError
from fairmean.terminal.progress import Log, Terminated
from fairmean.terminal.verbs import (
    advise,
    audit,
    check,
    compare,
    completion,
    data,
    doctor,
    export,
    flower,
    ls,
    new,
    report,
    reproduce,
    run,
    show,
    tune,
    watch,
)
from fairmean.terminal.verbs import list as list_verb

if TYPE_CHECKING:
    from fairmean.engine.ranks import World

VERBS = (
    run, compare, tune, audit, report, watch, ls, show, export, check, advise, list_verb, data, new, flower, doctor,
    completion, reproduce,
)  # fmt: skip
_usual = warnings.formatwarning
_INTERRUPTED = "interrupted; the same command continues where it stopped"
_TERMINATED = "told to end (SIGTERM); the same command continues where it stopped"
_AGAIN = "run the same command again, with any number of ranks, to go on"
_LOST = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 diverged, a check broken, a part of a comparison failed or the output could not be written,
    2 bad input, 3 run in use, 4 a rank was lost, 130 interrupted, 143 told to end by SIGTERM.

    Under torchrun, all ranks end with the same code, and one of them says why.
    """
    warnings.formatwarning = _in_one_line
    try:
        world = _world()
    except Lost as lost:
        return _fail(f"the ranks did not find each other: {lost}", _LOST)
    code = _main(argv, world)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _no_output(error, world) or code
    if world is not None:
        world.leave(code)
    return code


def _world() -> World | None:
    """The other ranks, when torchrun started this process; None where it is alone."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return None
    from fairmean.engine import ranks

    return ranks.start()


def _no_output(error: OSError, world: World | None) -> int:
    """What is printed cannot go where it was sent; Python would say so once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # nobody reads it any more
        return 0
    return _fail(f"the output cannot be written ({error.strerror}); send it to a place with room", 1, world)


def _in_one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of ours without the place in the code that gave it; others as usual."""
    ours = Path(filename).is_relative_to(Path(__file__).parents[1])
    return f"fairmean: {message}\n" if ours else _usual(message, category, filename, lineno, line)


def _main(argv: Sequence[str] | None, world: World | None) -> int:
    if world is None:
        return _call(_arguments(argv), None)
    try:
        with redirect_stderr(io.StringIO()) as usage:
            arguments = _arguments(argv)
    except SystemExit as end:
        if world.speaks():
            print(usage.getvalue(), end="", file=sys.stderr, flush=True)
        return int(end.code or 0)
    alike = not arguments.ranks or arguments.dry_run
    return _call(arguments, world) if world.rank == 0 or not alike else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = whole_parser()
    arguments, more = parser.parse_known_args(argv)
    arguments.ranks = getattr(arguments, "ranks", False)  # whether several ranks share the work of this verb
    arguments.fail = _fail
    for option in ("--seeds", "--methods", "--attacks"):
        if arguments.verb == "run" and any(word.split("=")[0] == option for word in more):
            parser.error(f"{option} belongs to 'fairmean compare', which runs several; 'fairmean run' is one run")
    if more and (not hasattr(arguments, "settings") or any(word.startswith("-") for word in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more:  # settings may also stand after options
        arguments.settings += more
    return arguments


def _call(arguments: argparse.Namespace, world: World | None) -> int:
    try:
        if world is not None:
            world.begin()
        for module in getattr(arguments, "modules", []):
            from fairmean.importing import import_module

            import_module(module)
        if arguments.ranks:
            with Log() if arguments.verbose else nullcontext():
                return arguments.call(arguments, world) or 0
        return arguments.call(arguments) or 0
    except UserError as error:
        return _fail(str(error), 2, world)
    except Diverged as error:
        return _fail(str(error), 1, world)
    except Busy as error:
        return _fail(str(error), 3, world)
    except Terminated:
        return _fail(_TERMINATED, 143, world)
    except KeyboardInterrupt:
        if world is not None and world.terminated:
            return _lost(Lost("torchrun stops the others"), world)
        return _fail(_INTERRUPTED, 130, world)
    except Lost as lost:
        assert world is not None
        return _lost(lost, world)
    except OSError as error:
        if error.filename is None:
            return _no_output(error, world)
        return _fail(f"'{error.filename}': {error.strerror}; look at its place and its rights", 2, world)


def _fail(message: str, code: int, world: World | None = None) -> int:
    if world is None or world.speaks():
        print(f"fairmean: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


def _lost(lost: Lost, world: World) -> int:
    """Other ranks cannot be reached, or torchrun stops this one: because one of them ended, or died, or all must."""
    ending = world.ending()
    if ending.code is not None:
        return ending.code
    if world.terminated and not ending.lost:
        return _fail(_INTERRUPTED, 130, world)
    if ending.speaks:
        what = ending.lost or "the connection between the ranks was lost"
        _fail(f"{what}{lost.place} ({lost}); {lost.kept}; {_AGAIN}", _LOST)
    return _LOST


def whole_parser() -> argparse.ArgumentParser:
    """The parser of the command line with all its verbs."""
    parser = argparse.ArgumentParser(
        prog="fairmean",
        description=about,
        epilog="'fairmean VERB --help' has the options of a verb, and examples. Begin with: fairmean compare",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for module in VERBS:
        module.add_to(verbs)
    return parser


if __name__ == "__main__":
    sys.exit(main())
