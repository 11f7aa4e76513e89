"""Builds sdist and wheel, installs the wheel into an empty environment, and tries it outside the checkout:

    python scripts/try_wheel.py

The libraries that fairmean needs are taken from the environment that runs this script, so nothing is downloaded. The
wheel is built from the sdist, which shows that the sdist is whole.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = (".json", ".npz", ".css", ".js", ".html", ".svg", ".bash", ".zsh", ".fish", ".typed")
"""Endings of files that are no Python and belong to the package all the same."""


def main() -> None:
    """Build, install, try; the first thing that is wrong ends it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        sdist, wheel = _build(place)
        _contents(wheel)
        fairmean = _install(place, wheel)
        _try(place, fairmean)
        sizes = ", ".join(f"{file.name} {file.stat().st_size / 2**20:.1f} MiB" for file in (sdist, wheel))
    print(f"{sizes}: built, installed and tried in {time.monotonic() - started:.0f} s")


def _build(place: Path) -> tuple[Path, Path]:
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place / "dist"), str(ROOT)], place)
    (sdist,), (wheel,) = (place / "dist").glob("*.tar.gz"), (place / "dist").glob("*.whl")
    return sdist, wheel


def _contents(wheel: Path) -> None:
    """Every file of the package is in the wheel, and nothing but the package."""
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    source = ROOT / "src"
    every = (file for file in (source / "fairmean").rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    missing = {str(file.relative_to(source)) for file in every} - packed
    if missing:
        sys.exit(f"the wheel lacks {', '.join(sorted(missing))}")
    strange = {file for file in packed if not file.startswith("fairmean/") and ".dist-info/" not in file}
    if strange:
        sys.exit(f"the wheel holds what is no part of the package: {', '.join(sorted(strange))}")
    data = sorted(file for file in packed if file.endswith(DATA))
    for wanted in ("terminal/catalogue.json", "data/embedded/fashion-mnist-mini.npz", "completions/fairmean.bash"):
        if not any(file.endswith(wanted) for file in data):
            sys.exit(f"the wheel lacks {wanted}")
    if not any(file.endswith("licenses/LICENSE") for file in packed):
        sys.exit("the wheel lacks the licence")


def _install(place: Path, wheel: Path) -> Path:
    """An environment with the wheel and nothing else; other libraries are found where this script finds them."""
    environment = place / "environment"
    _run([sys.executable, "-m", "venv", "--without-pip", str(environment)], place)
    python = environment / "bin" / "python"
    install = ["--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    _run([sys.executable, "-m", "pip", "--python", str(python), *install], place)
    own = Path(_run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], place).strip())
    others = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    (own / "others.pth").write_text("".join(f"{folder}\n" for folder in sorted(others)))
    where = _run([str(python), "-c", "import fairmean; print(fairmean.__file__)"], place).strip()
    if not Path(where).is_relative_to(own):
        sys.exit(f"{where} was imported, which is not what was installed")
    return environment / "bin" / "fairmean"


def _try(place: Path, fairmean: Path) -> None:
    """What a new user types, in an empty folder."""
    empty = place / "empty"
    empty.mkdir()
    command = str(fairmean)
    version = _run([command, "--version"], empty).strip()
    if "krum" not in _run([command, "list", "methods"], empty):
        sys.exit("'fairmean list methods' does not list krum")
    for shell in ("bash", "zsh", "fish"):
        if "fairmean" not in _run([command, "completion", shell], empty):
            sys.exit(f"'fairmean completion {shell}' prints nothing")
    healthy = json.loads(_run([command, "doctor", "--json"], empty))
    if not healthy["ok"]:
        sys.exit(f"'fairmean doctor' finds something missing: {healthy}")
    summary = json.loads(_run([command, "run", "train.rounds=2", "train.device=cpu", "--json"], empty))
    if summary["status"] != "finished" or not (empty / summary["folder"] / "clients.csv").is_file():
        sys.exit(f"'fairmean run' did not finish: {summary}")
    if "finished" not in _run([command, "ls"], empty):
        sys.exit("'fairmean ls' does not show the run")
    _run([command, "flower", "new", "app"], empty)
    if not (empty / "app" / "server_app.py").is_file():
        sys.exit("'fairmean flower new' does not write an app")
    print(f"fairmean {version}: two rounds, average {summary['average']:.1f} %")


def _run(command: list[str], folder: Path) -> str:
    """What a command prints; its own words if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=_environment())
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _environment() -> dict[str, str]:
    """This environment, without what could lead to the checkout."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}


if __name__ == "__main__":
    main()
