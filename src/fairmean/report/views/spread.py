"""How far apart the clients of a method are: a strip of points for each."""

from __future__ import annotations

from typing import Any

from fairmean.report.judged import Judged
from fairmean.report.markup import picture, section


def html(data: dict[str, Any]) -> str | None:
    """The same figures as the heat map, along an axis."""
    if not data["clients"]:
        return None
    caption = (
        "Each point is a client, so a short strip means that clients are served alike; the upright line is the average "
        + ("of the regular clients, and poisoned clients are crosses." if data["poisoning"] else "of the clients.")
    )
    judged = Judged.in_page(data)
    if not judged.higher:
        caption += " Points further left are clients that are served better."
    body = picture("spread", f"{judged.title[0].upper()}{judged.title[1:]} of the clients")
    return section("spread", "How the clients are spread", caption, body)
