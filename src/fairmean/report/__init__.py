"""Reports: one HTML file about runs or a study, figures and tables for papers, and what notebooks show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairmean.errors import UserError
from fairmean.experiments.listing import DIRECTORY
from fairmean.report.collect import collect
from fairmean.report.material import gather
from fairmean.report.page import html


def write(runs: Any, file: str | Path = "report.html", directory: str | Path = DIRECTORY) -> Path:
    """Write a report as one HTML file that needs nothing else; returns where it is.

    ``runs``: a ``Comparison``, a ``Run``, several runs, or their folders; a study by its folder or its table.
    ``directory``: where names of studies and hashes of runs are looked for.
    """
    return save(html(collect(gather(runs, directory))), file)


def save(content: str, file: str | Path) -> Path:
    """Write a text to a file, whose folder is made if it is not there."""
    path = Path(file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UserError(f"report '{path}': cannot be written ({error.strerror}); choose another place") from None
    return path


__all__ = ["collect", "gather", "html", "save", "write"]
