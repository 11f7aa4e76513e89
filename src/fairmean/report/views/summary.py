"""The finding: one sentence, what backs it, and every method's difference to the baseline at a glance."""

from __future__ import annotations

from typing import Any

from fairmean.report.finding import LEVEL, THEIRS
from fairmean.report.markup import tag, text
from fairmean.report.numbers import signed

MOST_ROWS = 24


def html(data: dict[str, Any]) -> str:
    """The head of the page."""
    facts = "".join(tag("li", text(fact)) for fact in data["facts"] if fact)
    details = "".join(tag("p", text(sentence)) for sentence in data["finding"]["details"])
    details += tag("p", text(_terms(data)), {"class": "terms"})
    head = (
        tag("p", f"fairmean report<span>{text(data['title'])}</span>", {"class": "kicker"})
        + tag("h1", text(data["finding"]["headline"]))
        + tag("ul", facts, {"class": "facts"})
    )
    forest = _forest(data)
    body = tag("div", tag("div", details, {"class": "details"}) + forest, {"class": "lead" if forest else "lead alone"})
    return tag("header", head + body, {"id": "summary"})


def _terms(data: dict[str, Any]) -> str:
    """The words of the page for a reader who meets them for the first time."""
    words = ["One model is trained for all clients together, each with data of its own."]
    if data["served"] == "worst":
        words.append("The worst client is the one that the model serves with the lowest test accuracy.")
    else:
        words.append("The worst-served tenth are the clients with the lowest test accuracy.")
    if data["baseline"]:
        words.append(f"The method {data['baseline']} gives every client the same weight.")
    if data["labels"] == "clean":
        words.append("Poisoned clients train on wrong labels; they are not counted among the clients to be served.")
    return " ".join(words)


def _forest(data: dict[str, Any]) -> str:
    """A row for every method and attack: the difference to the baseline, and its interval, around zero."""
    served, baseline = data["served"], data["baseline"]
    rows = [
        (cell, cell["estimates"][served]["difference"])
        for cell in data["cells"]
        if cell["estimates"][served]["difference"] is not None
    ]
    if not rows:
        return ""
    whole, here = len(rows), rows
    main = next((attack for attack in data["attacks"] if attack != "none"), data["attacks"][0])
    if whole > MOST_ROWS:
        here = sorted((row for row in rows if row[0]["attack"] == main), key=lambda row: -row[1]["mean"])
        rows = here if len(here) <= MOST_ROWS // 2 else [*here[: MOST_ROWS // 4], *here[-(MOST_ROWS // 4) :]]
    ends = [abs(d["mean"]) + (d["half"] or 0.0) for _, d in rows]
    typical = sorted(ends)[(len(ends) * 3) // 4]
    reach = max(min(max(ends), max(2.5 * typical, max(abs(d["mean"]) for _, d in rows) * 1.15)), 1.0)
    parts = []
    for attack in data["attacks"]:
        group = [(cell, d) for cell, d in rows if cell["attack"] == attack]
        if not group:
            continue
        if len(data["attacks"]) > 1:
            name = "no attack" if attack == "none" else attack
            parts.append(tag("div", text(name), {"class": "forest-group"}))
        parts += [_row(cell["method"], d, reach) for cell, d in group]
    title = f"Points by which the {THEIRS[served]} fares better or worse than with {baseline}"
    axis = "".join(
        [
            tag("span", "", {"class": "name"}),
            tag("span", "<span>worse</span><span>better</span>", {"class": "ends"}),
            tag("span", "", {"class": "value"}),
        ]
    )
    several = len(data["seeds"]) > 1
    how = (
        "Lines are 95 % intervals over draws; filled dots remain at 5 % after Holm’s correction."
        if several
        else "One draw, no interval."
    )
    if len(rows) < whole:
        shown = "The highest and the lowest" if len(here) > len(rows) else "Those"
        how += f" {shown} under {main} are shown, {len(rows)} of {whole} differences."
    lines = "".join(parts) + tag("div", axis, {"class": "forest-row forest-axis", "aria-hidden": "true"})
    return tag(
        "figure",
        tag("figcaption", f"<strong>{text(title)}.</strong> {text(how)}") + tag("div", lines, {"class": "forest"}),
        {"class": "forest-figure"},
    )


def _row(method: str, d: dict[str, Any], reach: float) -> str:
    """One line of the picture, in percent of its width, so that it fits any screen."""
    mean, half = d["mean"], d["half"] or 0.0
    sure = d["p"] is not None and d["p"] < LEVEL
    kind = ("gain" if mean > 0 else "loss") if sure else "open"
    low, high = (_place(mean - half, reach), _place(mean + half, reach))
    track = tag("i", "", {"class": "zero"})
    if half:
        track += tag("i", "", {"class": "bar", "style": f"left:{low:.2f}%;width:{high - low:.2f}%"})
    track += tag("i", "", {"class": "dot", "style": f"left:{_place(mean, reach):.2f}%"})
    cells = tag("span", text(method), {"class": "name"}) + tag("span", track, {"class": "track", "aria-hidden": "true"})
    spread = f" <small>± {half:.1f}</small>" if half else ""
    cells += tag("span", f"{signed(mean)}{spread}", {"class": "value"})
    return tag("div", cells, {"class": f"forest-row {kind}"})


def _place(value: float, reach: float) -> float:
    return 50 + 50 * max(-1.0, min(1.0, value / reach))
