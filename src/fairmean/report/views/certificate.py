"""The certificate: which of the paper's inequalities a measured run kept, and by how much."""

from __future__ import annotations

from typing import Any

from fairmean.report.markup import section, tag, text


def html(data: dict[str, Any]) -> str | None:
    """One folding part for each run that was made with theory=true."""
    if not data["certificates"]:
        return None
    several = len(data["certificates"]) > 1
    parts = []
    for certificate in data["certificates"]:
        title = f"{certificate['method']}, {certificate['attack']}, draw {certificate['seed']}: {verdict(certificate)}"
        body = told(certificate, title)
        attributes = {"class": "fold"} if several else {"class": "fold", "open": "open"}
        parts.append(tag("details", tag("summary", text(title)) + body, attributes))
    caption = (
        "Each inequality of the theory was checked in every round: the left side must not be larger than the right. "
        "The round shown is the tightest one, or the first that broke it."
    )
    return section("certificate", "Certificate", caption, "".join(parts))


def verdict(certificate: dict[str, Any]) -> str:
    """Whether the run kept every inequality."""
    return "no inequality was broken" if certificate["holds"] else "an inequality was broken"


def told(certificate: dict[str, Any], title: str) -> str:
    """What the certificate means in words, and its inequalities as a table."""
    words = "".join(tag("li", text(line.lstrip("·✗✓ "))) for line in certificate["words"])
    return tag("ul", words, {"class": "words"}) + _checks(certificate["checks"], title)


def _checks(checks: list[dict[str, Any]], title: str) -> str:
    heads = ("", "inequality", "left", "right", "room", "rounds", "verdict")
    head = tag("tr", "".join(tag("th", text(h), {"scope": "col"}) if h else tag("td") for h in heads))
    rows = []
    for check in checks:
        kind = "holds" if check["holds"] else "broken" if check["decides"] else "not shown"
        mark = {"holds": "✓", "broken": "✗", "not shown": "·"}[kind]
        cells = tag("th", text(check["name"]), {"scope": "row"})
        cells += tag("td", text(check["statement"]), {"class": "statement"})
        cells += "".join(
            tag("td", text(check[key]), {"class": "number"}) for key in ("left", "right", "slack", "rounds")
        )
        where = "" if check["broken"] is None else f", first in round {check['broken']}"
        cells += tag("td", f"{mark} {text(kind + where)}", {"class": kind.replace(" ", "-")})
        rows.append(tag("tr", cells))
    table = tag("table", tag("thead", head) + tag("tbody", "".join(rows)), {"class": "checks"})
    return tag("div", table, {"class": "scroll", "tabindex": "0", "role": "group", "aria-label": title})
