"""What this installation has, what it lacks, and the command that gets it. A check that fails is a finding itself."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairmean.text import columns

PYTHON = (3, 11)
NEEDED = {"torch": "2.6", "numpy": "1.26"}
"""Without these nothing is computed."""
PARTS = {
    "scipy": ("scipy>=1.11", "confidence intervals and tests of differences"),
    "pillow": ("pillow>=10", "data sets that are made of images"),
    "daqp": ("daqp>=0.5", "methods that solve a quadratic programme: fedmgda+, adafed and others"),
    "matplotlib": ("matplotlib>=3.8", "plots"),
    "pandas": ("pandas", "run.frame(), the long table as a DataFrame"),
    "flwr": ("flwr>=1.41,<2", "federations with Flower"),
    "tensorboard": ("tensorboard", "fairmean export --to tensorboard"),
    "mlflow": ("mlflow", "fairmean export --to mlflow"),
    "wandb": ("wandb", "fairmean export --to wandb"),
    "trackio": ("trackio", "fairmean export --to trackio"),
}
"""What to install, and what it is for."""
_MODULES = {"pillow": "PIL"}
_LITTLE = 1 << 30  # bytes of room


@dataclass(frozen=True)
class Finding:
    """``state`` is 'ok', 'missing' (something needed is not there) or 'optional' (something useful is not there)."""

    what: str
    state: str
    detail: str
    remedy: str = ""

    def record(self) -> dict[str, str]:
        """For programs."""
        return asdict(self)


def examine(directory: str) -> list[Finding]:
    """Every check, in order; ``directory`` is where results go."""
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "fairmean": _fairmean,
        "Python": _python,
        "libraries": _libraries,
        "device": _device,
        "data sets": _data,
        "results folder": lambda: _results(directory),
        "cache of data sets": _cache,
        "optional parts": _parts,
    }
    findings: list[Finding] = []
    for what, check in checks.items():
        try:
            findings += check()
        except Exception as error:  # whatever is broken here must not hide the rest
            findings.append(Finding(what, "optional", f"could not be checked ({_said(error)})"))
    return findings


def page(findings: Sequence[Finding]) -> str:
    """The findings for people."""
    rows = [[finding.state, finding.what, finding.detail] for finding in findings]
    table = columns(rows, ["state", "what", "found"])
    commands = [f"  {f.remedy}" for f in findings if f.state == "missing" and f.remedy]
    more = [f"  {f.remedy:<42} {f.what}" for f in findings if f.state == "optional" and f.remedy]
    missing = [f.what for f in findings if f.state == "missing"]
    end = (
        f"What is needed and missing: {', '.join(missing)}. What to do:\n" + "\n".join(commands)
        if missing
        else "Everything that is needed is there."
    )
    parts = [table, end] + (["What could be added, and how:\n" + "\n".join(more)] if more else [])
    return "\n\n".join(parts)


def _fairmean() -> Iterator[Finding]:
    from fairmean import __version__

    place = Path(__file__).resolve().parents[1]
    yield Finding("fairmean", "ok", f"{__version__} in {place}")
    for name in ("terminal/catalogue.json", "data/embedded/fashion-mnist-mini.npz"):
        if not (place / name).is_file():
            yield Finding(name, "missing", "is not part of this installation", "pip install --force-reinstall fairmean")


def _python() -> Iterator[Finding]:
    enough = sys.version_info >= PYTHON
    wanted = ".".join(map(str, PYTHON))
    yield Finding(
        "Python",
        "ok" if enough else "missing",
        f"{platform.python_version()} in {sys.executable}",
        "" if enough else f"install Python {wanted} or newer",
    )


def _libraries() -> Iterator[Finding]:
    for name, least in NEEDED.items():
        command = f"pip install '{name}>={least}'"
        try:
            version = str(importlib.import_module(name).__version__)
        except ImportError as error:
            absent = error.name == name and importlib.util.find_spec(name) is None
            yield Finding(name, "missing", "not installed" if absent else f"does not load ({_said(error)})", command)
        except Exception as error:  # libraries that do not fit each other raise anything
            yield Finding(name, "missing", f"does not load ({_said(error)})", command)
        else:
            old = _numbers(version) < _numbers(least)
            detail = f"{version}, and {least} or newer is needed" if old else version
            yield Finding(name, "missing" if old else "ok", detail, command if old else "")


def _device() -> Iterator[Finding]:
    torch: Any = importlib.import_module("torch")
    cores = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(number)
            yield Finding("device", "ok", f"cuda:{number} {facts.name}, {facts.total_memory / 2**30:.0f} GiB; {cores}")
        if importlib.util.find_spec("triton") is None:
            yield Finding("triton", "optional", "not installed: faster kernels on a GPU", "pip install triton")
        return
    from fairmean.cpu_products import helps

    how = "; float32 products by oneDNN, which is faster here than MKL" if helps() else ""
    yield Finding("device", "ok", f"cpu, {cores}{how}")
    if shutil.which("nvidia-smi"):
        detail = "there is an NVIDIA driver, but this PyTorch cannot use the GPU"
        yield Finding("GPU", "optional", detail, "install a build of PyTorch for CUDA")


def _data() -> Iterator[Finding]:
    from fairmean import data

    for row in data.describe():
        there = row["where"] != "not downloaded"
        command = "" if there else f"fairmean data get {row['name']}"
        yield Finding(f"data {row['name']}", "ok" if there else "optional", row["where"], command)


def _results(directory: str) -> Iterator[Finding]:
    yield _writable("results folder", Path(directory), "missing", "fairmean run run.dir=FOLDER")


def _cache() -> Iterator[Finding]:
    from fairmean.data.store import folder

    yield _writable("cache of data sets", folder(), "optional", "export FAIRMEAN_DATA=FOLDER")


def _writable(what: str, folder: Path, state: str, remedy: str) -> Finding:
    """Whether a file can be made there; a folder that is not there yet is looked at where it would be made."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        room = shutil.disk_usage(there).free
    except OSError as error:
        return Finding(what, state, f"'{folder}' cannot be written ({error.strerror})", remedy)
    if room < _LITTLE:
        return Finding(what, "optional", f"'{folder}' has only {room / 2**20:,.0f} MiB of room", remedy)
    return Finding(what, "ok", f"'{folder}' can be written, {room / 2**30:,.0f} GiB free")


def _parts() -> Iterator[Finding]:
    for name, (install, purpose) in PARTS.items():
        if importlib.util.find_spec(_MODULES.get(name, name)) is None:
            command = f"pip install '{install}'" if set(install) & set("<>") else f"pip install {install}"
            yield Finding(name, "optional", f"not installed: {purpose}", command)
            continue
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "there"
        yield Finding(name, "ok", version)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading whole numbers of a version."""
    parts = version.partition("+")[0].split(".")
    return tuple(int(part) for part in itertools.takewhile(str.isdigit, parts))


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
