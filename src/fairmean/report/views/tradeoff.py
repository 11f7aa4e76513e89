"""Average against worst: whether a method pays for its worst client with the others."""

from __future__ import annotations

from typing import Any

from fairmean.report.judged import Judged
from fairmean.report.markup import picture, section


def html(data: dict[str, Any]) -> str | None:
    """A dot for every method, under the attack that was chosen."""
    if len(data["methods"]) < 2:
        return None
    judged = Judged.in_page(data)
    across, along = ("right", "up") if judged.higher else ("left", "down")
    caption = (
        f"Each large dot is a method: further {across} its average client is better off, further {along} its worst "
        "client is."
    )
    if len(data["seeds"]) > 1:
        caption += " Small dots are single draws"
        caption += ", and the crossed lines are 95 % intervals." if data["intervals"] else "."
    caption += " Diamonds are the client that you follow."
    body = picture("tradeoff", f"Average against worst {judged.title}")
    return section("tradeoff", "Average against worst", caption, body)
