"""Names like ``package.module:thing`` in a config, and calls into the user's code, whose failures take one line."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fairmean.errors import Lost, UserCodeError, UserError
from fairmean.user_modules import compiling_from_source, edited, files_of, is_installed, working_folder


def import_module(module: str, what: str = "--import") -> Any:
    """The module, as its file is now; the working folder is searched too, last."""
    with _users_code(f"importing {module}"), working_folder(), compiling_from_source():
        try:
            if module in sys.modules and edited(module):
                for name in files_of(module).keys() - {"__main__"}:
                    sys.modules.pop(name, None)
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                raise UserError(f"{what}: there is no module '{error.name}': check its name") from None
            raise


def import_name(name: str, what: str) -> Callable[..., Any]:
    """The callable ``package.module:thing``, as it is in memory, or imported if its module is not there yet."""
    module, _, attribute = name.partition(":")
    found = sys.modules.get(module) or import_module(module, what)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UserError(f"{what}: '{module}' has no function '{attribute}': check its name")
    return found  # type: ignore[no-any-return]


def call(function: str | Callable[..., Any], what: str, *arguments: Any) -> Any:
    """Call a function of the user's, which may be named as ``package.module:function``."""
    name = function if isinstance(function, str) else what
    if isinstance(function, str):
        function = import_name(function, what)
    with _users_code(f"{name}()" if ":" in name else name), working_folder():
        return function(*arguments)


@contextmanager
def _users_code(what: str) -> Iterator[None]:
    """A failure in the user's code becomes one line that says where it happened."""
    try:
        yield
    except (UserError, Lost, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"{what} failed ({failure(error)})") from error


def failure(error: BaseException) -> str:
    """An exception of the user's code in a line: what it says, and the last place in a file of the user's."""
    try:
        said = str(error)
    except Exception:  # an error that cannot be shown
        said = "without a message"
    detail = " ".join(f"{type(error).__name__}: {said}".split())
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg}, at {error.filename}:{error.lineno}"
    place = users_frame(error)
    return f"{detail}, at {place}" if place else detail


def frame_in(error: BaseException, module: str) -> str | None:
    """``file:line`` of the last step of an exception into the files of a user's module; None if it never came there."""
    files = {os.path.realpath(file) for file in files_of(module).values()}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if os.path.realpath(frame.filename) in files:
            return f"{frame.filename}:{frame.lineno}"
    return None


def users_frame(error: BaseException) -> str | None:
    """``file:line`` of the last step into a file that belongs neither to Python, to a package nor to fairmean."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith("<frozen") and not is_installed(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return None


def import_files_of(package: str, path: Iterable[str]) -> None:
    """Import every file of a package of fairmean's own, so that what is in it is registered; a new file is enough."""
    for module in pkgutil.iter_modules(path):
        importlib.import_module(f"{package}.{module.name}")
