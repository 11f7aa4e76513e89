"""Errors a user can mend: one line that names the thing, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input; the command line prints it as one line and exits with 2."""


class UserCodeError(UserError):
    """A rule, a model or a data function of the user's failed, or returned what it must not; it is named."""


class Busy(RuntimeError):
    """Another process is working in this run folder."""


class Diverged(RuntimeError):
    """A training loss became non-finite."""


class Lost(RuntimeError):
    """The other ranks cannot be reached. ``kept``: what can be resumed, as far as it is known."""

    kept = "run folders keep their last checkpoints"
    place = ""


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that is most like the given one; None if none is much like it."""
    return next(iter(difflib.get_close_matches(str(name), sorted(known), n=1, cutoff=0.65)), None)


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """The error for a name that is not there, with the nearest one that is."""
    names = sorted(known)
    near = nearest(name, names)
    hint = f"did you mean '{near}'?" if near else f"known: {', '.join(names)}"
    return UserError(f"unknown {kind} '{name}': {hint}")
