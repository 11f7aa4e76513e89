"""What an audit says of every client: priority against held-out excess, and the clients that it names."""

from __future__ import annotations

from typing import Any

from fairmean.report.markup import picture, section, tag, text


def html(data: dict[str, Any]) -> str | None:
    """A dot for every client of a run that was audited."""
    audits = data["audits"]
    if not audits:
        return None
    across = (
        "the others’ models are less sure of it, so that a fair method gives it more weight"
        if all(audit["across"] == "entropy" for audit in audits)
        else "its loss is larger"
    )
    caption = (
        f"Each dot is a client: further right {across}; further up its labels as given are contradicted more by models "
        "that were trained without it. Alarms begin at the dashed line for clients with many samples, and higher for "
        "others."
    )
    body = picture("audit", "Priority against held-out excess, a dot for every client")
    for audit in audits:
        title = f"{audit['method']}, {'no attack' if audit['attack'] == 'none' else audit['attack']}: "
        lead = title if len(audits) > 1 else ""
        body += tag("p", text(lead + audit["headline"]), {"class": "audited"})
        if audit["told"]:
            body += tag("ul", "".join(tag("li", text(sentence)) for sentence in audit["told"]))
    return section("audit", "Whose labels are contradicted?", caption, body, list(dict.fromkeys(_notes(audits))))


def _notes(audits: list[dict[str, Any]]) -> list[str]:
    return [note for audit in audits for note in audit["notes"]]
