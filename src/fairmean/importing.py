"""The user's code: importing it, calling it, and knowing exactly which source it was made from.

A module of the user's that is imported here is compiled from a reading of its file whose digest is kept, never from a
byte-code cache. So the code that runs is the code that was digested, also when a file is edited while a process lives.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fairmean.errors import Lost, UserCodeError, UserError

_STARTED = time.time()
_COMPILED: dict[str, str] = {}
"""The digest of the source that a module in memory was compiled from, for modules that were imported here."""
_INSTALLED = tuple(
    os.path.realpath(place) for key in ("stdlib", "platstdlib") if (place := sysconfig.get_paths().get(key))
)
_OURS = os.path.dirname(os.path.realpath(__file__))
_KNOWN = ("builtins", "fairmean", "torch", "numpy", "abc", "dataclasses", "typing", "functools")


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

    def source_to_code(self, data: Any, path: Any, *, _optimization: int = -1) -> types.CodeType:  # type: ignore[override]
        _COMPILED[self.name] = _sha(data)
        return super().source_to_code(data, path)


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
    return module_digest(module) or _sha(_code_of(thing, {}).encode())[:16]


def _digest_of(name: str, file: Path) -> str:
    """Of the text in memory, where it was compiled here; else of the file."""
    return _compiled(name) or _sha_of_file(*_stamp(file))


def _edited(module: str) -> bool:
    """Whether a file of a module in memory is no longer what was compiled, as far as that can be told."""
    for name, file in _sources(module).items():
        if name in sys.modules:
            known = _compiled(name)
            if (known is None and file.stat().st_mtime > _STARTED) or known not in (None, _sha_of_file(*_stamp(file))):
                return True
    return False


def _compiled(name: str) -> str | None:
    """The digest of what a module in memory was compiled from, if it was compiled here, and not reloaded since."""
    loader = getattr(getattr(sys.modules.get(name), "__spec__", None), "loader", None)
    return _COMPILED.get(name) if isinstance(loader, _FromSource) else None


def _stamp(file: Path) -> tuple[str, int, int]:
    state = file.stat()
    return str(file), state.st_mtime_ns, state.st_size


@functools.lru_cache(maxsize=4096)
def _sha_of_file(path: str, changed: int, size: int) -> str:
    return _sha(Path(path).read_bytes())


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
            if name == "__main__":
                package = getattr(sys.modules[name], "__package__", None) or ""
            waiting += _imports(*_stamp(file), package)
    return found


@functools.lru_cache(maxsize=4096)
def _imports(path: str, changed: int, size: int, package: str) -> list[str]:
    """The names of modules that a file imports, or may import; names that are none are told apart later."""
    try:
        tree = ast.parse(Path(path).read_bytes())
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
    place = os.path.realpath(file)
    if not {"site-packages", "dist-packages"}.isdisjoint(place.split(os.sep)):
        return True
    return place.startswith((*(f"{folder}{os.sep}" for folder in _INSTALLED), f"{_OURS}{os.sep}"))


def _code_of(thing: Any, seen: dict[int, Any]) -> str:
    """The code of a class or function and of what it refers to, as text: for code typed into a notebook.

    ``seen`` holds what was met before, by its id, and keeps it alive, so that no id is used again.
    """
    if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
        return repr(thing)
    if id(thing) in seen:
        return ""
    seen[id(thing)] = thing
    if isinstance(thing, types.ModuleType):
        installed = _is_installed(str(getattr(thing, "__file__", None) or _OURS + os.sep))
        return thing.__name__ if installed else str(module_digest(thing.__name__))
    if (getattr(thing, "__module__", None) or "").partition(".")[0] in _KNOWN and hasattr(thing, "__qualname__"):
        return str(thing.__qualname__)
    return " ".join(_code_of(part, seen) for part in _parts(thing))


def _parts(thing: Any) -> list[Any]:
    """What decides how something typed in behaves; its kind comes first."""
    if isinstance(thing, type):
        own = [
            item for item in vars(thing).items() if item[0] not in ("__dict__", "__weakref__", "__module__", "__doc__")
        ]
        mine = [part for name, value in sorted(own) if not name.startswith("__dataclass") for part in (name, value)]
        return [thing.__qualname__, *mine, *thing.__bases__]
    if isinstance(thing, types.FunctionType):
        used = [(name, thing.__globals__[name]) for name in sorted(_names(thing.__code__)) if name in thing.__globals__]
        held = [cell.cell_contents for cell in thing.__closure__ or ()]
        return [_bytes_of(thing.__code__), thing.__defaults__, thing.__kwdefaults__, *used, *held]
    if isinstance(thing, staticmethod | classmethod) or hasattr(thing, "__wrapped__"):
        return [type(thing).__qualname__, getattr(thing, "__wrapped__", None) or thing.__func__]
    if isinstance(thing, property):
        return ["property", thing.fget]
    if isinstance(thing, functools.partial):
        return ["partial", thing.func, thing.args, thing.keywords]
    if isinstance(thing, dict):
        return ["dict", *thing.items()]
    if isinstance(thing, list | tuple):
        return [type(thing).__name__, *thing]
    if isinstance(thing, set | frozenset):
        return ["set", *sorted(map(repr, thing))]
    if hasattr(thing, "__array__"):  # NumPy's and torch's
        array = np.asarray(thing.detach().cpu() if hasattr(thing, "detach") else thing)
        return ["array", str(array.dtype), str(array.shape), _sha(np.ascontiguousarray(array).tobytes())]
    return [type(thing), *sorted(vars(thing).items())] if hasattr(thing, "__dict__") else [type(thing).__qualname__]


def _names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def _bytes_of(code: types.CodeType) -> str:
    inner = [
        _bytes_of(c) if isinstance(c, types.CodeType) else sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c)
        for c in code.co_consts
    ]
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
