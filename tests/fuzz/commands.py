"""Bad commands, and machines that cannot hold the results: a full disk, a full device for the output."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from fairmean.terminal.main import main
from tests.fuzz.case import TINY, Case, Prepare, given
from tests.fuzz.folders import damaged

ONE = ["compare", *TINY, "--methods", "mean", "--attacks", "none"]


def handwritten() -> Iterator[Case]:
    """Each for a reason of its own."""
    yield from _trial()
    yield from _usage()
    yield from _lists()
    yield from _places()
    yield from _full()


def _command(name: str, *argv: str, says: tuple[str, ...] = (), **more: Any) -> Case:
    return Case("command", name, given(list(argv)), says=says, **more)


def _trial() -> Iterator[Case]:
    trial: dict[str, Any] = {"trial": True}
    many = "1-1000000000"
    yield _command("a thousand million seeds", *ONE, "--seeds", many, says=(many,), **trial)
    yield _command("--seeds for run", "run", *TINY, "--seeds", "1-3", says=("compare",), **trial)
    yield _command("no attacks", *ONE[:-2], "--attacks", "", says=("attacks",), never=("fairmean:kappa",), **trial)
    below = {"FAIRMEAN_DATA": "tiny.npz/cache"}
    yield _command(
        "FAIRMEAN_DATA below a file", "data", "get", "cifar10", says=("FAIRMEAN_DATA",), environ=below, **trial
    )


def _usage() -> Iterator[Case]:
    yield _command("nothing")
    yield _command("an unknown verb", "dance", says=("dance",))
    yield _command("an unknown list", "list", "nothing", says=("nothing",))
    yield _command("an unknown option", "run", "--fast", says=("--fast",))
    yield _command("an option without its value", *ONE, "--seeds", says=("--seeds",))
    yield _command("settings for a list", "list", "methods", "x=1", says=("x=1",))
    yield _command("data without an action", "data")
    yield _command("data get without a name", "data", "get", says=("data get",))
    yield _command("data get of an unknown name", "data", "get", "fashion-mnst", says=("fashion-mnst",))
    yield _command("data get from nowhere", "data", "get", "cifar10", "--from", "nowhere", says=("nowhere",))
    yield _command("data get from a wrong file", "data", "get", "cifar10", "--from", "tiny.npz", says=("tiny.npz",))
    yield _command(
        "data get from the home of nobody", "data", "get", "cifar10", "--from", "~nobody-here", says=("nobody-here",)
    )
    yield _command("data path of what is not there", "data", "path", "cifar10", says=("cifar10",))
    yield _command("check of nothing", "check", says=("RUN",))
    yield _command("check of a folder that is not there", "check", "nowhere", says=("nowhere",))
    yield _command("check of a file", "check", "tiny.npz", says=("tiny.npz",))
    yield _command("check of this folder", "check", ".", says=("'.'",))
    yield _command("new over a file", "new", "tiny.npz", says=("tiny.npz",))
    yield _command("new over a folder", "new", ".", says=("'.'",))
    yield _command("new in no folder", "new", "no/such/my.toml", says=("no/such/my.toml",))
    yield _command("new below a file", "new", "tiny.npz/my.toml", says=("tiny.npz/my.toml",))
    yield _command("new with a name of 5000 letters", "new", "a" * 5000)
    for value in ("0", "-1"):
        yield _command(f"advise with {value} samples", "advise", *TINY, "--samples", value, says=("samples",))
    yield _command("advise with samples in words", "advise", *TINY, "--samples", "many", says=("many",))
    yield _command("advise with a bad setting", "advise", *TINY, "train.runds=3", says=("runds",))
    yield _command("an unknown table of the paper", "reproduce", "table9", says=("table9",))
    yield _command("a draw in words", "reproduce", "evidence", "--draw", "x", says=("x",))
    yield _command("a draw for a table", "reproduce", "table2", "--draw", "3", says=("--draw",))
    yield _command("a config for a table", "reproduce", "table2", "my.toml", says=("my.toml",))
    yield _command("evidence without tables", "reproduce", "evidence", "--tables", "nowhere", says=("nowhere",))


def _lists() -> Iterator[Case]:
    for text in ("many", "", "1.5", "3-1", "1-", "-", ",", "1,,2", "1--3", "1-2-3", "0-99999999999999", "-5"):
        yield _command(f"--seeds {text!r}", *ONE, f"--seeds={text}", says=("seed",))
    for text in ("", ","):
        yield _methods(text, "method")
    for text in (":", "+", "mean:", "mean:q", "mean:=1", "fairmean+", "+mean", "mean,fairmaen", "fairmean:kappa="):
        yield _methods(text)
    for text in (",", ":", "nothing", "pairwise:rho", "pairwise:rho=2", "pairwise:rho=nan", "none:kappa=1"):
        yield _command(
            f"--attacks {text!r}", "compare", *TINY, "--methods", "mean", f"--attacks={text}", says=("attack",)
        )
    for text in ("0", "-1", "x", "1.5"):
        yield _command(f"--together {text}", *ONE, f"--together={text}", says=("together",))
    yield _command("a method as a setting of a comparison", "compare", *TINY, "method.name=mean", says=("--methods",))
    yield _command("an attack as a setting of a comparison", "compare", *TINY, "attack.name=none", says=("--attacks",))
    yield _command(
        "a setting twice in a method", "compare", *TINY, "--methods", "fairmean:kappa=1:kappa=2", says=("kappa",)
    )
    yield _command("grid.seeds a number", *ONE, "grid.seeds=5", says=("grid.seeds",))
    yield _command("grid.seeds of lists", *ONE, "grid.seeds=[[1]]", says=("seed",))
    yield _command("grid a number", *ONE, "grid=5", says=("grid",))


def _methods(text: str, *says: str) -> Case:
    return _command(f"--methods {text!r}", "compare", *TINY, "--attacks", "none", f"--methods={text}", says=says)


def _places() -> Iterator[Case]:
    for name, place in (("a file", "tiny.npz"), ("the home of nobody", "~nobody-here/cache")):
        environ = {"FAIRMEAN_DATA": place}
        yield _command(f"FAIRMEAN_DATA is {name}", "data", "get", "cifar10", environ=environ)
        yield _command(f"FAIRMEAN_DATA is {name}, run", "run", "data.name=cifar10", environ=environ)


def _disk(name: str, size: int, argv: list[str], prepare: Prepare | None = None, **more: Any) -> Case:
    """No file may grow beyond so many bytes, which is what a full disk looks like; with room the same command works."""

    def again(folder: Path) -> list[str]:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
            code = main(argv)
        return [] if code == 0 else [f"exit code {code} when there is room again: {said.getvalue().strip()}"]

    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
    return Case("command", f"disk full {name}", prepare or given(argv), first=limit, after=again, **more)


def _full() -> Iterator[Case]:
    def nothing(place: Path) -> None:
        pass

    run = ["run", *TINY]
    yield _disk("at the checkpoint", 1500, run, trial=True)
    yield _disk("at once", 0, run)
    yield _disk("at the config", 300, run)
    yield _disk("at the partition", 800, run)
    yield _disk("at the table", 3000, [*run, "train.rounds=60"])
    yield _disk("in a comparison", 1500, ONE, table=())
    yield _disk("when it goes on", 300, run, damaged("interrupted", nothing))
    yield _disk("for new", 300, ["new", "my.toml"], says=("my.toml",))
    trial: dict[str, Any] = {"trial": True}
    yield Case("command", "list to a full device", given(["list", "methods"]), stdout="/dev/full", **trial)
    for name, argv in (
        ("run", ["run", *TINY]),
        ("compare", ONE),
        ("new", ["new"]),
        ("data list", ["data", "list"]),
        ("run --dry-run", ["run", "--dry-run", *TINY]),
    ):
        yield Case("command", f"{name} to a full device", given(argv), stdout="/dev/full")


def drawn(draw: random.Random) -> Case:
    """A list of a wrong form."""
    pieces = ["mean", "fairmean", ":", "=", "+", "kappa", "-1", "nan", "none", "pairwise", "..", "[", "]"]
    which = draw.choice(["methods", "attacks", "seeds"])
    while True:
        text = "".join(draw.choice(pieces) for _ in range(draw.randrange(2, 6)))
        if text not in ("fairmean+mean", "none+mean"):  # which are methods
            break
    lists = {"methods": "mean", "attacks": "none", "seeds": "1"} | {which: text}
    words = [f"--{key}={value}" for key, value in lists.items()]
    says = {"attacks": ("attack",), "seeds": ("seed",)}.get(which, ())
    return _command(f"--{which} {text!r}", "compare", *TINY, *words, says=says)
