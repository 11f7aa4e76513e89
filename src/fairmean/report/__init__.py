"""Reports: one HTML file about runs or a study, figures and tables for papers, and what notebooks show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairmean.errors import UserError
from fairmean.report.collect import collect
from fairmean.report.material import gather
from fairmean.report.page import html


def write(runs: Any, file: str | Path = "report.html") -> Path:
    """Write a report as one HTML file that needs nothing else; returns where it is.

    ``runs``: a ``Comparison``, a ``Run``, several runs, or their folders; a study by its folder or its table.
    """
    path = Path(file)
    content = html(collect(gather(runs)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise UserError(f"report '{path}': cannot be written ({error.strerror}); choose another place with -o") from None
    return path


__all__ = ["collect", "gather", "html", "write"]
