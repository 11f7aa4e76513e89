"""Settings that are objects: arrays as data, modules and functions as models, passed to ``fairmean.run`` in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairmean import models
from fairmean.data import in_memory
from fairmean.data.own import OPTIONAL, REQUIRED

_ARRAYS = (*REQUIRED, *OPTIONAL, "classes")


def by_name(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, with data and models that are objects kept in memory and named instead.

    ``data={"x_train": …, "y_train": …, "x_test": …, "y_test": …, "scale": "standard"}``, ``model=nn.Linear(4, 2)``.
    """
    settings = dict(overrides)
    given = settings.get("data")
    if isinstance(given, Mapping) and any(key in given for key in _ARRAYS):
        name = in_memory.keep({key: given[key] for key in _ARRAYS if key in given})
        settings["data"] = {"name": name} | {key: value for key, value in given.items() if key not in _ARRAYS}
    elif given is not None and not isinstance(given, str | Mapping):
        settings["data"] = {"name": in_memory.keep(given)}
    for section in ("data", "model"):  # a name alone may stand for a section of which nothing else is set
        if isinstance(settings.get(section), str):
            settings[section] = {"name": settings[section]}
    model = settings.get("model")
    if model is not None and not isinstance(model, Mapping):
        settings["model"] = {"name": models.keep(model)}
    return settings
