"""Errors a user can mend: one line that names the thing, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input; the command line prints it as one line and exits with 2."""


class Busy(RuntimeError):
    """Another process is working in this run folder."""


class Diverged(RuntimeError):
    """A training loss became non-finite."""


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error for a name that is not there, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
    return UserError(f"unknown {kind} '{name}': {hint}")
