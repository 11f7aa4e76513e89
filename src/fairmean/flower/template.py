"""``fairmean flower new``: the files of a Flower app, written into a folder of the user's."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from string import Template

from fairmean.errors import UserError

FILES = {
    "server_app.py": "server_app.py",
    "client_app.py": "client_app.py",
    "task.py": "task.py",
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "gitignore.txt": ".gitignore",
}
"""Files of the package's folder ``app``, and what they are called in an app."""


def write(folder: Path) -> list[Path]:
    """Write the app into a folder that is new or empty; the files that were written."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"'{folder}' is a file; name a folder that is new or empty")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"'{folder}' holds something already; name a folder that is new or empty")
    name = app_name(folder)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source, target in FILES.items():
            text = resources.files("fairmean.flower").joinpath("app", source).read_text(encoding="utf-8")
            if not source.endswith(".py"):  # Python is written as it stands
                text = Template(text).substitute(name=name, folder=folder.name)
            (folder / target).write_text(text, encoding="utf-8")
            written.append(folder / target)
    except OSError as error:
        raise UserError(f"'{folder}': cannot be written ({error.strerror}); choose another place") from None
    return written


def app_name(folder: Path) -> str:
    """A name for the app such as Flower accepts, after its folder: small letters, digits and hyphens."""
    plain = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    return plain if plain and plain[0].isalpha() else f"app-{plain}".rstrip("-")
