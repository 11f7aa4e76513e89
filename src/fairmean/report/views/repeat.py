"""How to make the page's runs again: the command, the settings, the versions; and what did not finish."""

from __future__ import annotations

from typing import Any

from fairmean.report.markup import section, tag, text


def html(data: dict[str, Any]) -> str | None:
    """The foot of the page."""
    again = data["again"]
    if not again["command"]:
        return None
    command = tag("code", text(again["command"]))
    copy = tag("button", "Copy", {"type": "button", "class": "copy"})
    body = tag("div", tag("pre", command, {"tabindex": "0"}) + copy, {"class": "command"})
    made = "".join(tag("dt", text(key)) + tag("dd", text(value)) for key, value in again["made"])
    body += tag("dl", made, {"class": "made"})
    settings = "\n".join(f"{key} = {value}" for key, value in again["settings"].items())
    body += _fold("All settings that the runs share", tag("pre", tag("code", text(settings)), {"tabindex": "0"}))
    if data["lost"]:
        lines = "\n".join(_lost(run) for run in data["lost"])
        body += _fold(
            f"Runs that did not finish ({len(data['lost'])})", tag("pre", tag("code", text(lines)), {"tabindex": "0"})
        )
    caption = (
        "This command makes the same runs; the same settings and versions on the same machine give the same figures."
    )
    return section("repeat", "Do it again", caption, body)


def _fold(title: str, body: str) -> str:
    return tag("details", tag("summary", text(title)) + body, {"class": "fold"})


def _lost(run: dict[str, Any]) -> str:
    where = "" if run["round"] is None else f" in round {run['round']}"
    why = f": {run['reason']}" if run["reason"] else ""
    return f"{run['method']}, {run['attack']}, seed {run['seed']}: {run['status']}{where}{why}"
