"""Settings that are objects: data, and modules and functions as models, passed to ``fairmean.run`` in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairmean import models
from fairmean.data import in_memory
from fairmean.data.dataset import Columns


def by_name(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, with data and models that are objects kept in memory and named instead.

    ``data={"x_train": …, "y_train": …, "x_test": …, "y_test": …, "scale": "standard"}``,
    ``data={"frame": DataFrame, "target": "outcome", "client": "site"}``, ``data={"train": …, "test": …}`` with torch
    Datasets, ``model=nn.Linear(4, 2)``, or
    ``model={"name": nn.Sequential(…), "frozen": ["0"]}``.
    """
    settings = dict(overrides)
    passed = settings.get("data")
    objects = (
        {key: value for key, value in passed.items() if _is_object(key, value)} if isinstance(passed, Mapping) else {}
    )
    if isinstance(passed, Mapping) and objects:
        others = {key: value for key, value in passed.items() if key not in objects}
        columns = Columns(**{key: others[key] for key in Columns._fields if key in others})
        settings["data"] = {"name": in_memory.keep(objects, columns)} | others
    elif passed is not None and not isinstance(passed, str | Mapping):
        settings["data"] = {"name": in_memory.keep(passed)}
    for section in ("data", "model"):  # a name alone may stand for a section of which nothing else is set
        if isinstance(settings.get(section), str):
            settings[section] = {"name": settings[section]}
    model = settings.get("model")
    if model is not None and not isinstance(model, Mapping):
        settings["model"] = {"name": models.keep(model)}
    elif model is not None and not isinstance(model.get("name", ""), str):
        settings["model"] = {**model, "name": models.keep(model["name"])}
    return settings


def _is_object(key: str, value: Any) -> bool:
    """Whether a key of ``data={…}`` brings data; ``test`` may also be the fraction of rows that is for testing."""
    return key in in_memory.OBJECTS and not (key == "test" and isinstance(value, int | float))
