"""The parts of a page, in their order: each is a module here, with a script of the same name if it draws.

To add one, write ``views/NAME.py`` with a function ``html(data) -> str | None`` (None: there is nothing to show), put a
``views/NAME.js`` beside it if it has a picture, and name it in ``VIEWS``.
"""

from __future__ import annotations

VIEWS = (
    "summary",
    "table",
    "further",
    "tradeoff",
    "clients",
    "spread",
    "audit",
    "curves",
    "weights",
    "partition",
    "kappa_tau",
    "certificate",
    "repeat",
)
"""Names of the modules, in the order of the page."""
