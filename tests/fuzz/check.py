"""Run one bad input and list what is wrong with how it ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
import tomllib
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fairmean
from fairmean import rules as aggregators
from fairmean.rules import named as methods
from fairmean.rules import scales
from fairmean.terminal import main as cli
from tests.fuzz.case import Case

SECONDS = 20.0
MEMORY = 2 << 30
SOURCE = Path(fairmean.__file__).parent
REGISTRIES: tuple[dict[str, Any], ...] = (
    aggregators.AGGREGATORS,
    aggregators.MIXINGS,
    scales.SCALES,
    methods.PAIRS,
)
PROCESS = """
import sys, torch
torch.set_num_threads(1)
sys.dont_write_bytecode = True
from fairmean.terminal.main import main
{first}
sys.exit(main(sys.argv[1:]))
"""

Files = dict[str, bytes | None]


class TooLong(BaseException):
    """Not an Exception, so that nothing on the way takes it for one of its own."""


@dataclass(frozen=True)
class Ending:
    """How a command ended; ``escaped``: the exception that nobody caught."""

    code: int | None
    out: str
    err: str
    seconds: float
    escaped: str = ""


def faults(case: Case, folder: Path, seconds: float = SECONDS) -> list[str]:
    """What is wrong; nothing, as it should be. The folder is empty, and outside anything of value."""
    work, cache = folder / "work", folder / "cache"
    work.mkdir(parents=True)
    environ = {"FAIRMEAN_DATA": str(cache), **case.environ}
    with _alone(work, environ):
        argv = case.prepare(work)
        before = _files(work)
        ending = (_process if case.slow else _here)(case, argv, seconds)
        found = [
            *_ended(case, ending, seconds),
            *_said(case, ending),
            *_left(case, ending, work, before, _files(work)),
        ]
        if case.after and ending.code in case.codes:
            found += case.after(work)
    return found


@contextlib.contextmanager
def _alone(work: Path, environ: dict[str, str]) -> Iterator[None]:
    """What a command changes in its process is put back: modules, registries, handlers, random numbers."""
    modules, registries = set(sys.modules), [dict(registry) for registry in REGISTRIES]
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)}
    outside = {name: os.environ.get(name) for name in environ}
    formatting, random, path = warnings.formatwarning, torch.get_rng_state(), list(sys.path)
    os.environ.update(environ)
    try:
        with contextlib.chdir(work):
            yield
    finally:
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if name.startswith("fuzz_") or (file and Path(file).is_relative_to(work)):
                del sys.modules[name]
        for registry, kept in zip(REGISTRIES, registries, strict=True):
            registry.clear()
            registry.update(kept)
        for name, value in outside.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for number, handler in handlers.items():
            signal.signal(number, handler)
        warnings.formatwarning = formatting
        torch.set_rng_state(random)
        sys.path[:] = path
        sys.dont_write_bytecode = bytecode


def _here(case: Case, argv: list[str], seconds: float) -> Ending:
    """In this process; what asks for too much time or memory gets an error instead."""
    out, err = io.StringIO(), io.StringIO()
    escaped, code = "", None
    began = time.monotonic()
    with (
        warnings.catch_warnings(record=True) as warned,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _bounded(seconds),
    ):
        warnings.simplefilter("default")
        for silent in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", silent)  # as Python does by itself
        try:
            code = cli.main(argv)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except TooLong:
            escaped = f"stopped after {seconds:g} s"
        except BaseException as error:
            escaped = _described(error)
    took = time.monotonic() - began
    said = "".join(warnings.formatwarning(w.message, w.category, w.filename, w.lineno) for w in warned)
    return Ending(code, out.getvalue(), said + err.getvalue(), took, escaped)


@contextlib.contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise TooLong

    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = Path("/proc/self/statm")
    handler = signal.signal(signal.SIGALRM, stop)
    try:
        if pages.exists():
            now = int(pages.read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, before[1]))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _described(error: BaseException) -> str:
    """The exception, and the last place in the package it came through."""
    try:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:160]
    except Exception:
        text = type(error).__name__
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(SOURCE)
    ]
    place = f"{Path(frames[-1].filename).relative_to(SOURCE)}:{frames[-1].lineno}" if frames else "?"
    return f"{text} at {place}"


def _process(case: Case, argv: list[str], seconds: float) -> Ending:
    """In a process of its own, with ``first`` run before the command; the time includes starting it."""
    code = PROCESS.format(first=case.first or "")
    environ = os.environ | {"PYTHONPATH": str(SOURCE.parent), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    with open(case.stdout, "w") if case.stdout else contextlib.nullcontext(subprocess.PIPE) as out:
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, *argv],
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                env=environ,
                timeout=2 * seconds,
            )
        except subprocess.TimeoutExpired:
            return Ending(None, "", "", time.monotonic() - began, f"stopped after {2 * seconds:g} s")
    return Ending(done.returncode, done.stdout or "", done.stderr, (time.monotonic() - began) / 2)


def _ended(case: Case, ending: Ending, seconds: float) -> Iterator[str]:
    if ending.escaped:
        yield f"ended in {ending.escaped}"
        return
    if ending.code not in case.codes:
        yield f"exit code {ending.code}, not {' or '.join(map(str, sorted(case.codes)))}: {_short(ending.err)}"
    if ending.seconds > seconds:
        yield f"took {ending.seconds:.0f} s"


def _said(case: Case, ending: Ending) -> Iterator[str]:
    if ending.escaped:
        return
    out, err = ending.out, ending.err
    if "Traceback" in out + err:
        yield f"a traceback: {_short(err.strip().splitlines()[-1] if err.strip() else out)}"
        return
    if ending.code not in case.codes:
        return
    if case.table is None and out:
        yield f"printed results although it failed: {_short(out)}"
    for words in case.table or ():
        if not any(line.split()[:1] == [words] for line in out.splitlines()):
            yield f"the table lacks the row of '{words}': {_short(out)}"
    lines = err.splitlines()
    if lines and lines[0].startswith("usage:"):  # argparse: the usage, then one line
        lines = [line for line in lines[1:] if not line.startswith(" ")]
    elif not all(line.startswith("fairmean: ") for line in lines):
        yield f"a line that does not start with 'fairmean: ': {_short(err)}"
    fewest, most = (0, 1) if ending.code == 0 else (1, 1 if case.table is None else 99)
    if not fewest <= len(lines) <= most:
        yield f"{len(lines)} lines instead of one: {_short(err)}"
    for words in case.says:
        if words not in err:
            yield f"does not say {words!r}: {_short(err)}"
    for words in case.never:
        if words in err:
            yield f"misleads by {words!r}: {_short(err)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:120]} … {text[-70:]}"


def _files(work: Path) -> Files:
    """Everything below the working folder, but what Python compiles."""
    return {
        str(path.relative_to(work)): path.read_bytes() if path.is_file() else None
        for path in work.rglob("*")
        if "__pycache__" not in path.parts
    }


def _left(case: Case, ending: Ending, work: Path, before: Files, after: Files) -> Iterator[str]:
    new = sorted(name for name in after.keys() - before.keys() if after[name] is not None)
    for name in new:
        if Path(name).name.startswith(".") or name.endswith(".tmp"):
            yield f"left {name} behind"
    for name, content in after.items():
        place = Path(name).parent
        if Path(name).name == "lock" and content is not None and name in new and not _whole(work / place):
            yield f"left a half-written run: {', '.join(sorted(os.listdir(work / place)))}"
    if ending.code == 0 or case.table is not None or case.slow:
        return
    for name, content in before.items():
        if Path(name).name != "lock" and after.get(name) != content:
            yield f"changed {name}, though refused"
    if ending.code == 2 and case.kind in ("settings", "config", "data", "command") and new:
        yield f"wrote {new[0]}, though refused"


def _whole(place: Path) -> bool:
    """Whether a run's folder has a summary, or what it takes to go on; or nothing yet."""
    if {file.name for file in place.iterdir()} <= {"lock"}:
        return True
    try:
        if (place / "summary.json").exists():
            return "status" in json.loads((place / "summary.json").read_text())
        tomllib.loads((place / "config.toml").read_text())
        return "w" in torch.load(place / "checkpoint.pt", weights_only=True)
    except Exception:
        return False
