"""The finding: one sentence, what backs it, and every method's difference to the baseline at a glance."""

from __future__ import annotations

from typing import Any

from fairmean.report.finding import LEVEL, THEIRS
from fairmean.report.judged import Judged
from fairmean.report.markup import tag, text

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
    judged = Judged.in_page(data)
    poor = f"the {'lowest' if judged.higher else 'largest'} test {judged.title}"
    if data["served"] == "worst":
        words.append(f"The worst client is the one that the model serves with {poor}.")
    else:
        words.append(f"The worst-served tenth are the clients with {poor}.")
    if not judged.is_share:
        better = "more" if judged.higher else "less"
        words.append(f"{judged.title} is {judged.about}, in the target’s unit: {better} is better.")
    if data["baseline"]:
        words.append(f"The method {data['baseline']} gives every client the same weight.")
    if data["poisoning"]:
        wrong = "labels" if judged.is_share else "targets"
        words.append(f"Poisoned clients train on wrong {wrong}; they are not counted among the clients to be served.")
    return " ".join(words)


def _forest(data: dict[str, Any]) -> str:
    """A row for every method and attack: the difference to the baseline, and its interval, around zero."""
    served, baseline, judged = data["served"], data["baseline"], Judged.in_page(data)
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
        here = sorted((row for row in rows if row[0]["attack"] == main), key=lambda row: -_gain(row[1], judged))
        rows = here if len(here) <= MOST_ROWS // 2 else [*here[: MOST_ROWS // 4], *here[-(MOST_ROWS // 4) :]]
    ends = [abs(d["mean"]) + (d["half"] or 0.0) for _, d in rows]
    typical = sorted(ends)[(len(ends) * 3) // 4]
    least = 10.0 ** (1 - judged.digits)
    reach = max(min(max(ends), 2.5 * typical), 1.15 * max(abs(d["mean"]) for _, d in rows), least)  # every dot is whole
    parts = []
    for attack in data["attacks"]:
        group = [(cell, d) for cell, d in rows if cell["attack"] == attack]
        if not group:
            continue
        if len(data["attacks"]) > 1:
            name = "no attack" if attack == "none" else attack
            parts.append(tag("div", text(name), {"class": "forest-group"}))
        parts += [_row(cell["method"], d, reach, judged) for cell, d in group]
    title = f"Points by which the {THEIRS[served]} fares better or worse than with {baseline}"
    if not judged.is_share:
        title = f"{judged.title} of the {THEIRS[served]}, as a difference to {baseline}"
    better, worse = ("higher", "lower") if judged.higher else ("lower", "higher")
    ends_of_axis = ("worse", "better") if judged.is_share else (f"worse ({worse})", f"better ({better})")
    axis = "".join(
        [
            tag("span", "", {"class": "name"}),
            tag("span", "".join(tag("span", word) for word in ends_of_axis), {"class": "ends"}),
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


def _gain(d: dict[str, Any], judged: Judged) -> float:
    return judged.gain(d["mean"], "worst")


def _row(method: str, d: dict[str, Any], reach: float, judged: Judged) -> str:
    """One line of the picture, in percent of its width, so that it fits any screen; what is better is at the right."""
    mean, half = _gain(d, judged), d["half"] or 0.0
    sure = d["p"] is not None and d["p"] < LEVEL
    kind = ("gain" if mean > 0 else "loss") if sure else "open"
    low, high = (_place(mean - half, reach), _place(mean + half, reach))
    track = tag("i", "", {"class": "zero"})
    if half:
        track += tag("i", "", {"class": "bar", "style": f"left:{low:.2f}%;width:{high - low:.2f}%"})
    track += tag("i", "", {"class": "dot", "style": f"left:{_place(mean, reach):.2f}%"})
    cells = tag("span", text(method), {"class": "name"}) + tag("span", track, {"class": "track", "aria-hidden": "true"})
    shown, wide = judged.estimate(d["mean"], d["half"], "worst", sign=True)
    spread = f" <small>± {wide}</small>" if half else ""
    cells += tag("span", f"{shown}{spread}", {"class": "value"})
    return tag("div", cells, {"class": f"forest-row {kind}"})


def _place(value: float, reach: float) -> float:
    return 50 + 50 * max(-1.0, min(1.0, value / reach))
