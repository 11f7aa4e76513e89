"""Digests of what a user defined: a class by its module's source, or by its own code where it was typed in."""

from __future__ import annotations

import functools
import os
import sys
import types
from typing import Any

import numpy as np

from fairmean.user_modules import digest, is_installed, module_digest

_KNOWN = ("builtins", "fairmean", "torch", "numpy", "abc", "dataclasses", "typing", "functools")
_WRITTEN = ("__call__", "__post_init__")  # the dunder methods that a dataclass does not make itself
_NOT_CODE = ("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__")


def definition_digest(thing: Any) -> str | None:
    """The source of a class that a user defined: of its module, or of its own code where it has no file.

    None for what comes with fairmean, whose results have a version of their own.
    """
    module = thing.__module__
    if module == "fairmean" or module.startswith("fairmean."):
        return None
    of_file = module_digest(module)
    if of_file is not None and _is_from_file(thing):
        return of_file
    return digest(f"{of_file} {_code_of(thing, {})}".encode())[:16]


def value_digest(thing: Any) -> str:
    """A digest of a function, a class or an object: of its code, of what that refers to, and of the values it holds."""
    return digest(_code_of(thing, {}).encode())[:16]


def _is_from_file(thing: Any) -> bool:
    """Whether what was written in a class's body came from its module's file, and not from a text that was executed."""
    file = getattr(sys.modules.get(thing.__module__), "__file__", None) or ""
    written = [value for name, value in vars(thing).items() if not name.startswith("__") or name in _WRITTEN]
    codes = [value.__code__ for value in written if isinstance(value, types.FunctionType)]
    return all(os.path.realpath(code.co_filename) == os.path.realpath(file) for code in codes)


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
        file = getattr(thing, "__file__", None)
        return thing.__name__ if file is None or is_installed(file) else str(module_digest(thing.__name__))
    if (getattr(thing, "__module__", None) or "").partition(".")[0] in _KNOWN and hasattr(thing, "__qualname__"):
        return str(thing.__qualname__)
    return " ".join(_code_of(part, seen) for part in _parts(thing))


def _parts(thing: Any) -> list[Any]:
    """What decides how something typed in behaves; its kind comes first."""
    if isinstance(thing, type):
        names = [name for name in sorted(vars(thing)) if name not in _NOT_CODE and not name.startswith("__dataclass")]
        return [thing.__qualname__, *((name, vars(thing)[name]) for name in names), *thing.__bases__]
    if isinstance(thing, types.FunctionType):
        used = [(name, thing.__globals__[name]) for name in sorted(_names(thing.__code__)) if name in thing.__globals__]
        held = [_content(cell) for cell in thing.__closure__ or ()]
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
        return ["array", str(array.dtype), str(array.shape), digest(np.ascontiguousarray(array).tobytes())]
    return [type(thing), *sorted(vars(thing).items())] if hasattr(thing, "__dict__") else [type(thing).__qualname__]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def _bytes_of(code: types.CodeType) -> str:
    inner = [
        _bytes_of(c) if isinstance(c, types.CodeType) else sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c)
        for c in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {inner}"
