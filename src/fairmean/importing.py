"""Names like ``package.module:thing`` in a config."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from fairmean.errors import UserError


def import_name(name: str, key: str) -> Any:
    """The object called ``package.module:thing``; the working folder is searched too."""
    module, _, thing = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), thing)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{key} = '{name}': cannot import it ({error}); write it as package.module:name") from None
    finally:
        if added:
            sys.path.remove(here)
