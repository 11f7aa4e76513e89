"""The catalogue of what fairmean itself has, stored as a file, so that listing it needs no import of PyTorch.

``python scripts/make_docs.py`` writes the file from the registries, and a test fails when it is out of date. Where
there are parts of somebody else's, the registries themselves are asked.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any

FILE = "catalogue.json"


def rows(what: str) -> list[dict[str, Any]]:
    """Every row of a catalogue."""
    if what == "datasets":  # where they lie is not known beforehand
        return datasets()
    if not _enough():
        from fairmean.terminal import catalogue

        return catalogue.CATALOGUE[what]()
    return list(_stored()[what])


def datasets() -> list[dict[str, Any]]:
    """Every data set that is known by name, and where it is."""
    from fairmean import data

    return [row | {"shape": "×".join(map(str, row["shape"]))} for row in data.describe()]


def one(what: str, name: str) -> dict[str, Any]:
    """All there is to say about one of them."""
    if _enough():
        known = _stored()["method"] if what == "methods" else {row["name"]: row for row in _stored().get(what, [])}
        if name in known:
            return dict(known[name])
    from fairmean.terminal import catalogue

    return catalogue.one(what, name)


def defaults(method: str) -> dict[str, Any]:
    """The hyper-parameters of one of fairmean's own methods, by dotted key, as they are where nobody sets them."""
    known: dict[str, dict[str, Any]] = {row["name"]: row["hyper-parameters"] for row in _stored()["methods"]}
    return {f"method.{key}": value for key, value in known.get(method, {}).items()}


def _enough() -> bool:
    """Whether there can be nothing but fairmean's own: the registries are not in memory, and nobody adds to them."""
    return "fairmean.rules" not in sys.modules and not entry_points(group="fairmean.methods")


@cache
def _stored() -> dict[str, Any]:
    text = files("fairmean.terminal").joinpath(FILE).read_text(encoding="utf-8")
    stored: dict[str, Any] = json.loads(text)
    return stored
