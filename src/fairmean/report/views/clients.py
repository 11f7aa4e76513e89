"""Every client under every method, as a heat map."""

from __future__ import annotations

from typing import Any

from fairmean.report.judged import Judged
from fairmean.report.markup import picture, section


def html(data: dict[str, Any]) -> str | None:
    """One draw at a time: clients of different draws are different clients."""
    if not data["clients"]:
        return None
    judged = Judged.in_page(data)
    one = " of the draw that is shown" if len(data["seeds"]) > 1 else ""
    caption = (
        f"A column is a client{one} and a row is a method; the colour is the client’s {judged.title} "
        f"on {data['labels']}"
        f"{'' if judged.is_share else '; bright is good'}. Clients stand from worst to best served"
        f"{', poisoned ones at the end, behind the gap' if data['poisoning'] else ''}."
    )
    if data["clients"] > 800:
        caption += " Where there are more clients than pixels, neighbours share one and their colours are mixed."
    title = "Every client, every method" if len(data["methods"]) > 1 else "Every client"
    body = picture("clients", f"{judged.title[0].upper()}{judged.title[1:]} of every client under every method")
    return section("clients", title, caption, body, data["notes"].get("clients"))
