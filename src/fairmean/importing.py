"""The user's code: importing it, calling it, and knowing exactly which source it was made from.

A module of the user's that is imported here is compiled from a reading of its file whose digest is kept, never from a
byte-code cache. So the code that runs is the code that was digested, also when a file is edited while a process lives.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import sysconfig
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairmean.errors import Lost, UserCodeError, UserError

_STARTED = time.time()
_COMPILED: dict[str, str] = {}
"""The digest of the source that a module in memory was compiled from, for modules that were imported here."""
_INSTALLED = tuple(
    os.path.realpath(place)
    for key in ("stdlib", "platstdlib", "purelib", "platlib")
    if (place := sysconfig.get_paths().get(key))
)
_OURS = os.path.dirname(os.path.realpath(__file__))


# -- importing --------------------------------------------------------------------------------------------------------


def import_module(module: str, what: str = "--import") -> Any:
    """The module, as its file is now; the working folder is searched too, last."""
    with _users_code(f"importing {module}"), _working_folder(), _compiling_from_source():
        try:
            if module in sys.modules and _edited(module):
                for name in _sources(module).keys() - {"__main__"}:
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


def call(name: str, what: str, *arguments: Any) -> Any:
    """Import ``package.module:function`` and call it."""
    function = import_name(name, what)
    with _users_code(f"{name}()"), _working_folder():
        return function(*arguments)


class _FromSource(importlib.machinery.SourceFileLoader):
    """Compiles the file's present text, and keeps the digest of that very text."""

    def path_stats(self, path: str) -> Any:
        raise OSError("no byte-code cache: it is out of date when a file is edited twice within a second")

    def get_data(self, path: str) -> bytes:
        content = super().get_data(path)
        _COMPILED[self.name] = _sha(content)
        return content


class _Finder:
    """Finds modules as Python does, and has those of the user compiled by ``_FromSource``."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader = spec.loader if spec is not None else None
        if spec is not None and type(loader) is importlib.machinery.SourceFileLoader and not _is_installed(loader.path):
            spec.loader = _FromSource(loader.name, loader.path)
        return spec


@contextmanager
def _compiling_from_source() -> Iterator[None]:
    sys.meta_path.insert(0, _Finder)
    try:
        yield
    finally:
        sys.meta_path.remove(_Finder)


@contextmanager
def _working_folder() -> Iterator[None]:
    before = list(sys.path)
    sys.path.append(os.getcwd())  # last, so that no file here can stand in for an installed package
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


# -- digests ----------------------------------------------------------------------------------------------------------


def module_digest(module: str) -> str | None:
    """The source of a module and of every module of the user's that it imports; None for a module without a file."""
    with _working_folder():
        digests = {name: _digest_of(name, file) for name, file in _sources(module).items()}
    if len(digests) <= 1:
        return next(iter(digests.values()))[:16] if digests else None
    return _sha("\n".join(f"{name} {digests[name]}" for name in sorted(digests)).encode())[:16]


def definition_digest(thing: Any) -> str | None:
    """The source of a class that a user defined: of its module, or of its own code where it has no file.

    None for what comes with fairmean, whose results have a version of their own.
    """
    module = thing.__module__
    if module == "fairmean" or module.startswith("fairmean."):
        return None
    return module_digest(module) or _sha(_code_of(thing, set()).encode())[:16]


def _digest_of(name: str, file: Path) -> str:
    """Of the text in memory, where it was compiled here; else of the file."""
    return _COMPILED[name] if name in sys.modules and name in _COMPILED else _sha(file.read_bytes())


def _edited(module: str) -> bool:
    """Whether a file of a module in memory is no longer what was compiled, as far as that can be told."""
    for name, file in _sources(module).items():
        if name in sys.modules:
            known = _COMPILED.get(name)
            if (known is None and file.stat().st_mtime > _STARTED) or known not in (None, _sha(file.read_bytes())):
                return True
    return False


def _sources(module: str) -> dict[str, Path]:
    """The files of a module and of the user's modules it imports, found by reading their import statements."""
    top, found, waiting = module.partition(".")[0], {}, [module]
    while waiting:
        name = waiting.pop()
        file = None if name in found else _file(name)
        if file is None or (name != module and _is_installed(str(file)) and name.partition(".")[0] != top):
            continue
        found[name] = file
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        if file.suffix == ".py":
            package = name if file.name == "__init__.py" else name.rpartition(".")[0]
            waiting += _imports(file, package)
    return found


def _imports(file: Path, package: str) -> list[str]:
    """The names of modules that a file imports, or may import; names that are none are told apart later."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, node.module] if node.module else above)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [name for name in names if name and name.partition(".")[0] not in (*sys.stdlib_module_names, "fairmean")]


def _file(name: str) -> Path | None:
    """The file of a module, without importing it; None where there is no such module, or no file."""
    origin = getattr(sys.modules.get(name), "__file__", None)
    if name not in sys.modules:
        try:
            package = importlib.util.find_spec(name.partition(".")[0])
            if package is None or (package.origin and _is_installed(package.origin)):
                return None
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        origin = spec.origin if spec else None
    return Path(origin) if origin and os.path.isfile(origin) else None


def _is_installed(file: str) -> bool:
    """Whether a file belongs to Python or to a package that was installed, fairmean among them."""
    return os.path.realpath(file).startswith((*(f"{place}{os.sep}" for place in _INSTALLED), f"{_OURS}{os.sep}"))


def _code_of(thing: Any, seen: set[int]) -> str:
    """The code of a class or function and of what it refers to, as text: for code typed into a notebook."""
    if id(thing) in seen:
        return ""
    seen.add(id(thing))
    if isinstance(thing, type):
        if (thing.__module__ or "").partition(".")[0] in ("builtins", "fairmean", "torch", "abc"):
            return thing.__qualname__
        parts = [f"{key}={_code_of(value, seen)}" for key, value in sorted(vars(thing).items()) if key[:2] != "__"]
        parts += [_code_of(vars(thing)[key], seen) for key in ("__call__", "__post_init__") if key in vars(thing)]
        return " ".join([thing.__qualname__, *parts, *(_code_of(base, seen) for base in thing.__bases__)])
    if isinstance(thing, staticmethod | classmethod):
        return _code_of(thing.__func__, seen)
    if isinstance(thing, property):
        return _code_of(thing.fget, seen)
    if isinstance(thing, types.FunctionType):
        if (thing.__module__ or "").partition(".")[0] in ("fairmean", "torch", "numpy"):
            return thing.__qualname__
        used = [thing.__globals__[name] for name in _names(thing.__code__) if name in thing.__globals__]
        held = [cell.cell_contents for cell in thing.__closure__ or () if cell.cell_contents is not thing]
        more = [thing.__defaults__, thing.__kwdefaults__, *used, *held]
        return " ".join([_bytes_of(thing.__code__), *(_code_of(value, seen) for value in more)])
    if isinstance(thing, types.ModuleType):
        installed = _is_installed(str(getattr(thing, "__file__", "")))
        return thing.__name__ if installed else str(module_digest(thing.__name__))
    if isinstance(thing, dict):
        return " ".join(f"{key!r}:{_code_of(value, seen)}" for key, value in thing.items())
    if isinstance(thing, list | tuple):
        return " ".join(_code_of(value, seen) for value in thing)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


def _names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def _bytes_of(code: types.CodeType) -> str:
    inner = [_bytes_of(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {inner}"


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- failures ---------------------------------------------------------------------------------------------------------


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
    files = {os.path.realpath(file) for file in _sources(module).values()}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if os.path.realpath(frame.filename) in files:
            return f"{frame.filename}:{frame.lineno}"
    return None


def users_frame(error: BaseException) -> str | None:
    """``file:line`` of the last step into a file that belongs neither to Python, to a package nor to fairmean."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith("<frozen") and not _is_installed(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return None
