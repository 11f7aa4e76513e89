"""Which classes the clients hold: the partition, before and after poisoning."""

from __future__ import annotations

from typing import Any

from fairmean.report.markup import picture, section, tag


def html(data: dict[str, Any]) -> str | None:
    """Classes × clients, in the order of the heat map."""
    if data["partitions"] is None:
        return None
    if data["partitions"].get("plain"):
        caption = "A bar is a client, in the same order as above; its height is the number of its training samples."
        body = picture("partition", "Number of samples of every client")
        return section("partition", "How much data the clients have", caption, body)
    caption = (
        "A column is a client, in the same order as above, and a row is a class; the darker a field, the larger the "
        "share of the client’s training samples with that label. Bars on top show how many samples a client has."
    )
    switch = ""
    if data["poisoning"]:
        choices = "".join(
            tag("button", label, {"type": "button", "data-labels": key, "aria-pressed": "true" if first else "false"})
            for key, label, first in (("classes", "labels as used", True), ("clean_classes", "before poisoning", False))
        )
        switch = tag("div", choices, {"class": "switch", "role": "group", "aria-label": "labels"})
    body = picture("partition", "Classes of every client", switch)
    return section("partition", "What the clients hold", caption, body, data["notes"].get("partition"))
