"""Methods from other packages: modules named by the entry-point group ``fairmean.methods`` register on import."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.metadata import entry_points


@cache
def load_plugins() -> None:
    """Import every plug-in once; a broken one is named in a warning and left out."""
    for entry in entry_points(group="fairmean.methods"):
        try:
            entry.load()
        except Exception as error:
            warnings.warn(f"plug-in '{entry.name}' ({entry.value}) could not be loaded: {error}", stacklevel=2)
