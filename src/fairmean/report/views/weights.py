"""Who is given weight: the coefficient of every client's gradient, round by round."""

from __future__ import annotations

from typing import Any

from fairmean.report.markup import section, tag


def html(data: dict[str, Any]) -> str | None:
    """A small panel for each method in colour; the script makes them."""
    if not data["curves"]:
        return None
    caption = (
        "Each line is a client, and its height is the weight that its gradient got in the round’s step. "
        "Regular clients are solid lines that end in a dot; poisoned clients are dashed lines that end in a cross."
    )
    body = tag("div", "", {"class": "panels", "data-panels": "weights"})
    return section("weights", "Who is given weight", caption, body, data["notes"].get("traces"))
