"""Training curves: the average and the worst client over the rounds, with bands over draws."""

from __future__ import annotations

from typing import Any

from fairmean.report.collect import FEW_DRAWS
from fairmean.report.judged import Judged
from fairmean.report.markup import picture, section, tag


def html(data: dict[str, Any]) -> str | None:
    """Two panels that share their axes."""
    if not data["curves"]:
        return None
    low = "worst client" if data["served"] == "worst" else "worst-served tenth of the clients"
    judged = Judged.in_page(data)
    name = f"{judged.title[0].upper()}{judged.title[1:]}"
    held_out = ", on samples held out from training" if data["held_out"] else ""
    caption = f"{name} over the rounds of the average client (left) and of the {low} (right){held_out}"
    draws = len(data["seeds"])
    if draws >= FEW_DRAWS and data["intervals"]:
        caption += "; lines are means over draws, and bands their 95 % intervals."
    elif draws > 1:
        caption += "; lines are means over draws, and bands reach from the lowest draw to the highest."
    else:
        caption += "."
    if not judged.higher:
        caption += " Lower is better."
    caption += " Dotted lines are the client that you follow."
    chooser = tag("div", "", {"class": "chooser"}) if len(data["methods"]) > 1 else ""
    panels = picture("curves", f"Average {judged.title} over rounds", panel=0) + picture(
        "curves", f"{name} of the {low} over rounds", panel=1
    )
    return section("curves", "Over the rounds", caption, chooser + tag("div", panels, {"class": "pair"}))
