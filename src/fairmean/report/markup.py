"""Small pieces of HTML. Everything that is text goes through ``text``."""

from __future__ import annotations

import html
from collections.abc import Mapping


def text(value: object) -> str:
    """Any text as HTML; nothing in it is markup.

    >>> text('<b>κ & "τ"</b>')
    '&lt;b&gt;κ &amp; &quot;τ&quot;&lt;/b&gt;'
    """
    return html.escape(str(value), quote=True)


def tag(name: str, content: str = "", attributes: Mapping[str, object] | None = None) -> str:
    """An element around content that is HTML already; attributes are text, and those that are None are left out."""
    given = "".join(f' {key}="{text(value)}"' for key, value in (attributes or {}).items() if value is not None)
    return f"<{name}{given}>{content}</{name}>"


def section(name: str, title: str, caption: str, body: str, notes: list[str] | None = None) -> str:
    """A part of the page: a heading, one sentence that says how to read what follows, and that."""
    said = "".join(tag("p", text(note), {"class": "note"}) for note in notes or [])
    head = tag("h2", text(title), {"id": f"{name}-title"}) + tag("p", caption, {"class": "caption"})
    return tag("section", head + body + said, {"id": name, "aria-labelledby": f"{name}-title"})


def picture(name: str, label: str, extra: str = "", panel: int | None = None) -> str:
    """The place where a script draws; ``label`` is what a screen reader says of it."""
    frame = tag("div", "", {"class": "plot", "data-view": name, "data-panel": panel, "data-label": label})
    return tag("figure", extra + frame)
