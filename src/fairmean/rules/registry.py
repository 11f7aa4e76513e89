"""Registries: things by name, of which a name means one, together with the source they were made from."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from fairmean.code_digest import definition_digest
from fairmean.errors import UserError
from fairmean.rules.hyper import check_rule
from fairmean.user_modules import is_behind_its_files

T = TypeVar("T")
Base = TypeVar("Base")
Kind = TypeVar("Kind", bound=type[Any])

_SOURCES: WeakKeyDictionary[type, str | None] = WeakKeyDictionary()


class Registry(dict[str, T]):
    """Names and what they mean. ``kind`` is what error messages call it; ``reserved`` names are taken elsewhere."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.reserved: frozenset[str] = frozenset()
        self._classes: dict[str, type[Any]] = {}

    def add(self, name: str, cls: type[Any], entry: T, replace: bool = False) -> None:
        """Let ``name`` mean ``entry``, whose class is ``cls``.

        A name that means something else already is refused, unless ``replace`` asks for it. The same class defined once
        more (a notebook's cell run again, a module reloaded) takes the place of its earlier self.
        """
        where = _place(self._classes[name]) if name in self and name in self._classes else None
        if not replace and (name in self.reserved or where not in (None, _place(cls))):
            who = f" ({'.'.join(where)})" if where else ""
            raise UserError(
                f"{self.kind} '{name}' is there already{who}; choose another name, or register it with replace=True"
            )
        _SOURCES[cls] = definition_digest(cls)
        self[name] = entry
        self._classes[name] = cls


class Parts(Registry[type[Base]]):
    """A registry of the classes below ``base``, which are parts of methods: frozen dataclasses with defaults."""

    def __init__(self, kind: str, base: type[Base]) -> None:
        super().__init__(kind)
        self._base = base

    def register(self, name: str, *, replace: bool = False) -> Callable[[Kind], Kind]:
        """Make a class available under ``name``; a name that is taken is refused, unless ``replace`` is set."""

        def add(cls: Kind) -> Kind:
            check_rule(name, cls, self._base)
            self.add(name, cls, cls, replace)
            return cls

        return add


def _place(cls: Any) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def source_of(cls: type[Any]) -> str | None:
    """The digest of a class's source as it was when it was registered; None for what comes with fairmean.

    What runs is the class in memory. When its file has changed since, that is said.
    """
    now = definition_digest(cls)
    known = _SOURCES.get(cls, now)
    if known != now or (known is not None and is_behind_its_files(cls.__module__)):
        warnings.warn(
            f"the file of {cls.__module__}.{cls.__qualname__} has changed since it was imported; what is in memory is "
            f"used: importlib.reload({cls.__module__}) takes the new one",
            stacklevel=2,
        )
    return known
