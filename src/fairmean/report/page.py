"""From the dict to one HTML file: it needs no network and no other file, and only its pictures need scripts."""

from __future__ import annotations

import importlib
import json
from importlib import resources
from string import Template
from typing import Any

from fairmean.report.markup import tag, text
from fairmean.report.views import VIEWS

MOST_NAMES = 2000
"""So many clients are offered by name while somebody types."""
_SCRIPTS = ("data", "plot", "page")
_FOR_PYTHON = (
    "again", "audits", "certificates", "facts", "finding", "further", "map", "assumes", "lost", "notes", "version",
)  # fmt: skip
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="fairmean $version">
<meta http-equiv="Content-Security-Policy" content="$policy">
<title>$title</title>
<style>
$style
</style>
</head>
<body>
<main>
$body
<footer>
<p>Made by fairmean $version. This file is complete in itself: it loads nothing, and nothing leaves it.</p>
</footer>
<div class="tip" hidden aria-hidden="true"></div>
</main>
<script type="application/json" id="data">$data</script>
<script>
$script
</script>
</body>
</html>
""")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'unsafe-inline'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    )
)
"""What the page may do: use what is in it, and fetch nothing from anywhere."""


def html(data: dict[str, Any]) -> str:
    """The page of a report's data."""
    views = [(name, importlib.import_module(f"fairmean.report.views.{name}").html(data)) for name in VIEWS]
    shown = [(name, part) for name, part in views if part is not None]
    names = [name for name, _ in shown]
    body = "\n".join(part + (_toolbar(data) if name == "summary" else "") for name, part in shown)
    return _PAGE.substitute(
        version=text(data["version"]),
        policy=POLICY,
        title=text(f"{data['title']}: {data['finding']['headline']}"),
        style=_asset("report.css"),
        body=body,
        data=_json({key: value for key, value in data.items() if key not in _FOR_PYTHON}),
        script=_script(names),
    )


def _json(data: dict[str, Any]) -> str:
    """JSON inside HTML: no '<' that could end the element, and no NaN, which no browser reads."""
    written = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _script(views: list[str]) -> str:
    """The page's scripts, with those of the views that it has."""
    drawn = [f"views/{name}.js" for name in views if _there(f"views/{name}.js")]
    first, *rest = [f"script/{name}.js" for name in _SCRIPTS]
    files = [first, rest[0], *drawn, *rest[1:]]
    return '(() => {\n"use strict";\n' + "\n".join(_asset(file) for file in files) + "\n})();"


def _asset(name: str) -> str:
    return resources.files("fairmean.report").joinpath(name).read_text(encoding="utf-8").strip()


def _there(name: str) -> bool:
    return resources.files("fairmean.report").joinpath(name).is_file()


def _toolbar(data: dict[str, Any]) -> str:
    """What the pictures show: attack, draw, and the client that is followed. Only scripts can use it."""
    parts = []
    if len(data["attacks"]) > 1:
        names = ["no attack" if attack == "none" else attack for attack in data["attacks"]]
        start = next((i for i, attack in enumerate(data["attacks"]) if attack != "none"), 0)
        options = "".join(
            tag("option", text(name), {"value": i, "selected": "selected" if i == start else None})
            for i, name in enumerate(names)
        )
        parts.append(_field("attack", "Attack", tag("select", options, {"id": "attack"})))
    if len(data["shown"]) > 1:
        options = "".join(tag("option", str(seed), {"value": seed}) for seed in data["shown"])
        parts.append(_field("draw", "Draw", tag("select", options, {"id": "draw"})))
    if data["clients"]:
        field = tag("button", "‹", {"type": "button", "id": "previous", "aria-label": "previous client"})
        names = data.get("names", [])[:MOST_NAMES]
        listed = " list='names' class='named'" if names else ""
        field += (
            "<input id='client' type='text' inputmode='text' autocomplete='off' spellcheck='false' placeholder='none' "
            f"aria-describedby='followed'{listed}>"
        )
        if names:
            field += tag("datalist", "".join(tag("option", "", {"value": name}) for name in names), {"id": "names"})
        field += tag("button", "›", {"type": "button", "id": "next", "aria-label": "next client"})
        field += tag(
            "button", "×", {"type": "button", "id": "nobody", "aria-label": "follow nobody", "hidden": "hidden"}
        )
        parts.append(_field("client", "Follow client", tag("span", field, {"class": "stepper"})))
    line = tag("p", "", {"id": "followed", "aria-live": "polite"})
    return tag("div", tag("div", "".join(parts), {"class": "fields"}) + line, {"class": "toolbar", "hidden": "hidden"})


def _field(name: str, label: str, control: str) -> str:
    return tag("div", tag("label", text(label), {"for": name}) + control, {"class": "field"})
