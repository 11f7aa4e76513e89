"""Average against worst: whether a method pays for its worst client with the others."""

from __future__ import annotations

from typing import Any

from fairmean.report.markup import picture, section


def html(data: dict[str, Any]) -> str | None:
    """A dot for every method, under the attack that was chosen."""
    if len(data["methods"]) < 2:
        return None
    caption = (
        "Each large dot is a method: further right its average client is better off, further up its worst client is."
    )
    if len(data["seeds"]) > 1:
        caption += " Small dots are single draws"
        caption += ", and the crossed lines are 95 % intervals." if data["intervals"] else "."
    caption += " Diamonds are the client that you follow."
    return section("tradeoff", "Average against worst", caption, picture("tradeoff", "Average against worst accuracy"))
