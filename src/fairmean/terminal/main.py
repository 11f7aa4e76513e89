"""The command line: verbs only. Parse, call, print."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from typing import Any

from fairmean import __doc__ as about
from fairmean import __version__, data
from fairmean.data.store import folder as cache_folder
from fairmean.engine import ranks as distributed
from fairmean.engine.ranks import ALONE, LOST, World
from fairmean.errors import Busy, Diverged, Lost, UserError
from fairmean.experiments.advise import SAMPLES, advise
from fairmean.experiments.building import build_simulator
from fairmean.experiments.comparison_table import comparison
from fairmean.experiments.config import gather, literal, parse, to_toml
from fairmean.experiments.folder import to_json
from fairmean.experiments.identity import Sources, folder_of, resolve
from fairmean.experiments.run import run_resolved
from fairmean.experiments.study import MOST_RUNS, Comparison, compare_planned, plan, resolved, spread
from fairmean.importing import import_module
from fairmean.rules.named import named_methods
from fairmean.terminal import catalogue, starter, tables
from fairmean.terminal.progress import Live, Log, Terminated
from fairmean.theory import advice, words
from fairmean.theory.certificate import certify

_usual = warnings.formatwarning
_INTERRUPTED = "interrupted; the same command continues where it stopped"
_TERMINATED = "told to end (SIGTERM); the same command continues where it stopped"
_AGAIN = "run the same command again, with any number of ranks, to go on"
_IMPORT = "a module that registers methods of your own"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 diverged, a check broken, a part of a comparison failed or the output could not be written,
    2 bad input, 3 run in use, 4 a rank was lost, 130 interrupted, 143 told to end by SIGTERM.

    Under torchrun, all ranks end with the same code, and one of them says why.
    """
    warnings.formatwarning = _in_one_line
    try:
        world = distributed.start()
    except Lost as lost:
        return _fail(f"the ranks did not find each other: {lost}", LOST)
    code = _main(argv, world)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _no_output(error, world) or code
    world.leave(code)
    return code


def _no_output(error: OSError, world: World) -> int:
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


def _main(argv: Sequence[str] | None, world: World) -> int:
    if world is ALONE:
        return _call(_arguments(argv), ALONE)
    try:
        with redirect_stderr(io.StringIO()) as usage:
            arguments = _arguments(argv)
    except SystemExit as end:
        if world.speaks():
            print(usage.getvalue(), end="", file=sys.stderr, flush=True)
        return int(end.code or 0)
    alike = arguments.verb not in ("run", "compare") or arguments.dry_run
    return _call(arguments, world) if world.rank == 0 or not alike else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    arguments, more = parser.parse_known_args(argv)
    for option in ("--seeds", "--methods", "--attacks"):
        if arguments.verb == "run" and any(word.split("=")[0] == option for word in more):
            parser.error(f"{option} belongs to 'fairmean compare', which runs several; 'fairmean run' is one run")
    if more and (not hasattr(arguments, "settings") or any(word.startswith("-") for word in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more:  # settings may also stand after options
        arguments.settings += more
    return arguments


def _call(arguments: argparse.Namespace, world: World) -> int:
    try:
        world.begin()
        for module in getattr(arguments, "modules", []):
            import_module(module)
        if arguments.call in (_run, _compare):
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
        return _lost(Lost("torchrun stops the others"), world) if world.terminated else _fail(_INTERRUPTED, 130, world)
    except Lost as lost:
        return _lost(lost, world)
    except OSError as error:
        if error.filename is None:
            return _no_output(error, world)
        return _fail(f"'{error.filename}': {error.strerror}; look at its place and its rights", 2, world)


def _fail(message: str, code: int, world: World = ALONE) -> int:
    if world.speaks():
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
        _fail(f"{what}{lost.place} ({lost}); {lost.kept}; {_AGAIN}", LOST)
    return LOST


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fairmean", description=about)
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    run = verbs.add_parser("run", help="one run: a config, or the defaults, with key=value overrides")
    run.set_defaults(call=_run)
    study = verbs.add_parser("compare", help="several methods × attacks × seeds in one table")
    study.set_defaults(call=_compare)
    for verb in (run, study):
        verb.add_argument("settings", nargs="*", metavar="[config.toml] [key=value …]", help="see 'fairmean new'")
        verb.add_argument("--json", action="store_true", help="print the result as JSON")
        verb.add_argument("--dry-run", action="store_true", help="say what would be run, and write nothing")
        verb.add_argument("--quiet", action="store_true", help="no progress")
        verb.add_argument("-v", "--verbose", action="store_true", help="say on standard error what happens")
        verb.add_argument("--import", dest="modules", action="append", default=[], metavar="MODULE", help=_IMPORT)
    study.add_argument(
        "--methods", metavar="A,B:key=value:key=value", help="or all; default: mean, fedavg, qffl, fairmean, …"
    )
    study.add_argument("--attacks", metavar="A,B:key=value", help="default: none, random_class, pairwise")
    study.add_argument("--seeds", metavar="1,2,3 or 1-5", help="each seed is a new draw of clients, labels and model")

    study.add_argument(
        "--together", type=int, metavar="N", help="runs at once; default: all that fit on a GPU, one on a CPU"
    )

    lists = verbs.add_parser(
        "list",
        help="what there is: methods, attacks, …; with a name, all about one of them",
        description="List what there is. With a NAME, say all about one: of a method its rule, its hyper-parameters, "
        "and what clients and server send and keep in a round.",
        epilog="A method is written as for compare: fairmean list methods fairmean+nnm+cwtm:kappa=4:f=1",
    )
    lists.add_argument("what", choices=catalogue.CATALOGUE, metavar="WHAT", help=", ".join(catalogue.CATALOGUE))
    lists.add_argument("name", nargs="?", metavar="NAME", help="one of them; without it, list all")
    lists.add_argument("--json", action="store_true", help="print as JSON")
    lists.add_argument("--import", dest="modules", action="append", default=[], metavar="MODULE", help=_IMPORT)
    lists.set_defaults(call=_list)

    sets = verbs.add_parser("data", help="data sets: list, get, path")
    sets.add_argument("action", choices=("list", "get", "path"))
    sets.add_argument("name", nargs="?", help="the data set")
    sets.add_argument("--from", dest="source", metavar="PATH", help="with get: a folder or file that holds it")
    sets.add_argument("--json", action="store_true", help="print as JSON")
    sets.set_defaults(call=_data)

    check = verbs.add_parser(
        "check", help="the certificate of a run made with theory=true: every inequality, both sides"
    )
    check.add_argument("folder", metavar="RUN", help="the run's folder")
    check.add_argument("--json", action="store_true", help="print as JSON")
    check.set_defaults(call=_check)

    paper = papers_verb()
    if paper is not None:
        paper.add_to(verbs)
    else:
        absent = verbs.add_parser("reproduce", help="the paper's tables and figures (in a checkout of the repository)")
        absent.add_argument("settings", nargs="*")
        absent.set_defaults(call=_no_paper)

    before = verbs.add_parser(
        "advise", help="before a run: a safe step size, and what κ and τ cost, from the start point"
    )
    before.add_argument("settings", nargs="*", metavar="[config.toml] [key=value …]", help="see 'fairmean new'")
    before.add_argument(
        "--samples", type=int, default=SAMPLES, metavar="N", help="of a client, at most; default %(default)s"
    )
    before.add_argument("--json", action="store_true", help="print as JSON")
    before.add_argument("--import", dest="modules", action="append", default=[], metavar="MODULE", help=_IMPORT)
    before.set_defaults(call=_advise)

    new = verbs.add_parser("new", help="write a commented starter config")
    new.add_argument("file", nargs="?", default="-", help="where to; without it, print")
    new.set_defaults(call=_new)
    return parser


def settings_of(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """(config file, overrides)."""
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


def _run(arguments: argparse.Namespace, world: World) -> None:
    tree = gather(*settings_of(arguments.settings))
    if "grid" in tree:
        raise UserError("this config has a [grid]: it is a comparison; use 'fairmean compare' with it")
    sources = Sources()
    config = resolve(parse(tree), sources)
    if arguments.dry_run:
        simulator = build_simulator(config, sources=sources)
        print(to_toml(config))
        sizes = simulator.federation.sizes
        print(
            f"# {len(simulator.w):,} parameters; client sizes {sizes.min()} … {sizes.max()}; folder {folder_of(config)}"
        )
        return
    with Live(arguments.quiet or arguments.json or world.rank > 0) as live:
        result = run_resolved(config, live.run, world, sources)
    if world.rank:
        return
    if arguments.json:
        print(to_json(result.summary | {"folder": str(result.folder)}))
    else:
        print(tables.run(result))


def _compare(arguments: argparse.Namespace, world: World) -> int:
    source, overrides = settings_of(arguments.settings)
    everything = arguments.methods == "all"
    lists: dict[str, Any] = {
        "methods": list(named_methods())
        if everything
        else split("--methods", arguments.methods, "mean,fairmean:kappa=4"),
        "attacks": split("--attacks", arguments.attacks, "none,pairwise:rho=0.5"),
        "seeds": _numbers(arguments.seeds),
    }
    if arguments.dry_run:
        for method, attack, config in resolved(plan(source, overrides, **lists), Sources()):
            print(f"{folder_of(config)}  {method} · {attack} · seed {config.seed}")
        return 0
    with Live(arguments.quiet or arguments.json or world.rank > 0) as live:
        if world.size > 1:
            spread(plan(source, overrides, **lists), world, live.study, arguments.together)
        if world.rank:
            return world.first(0)
        result = compare_planned(plan(source, overrides, **lists), live.study, arguments.together)
    print(to_json(result.records) if arguments.json else _compared(result))
    for line in result.failures:
        _fail(line, 1)
    return world.first(1 if result.failures else 0)


def _compared(result: Comparison) -> str:
    return "\n".join([tables.headline(result.config), comparison(result), tables.footer(result)])


def split(option: str, text: str | None, example: str) -> list[str] | None:
    if text is None:
        return None
    parts = [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]  # not inside [8,9]
    if not parts:
        raise UserError(f"{option} '{text}': names nothing; write a list such as {example}")
    return parts


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    numbers: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            more = range(int(first), int(last) + 1) if dash else range(int(first), int(first) + 1)
            if not more:
                raise ValueError
            if more[-1] - more[0] >= MOST_RUNS or len(numbers) + len(more) > MOST_RUNS:
                raise UserError(f"--seeds {text}: that is more than {MOST_RUNS:,} runs; ask for fewer seeds")
            numbers += more
    except UserError:
        raise
    except ValueError:
        raise UserError(f"--seeds {text}: write whole numbers, as 1,2,3 or 1-5") from None
    return numbers


def _list(arguments: argparse.Namespace) -> None:
    if arguments.name is not None:
        facts = catalogue.one(arguments.what, arguments.name)
        page = tables.method if arguments.what == "methods" else tables.record
        print(to_json(facts) if arguments.json else page(facts))
        return
    rows = catalogue.CATALOGUE[arguments.what]()
    print(to_json(rows) if arguments.json else tables.records(rows))


def _data(arguments: argparse.Namespace) -> None:
    if arguments.action == "list":
        rows = catalogue.datasets()
        print(to_json(rows) if arguments.json else tables.records(rows))
        if not arguments.json:
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


def _check(arguments: argparse.Namespace) -> int:
    certificate = certify(arguments.folder)
    print(to_json(words.record(certificate)) if arguments.json else words.page(certificate))
    return 0 if certificate.holds else 1


def papers_verb() -> Any:
    """The module of 'fairmean reproduce', which comes with a checkout of the repository; None where there is none."""
    checkout = Path(__file__).resolve().parents[3]
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


def _advise(arguments: argparse.Namespace) -> None:
    live = Live(arguments.json)
    given = advise(gather(*settings_of(arguments.settings)), samples=arguments.samples, tell=live.line)
    live.clear()
    print(to_json(advice.record(given)) if arguments.json else advice.page(given))


def _new(arguments: argparse.Namespace) -> None:
    if arguments.file == "-":
        print(starter.TEXT, end="")
        return
    file = Path(arguments.file)
    if file.exists():
        raise UserError(f"'{file}' exists; name another file")
    try:
        file.write_text(starter.TEXT, encoding="utf-8")
    except OSError as error:
        if file.is_file():  # half of it
            file.unlink()
        raise UserError(f"'{file}': cannot be written ({error.strerror})") from None
    print(f"wrote {file}; next: fairmean run {file}")


if __name__ == "__main__":
    sys.exit(main())
