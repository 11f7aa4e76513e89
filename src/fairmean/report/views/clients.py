"""Every client under every method, as a heat map."""

from __future__ import annotations

from typing import Any

from fairmean.report.markup import picture, section


def html(data: dict[str, Any]) -> str | None:
    """One draw at a time: clients of different draws are different clients."""
    if not data["clients"]:
        return None
    what = "clean labels" if data["labels"] == "clean" else "the labels as given"
    one = " of the draw that is shown" if len(data["seeds"]) > 1 else ""
    caption = (
        f"A column is a client{one} and a row is a method; the colour is the client’s accuracy on {what}. "
        "Clients stand from worst to best served, poisoned ones at the end, behind the gap."
    )
    if data["clients"] > 800:
        caption += " Where there are more clients than pixels, neighbours share one and their colours are mixed."
    title = "Every client, every method" if len(data["methods"]) > 1 else "Every client"
    body = picture("clients", "Accuracy of every client under every method")
    return section("clients", title, caption, body, data["notes"].get("clients"))
