"""Names like ``package.module:thing`` in a config, and calls into the user's code."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairmean.errors import UserError


def import_module(module: str, what: str = "--import") -> Any:
    """The module; the working folder is searched too, last."""
    with _users_code(f"importing {module}"), _working_folder():
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                raise UserError(f"{what}: there is no module '{error.name}': check its name") from None
            raise


def import_name(name: str, what: str) -> Callable[..., Any]:
    """The callable ``package.module:thing``."""
    module, _, attribute = name.partition(":")
    found = import_module(module, what)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UserError(f"{what}: '{module}' has no function '{attribute}': check its name")
    return found  # type: ignore[no-any-return]


def source_digest(name: str) -> str | None:
    """SHA-256 of the file of the module in ``package.module:thing``; None for any other name, or no file."""
    module, colon, _ = name.partition(":")
    if not colon:
        return None
    with _working_folder():
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            return None
    file = Path(found.origin) if found and found.origin else None
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file and file.is_file() else None


def call(name: str, what: str, *arguments: Any) -> Any:
    """Import ``package.module:function`` and call it."""
    function = import_name(name, what)
    with _users_code(f"{name}()"), _working_folder():
        return function(*arguments)


@contextmanager
def _users_code(what: str) -> Iterator[None]:
    """A failure in the user's code becomes one line that says where it happened."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        detail = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{what} failed ({detail}, at {last.filename}:{last.lineno}): mend it there") from error


@contextmanager
def _working_folder() -> Iterator[None]:
    before = list(sys.path)
    sys.path.append(os.getcwd())  # last, so that no file here can stand in for an installed package
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
