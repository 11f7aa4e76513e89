"""Modules of the user's: where their files are, how they are compiled, and the digest of what was compiled.

A module of the user's is compiled from a reading of its file whose digest is kept, never from a byte-code cache. So the
code that runs is the code that was digested, also when a file is edited while a process lives.
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
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_STARTED = time.time()
_COMPILED: dict[str, str] = {}
"""The digest of the source that a module in memory was compiled from, for modules that were compiled here."""
_INSTALLED = tuple(
    os.path.realpath(place) for key in ("stdlib", "platstdlib") if (place := sysconfig.get_paths().get(key))
)
_OURS = os.path.dirname(os.path.realpath(__file__))


class _FromSource(importlib.machinery.SourceFileLoader):
    """Compiles the file's present text, and keeps the digest of that very text."""

    def path_stats(self, path: str) -> Any:
        raise OSError("no byte-code cache: it is out of date when a file is edited twice within a second")

    def source_to_code(self, data: Any, path: Any, *more: Any, **options: Any) -> types.CodeType:  # type: ignore[override]
        _COMPILED[self.name] = digest(data)
        return super().source_to_code(data, path, *more, **options)


class _Finder:
    """Finds modules as Python does, and has those of the user compiled by ``_FromSource``."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader = spec.loader if spec is not None else None
        if spec is not None and type(loader) is importlib.machinery.SourceFileLoader and not is_installed(loader.path):
            spec.loader = _FromSource(loader.name, loader.path)
        return spec


@contextmanager
def compiling_from_source() -> Iterator[None]:
    sys.meta_path.insert(0, _Finder)
    try:
        yield
    finally:
        sys.meta_path.remove(_Finder)


@contextmanager
def working_folder() -> Iterator[None]:
    before = list(sys.path)
    sys.path.append(os.getcwd())  # last, so that no file here can stand in for an installed package
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def module_digest(module: str) -> str | None:
    """The source of a module and of every module of the user's that it imports; None for a module without a file."""
    with working_folder():
        digests = {name: _digest_of(name, file) for name, file in files_of(module).items()}
    if len(digests) <= 1:
        return next(iter(digests.values()))[:16] if digests else None
    return digest("\n".join(f"{name} {digests[name]}" for name in sorted(digests)).encode())[:16]


def _digest_of(name: str, file: Path) -> str:
    """Of the text in memory, where it was compiled here; else of the file."""
    return _compiled(name) or _sha_of_file(*_stamp(file))


def edited(module: str) -> bool:
    """Whether a file of a module in memory is no longer what was compiled, as far as that can be told."""
    for name, file in files_of(module).items():
        if name in sys.modules:
            known = _compiled(name)
            if (known is None and file.stat().st_mtime > _STARTED) or known not in (None, _sha_of_file(*_stamp(file))):
                return True
    return False


def is_behind_its_files(module: str) -> bool:
    """Whether a module was compiled here, and a file of it has changed since."""
    return any(
        (known := _compiled(name)) is not None and known != _sha_of_file(*_stamp(file))
        for name, file in files_of(module).items()
    )


def _compiled(name: str) -> str | None:
    """The digest of what a module in memory was compiled from, if it was compiled here, and not reloaded since."""
    loader = getattr(getattr(sys.modules.get(name), "__spec__", None), "loader", None)
    return _COMPILED.get(name) if isinstance(loader, _FromSource) else None


def _stamp(file: Path) -> tuple[str, int, int]:
    state = file.stat()
    return str(file), state.st_mtime_ns, state.st_size


@functools.lru_cache(maxsize=4096)
def _sha_of_file(path: str, changed: int, size: int) -> str:
    return digest(Path(path).read_bytes())


def files_of(module: str) -> dict[str, Path]:
    """The files of a module and of the user's modules it imports, found by reading their import statements."""
    top, found, waiting = module.partition(".")[0], {}, [module]
    while waiting:
        name = waiting.pop()
        file = None if name in found else _file(name)
        if file is None or (name != module and is_installed(str(file)) and name.partition(".")[0] != top):
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
            if package is None or (package.origin and is_installed(package.origin)):
                return None
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        origin = spec.origin if spec else None
    return Path(origin) if origin and os.path.isfile(origin) else None


def is_installed(file: str) -> bool:
    """Whether a file belongs to Python or to a package that was installed, fairmean among them."""
    place = os.path.realpath(file)
    if not {"site-packages", "dist-packages"}.isdisjoint(place.split(os.sep)):
        return True
    return place.startswith((*(f"{folder}{os.sep}" for folder in _INSTALLED), f"{_OURS}{os.sep}"))


def digest(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()
