"""What a page has found, in sentences that are computed from its numbers and claim no more than they show."""

from __future__ import annotations

from typing import Any

from fairmean.report.judged import Judged
from fairmean.report.numbers import counted, probability

LEVEL = 0.05
FEW = 5
WORDS = {"worst": "the worst client", "worst_tenth": "the worst-served tenth of the clients"}
THEIRS = {"worst": "worst client", "worst_tenth": "worst-served tenth"}


def under(attack: str) -> str:
    """An attack in a sentence."""
    return "without an attack" if attack == "none" else f"under the attack {attack}"


def finding(data: dict[str, Any]) -> dict[str, Any]:
    """A headline of one sentence, and the sentences that belong to it."""
    cells = [cell for cell in data["cells"] if cell["estimates"][data["served"]]["mean"] is not None]
    if not cells:
        return {"headline": "No run has come to its end yet.", "details": _unfinished(data)}
    draws = len(data["seeds"])
    if len(data["methods"]) == 1:
        headline, details = _alone(data, cells)
    elif draws == 1:
        headline, details = _one_draw(data, cells)
    elif data["baseline"] is None or not data["intervals"]:
        headline, details = _untested(data, cells)
    else:
        headline, details = _tested(data, cells)
    sentences = [headline[0].upper() + headline[1:], *details, *_unfinished(data)]
    first, *rest = [sentence.replace(" %", "\u00a0%") for sentence in sentences]  # a number stays with its sign
    return {"headline": first, "details": rest}


def _alone(data: dict[str, Any], cells: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """One method: what it gives to the average and to the worst client."""
    served, judged = data["served"], Judged.in_page(data)
    # an attack shows what a method is worth, so one with an attack leads
    cell = next((c for c in cells if c["attack"] != "none"), cells[0])
    average, low = cell["estimates"]["average"]["mean"], cell["estimates"][served]["mean"]
    where = "" if len(data["attacks"]) == 1 and cell["attack"] == "none" else f"{under(cell['attack'])}, "
    who = f", {data['lowest']}," if data.get("lowest") and served == "worst" else ""
    if judged.is_share:
        first, second = f"{judged.whole(average)} {judged.title}", judged.whole(low)
    else:
        first, second = f"an {judged.title} of {judged.whole(average)}", f"one of {judged.whole(low)}"
    headline = (
        f"{where}{cell['method']} serves its average client with {first} and its {THEIRS[served]}{who} with {second}."
    )
    details = []
    if len(data["seeds"]) == 1:
        what = "labels" if judged.is_share else "targets"
        drawn = "model" if data["given"] else f"clients, {what} and model"
        details.append(f"This is one draw of {drawn}; another draw would give other figures.")
    else:
        half = cell["estimates"][served]["half"]
        if half is not None:
            details.append(
                f"Means over {counted(len(data['seeds']), 'draw')}; the 95 % interval of the {THEIRS[served]} is "
                f"{_between(low, half, judged)}."
            )
    return headline, details


def _ranked(data: dict[str, Any], cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells under the first attack, or without one if there is none, from the best served worst client down."""
    served, judged = data["served"], Judged.in_page(data)
    attack = next((a for a in data["attacks"] if a != "none" and any(c["attack"] == a for c in cells)), None)
    attack = attack or cells[0]["attack"]
    here = [c for c in cells if c["attack"] == attack]
    return sorted(here, key=lambda c: -judged.gain(c["estimates"][served]["mean"], served))


def _one_draw(data: dict[str, Any], cells: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Who was best in the only draw, and that one draw cannot tell."""
    served, judged = data["served"], Judged.in_page(data)
    here = _ranked(data, cells)
    best, attack = here[0], here[0]["attack"]
    if len({judged.number(c["estimates"][served]["mean"]) for c in here}) == 1:
        every = _with(best["estimates"][served]["mean"], judged)
        headline = f"in this one draw, all methods serve {WORDS[served]} alike {under(attack)}, with {every}."
        return headline, [f"One draw cannot tell much; the average client has {_averages(here, judged)}."]
    against = next(
        (c for c in here if c["method"] == data["baseline"] and c is not best), here[1] if here[1:] else None
    )
    headline = (
        f"in this one draw, {best['method']} serves {WORDS[served]} best {under(attack)}, with "
        f"{_with(best['estimates'][served]['mean'], judged)}"
    )
    if against is not None:
        headline += f" against {judged.whole(against['estimates'][served]['mean'])} for {against['method']}"
    details = [
        "One draw cannot tell a better method from a lucky one: run more draws, for example with --seeds 1-10, "
        "before you believe a difference."
    ]
    return headline + ".", details


def _with(value: float, judged: Judged) -> str:
    """What a client is served with."""
    return judged.whole(value) if judged.is_share else f"an {judged.title} of {judged.whole(value)}"


def _averages(cells: list[dict[str, Any]], judged: Judged) -> str:
    """The range of the average over methods, the worst first."""
    ranked = sorted(cells, key=lambda c: judged.gain(c["estimates"]["average"]["mean"], "average"))
    low, high = ranked[0], ranked[-1]
    return (
        f"from {_with(low['estimates']['average']['mean'], judged)} ({low['method']}) "
        f"to {judged.whole(high['estimates']['average']['mean'])} ({high['method']})"
    )


def _untested(data: dict[str, Any], cells: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Several draws and nothing to compare with: means alone."""
    served, judged = data["served"], Judged.in_page(data)
    here = _ranked(data, cells)
    best, attack = here[0]["estimates"][served], here[0]["attack"]
    mean, half = judged.estimate(best["mean"], best["half"], served)
    figure = mean + (f" ± {half}" if half else "") + (" %" if judged.is_share else "")
    headline = (
        f"over {counted(len(data['seeds']), 'draw')}, {here[0]['method']} serves {WORDS[served]} best "
        f"{under(attack)}, with {figure if judged.is_share else f'an {judged.title} of {figure}'}."
    )
    why = "SciPy is not installed" if not data["intervals"] else "the method 'mean' is not among the runs"
    return headline, [f"Differences were not tested, because {why}."]


def _tested(data: dict[str, Any], cells: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Paired differences to the baseline, corrected for their number."""
    served, baseline, judged = data["served"], data["baseline"], Judged.in_page(data)
    compared = [c for c in cells if c["estimates"][served]["difference"] is not None]
    if not compared:
        return _untested(data, cells)

    def gain(cell: dict[str, Any], metric: str = served) -> float:
        return judged.gain(_mean(cell, metric), metric)

    sure = [c for c in compared if _p(c, served) < LEVEL]
    gains = sorted((c for c in sure if gain(c) > 0), key=lambda c: (c["attack"] == "none", -gain(c)))
    losses = sorted((c for c in sure if gain(c) < 0), key=gain)
    draws, family = len(data["seeds"]), counted(len(compared), "comparison")
    details = []
    if gains:
        best = gains[0]
        amount = _by(gain(best), judged, f"than {baseline}")
        headline = f"{under(best['attack'])}, {best['method']} serves {WORDS[served]} {amount}."
        details.append(f"{_evidence(best, served, draws, judged)} after Holm's correction for {family}.")
        average = best["estimates"]["average"]["difference"]
        if average and average["half"] is not None:
            details.append(f"{_of_average(best, judged)} changes by {_range(average, judged)}.")
        if gains[1:]:
            details.append(f"Also better than {baseline}: {_list(gains[1:], served, judged)}.")
    elif losses:
        headline = (
            f"no method is shown to serve {WORDS[served]} better than {baseline}, and {losses[0]['method']} serves it "
            f"{_by(gain(losses[0]), judged, under(losses[0]['attack']))}."
        )
        details.append(f"{_evidence(losses[0], served, draws, judged)} after Holm's correction for {family}.")
        losses = losses[1:]
    else:
        widest = max(compared, key=lambda c: abs(_mean(c, served)))
        headline = f"these {counted(draws, 'draw')} cannot tell any method's {THEIRS[served]} from that of {baseline}."
        amount, chance = _range(widest["estimates"][served]["difference"], judged), probability(_p(widest, served))
        details.append(
            f"The largest difference is {widest['method']} {under(widest['attack'])}: {amount}; {chance} after "
            f"Holm's correction for {family}."
        )
    if not gains:
        better = [c for c in compared if _p(c, "average") < LEVEL and gain(c, "average") > 0]
        if better:
            most = max(better, key=lambda c: gain(c, "average"))
            amount = _range(most["estimates"]["average"]["difference"], judged)
            details.append(f"The average client does gain with {most['method']} {under(most['attack'])}: {amount}.")
    if losses:
        details.append(f"Worse than {baseline}: {_list(losses, served, judged)}.")
    if len(sure) < len(compared) and sure:
        others = counted(len(compared) - len(sure), "difference")
        details.append(f"The other {others} to {baseline} could be chance after that correction.")
    if draws < FEW:
        details.append(f"With only {counted(draws, 'draw')} all intervals are wide; more draws would narrow them.")
    return headline, details


def _by(gain: float, judged: Judged, after: str) -> str:
    """By how much a client is served better or worse; ``after`` says than by whom, or when."""
    word, amount = "better" if gain > 0 else "worse", judged.number(abs(gain))
    if judged.is_share:
        return f"{amount} points {word} {after}"
    more = (gain > 0) == judged.higher
    return f"{word} {after}, with an {judged.title} that is {amount} {'higher' if more else 'lower'}"


def _of_average(cell: dict[str, Any], judged: Judged) -> str:
    return "Its average client" if judged.is_share else f"The {judged.title} of its average client"


def _p(cell: dict[str, Any], metric: str) -> float:
    difference = cell["estimates"][metric]["difference"]
    return 1.0 if difference is None or difference["p"] is None else float(difference["p"])


def _mean(cell: dict[str, Any], metric: str) -> float:
    return float(cell["estimates"][metric]["difference"]["mean"])


def _evidence(cell: dict[str, Any], metric: str, draws: int, judged: Judged) -> str:
    difference = cell["estimates"][metric]["difference"]
    of = f"{difference['n']} of {draws}" if difference["n"] < draws else str(draws)
    span, chance = _span(difference, judged), probability(_p(cell, metric))
    if judged.is_share:
        return f"The 95 % interval over {of} paired draws is {span} points; {chance}"
    return f"The 95 % interval of the difference over {of} paired draws is {span}; {chance}"


def _span(difference: dict[str, Any], judged: Judged) -> str:
    mean, half = difference["mean"], difference["half"]
    return f"{judged.signed(mean - half)} to {judged.signed(mean + half)}"


def _range(difference: dict[str, Any], judged: Judged) -> str:
    text = judged.signed(difference["mean"])
    text = text if difference["half"] is None else f"{text} ({_span(difference, judged)})"
    return f"{text} points" if judged.is_share else text


def _between(mean: float, half: float, judged: Judged) -> str:
    low, high = judged.number(max(mean - half, 0.0)), judged.whole(min(mean + half, judged.most))
    return f"{low} to {high}"


def _list(cells: list[dict[str, Any]], metric: str, judged: Judged, most: int = 4) -> str:
    texts = [f"{c['method']} {under(c['attack'])} ({judged.signed(_mean(c, metric))})" for c in cells[:most]]
    more = len(cells) - most
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")


def _unfinished(data: dict[str, Any]) -> list[str]:
    """Runs that are not in the figures."""
    counts: dict[str, int] = {}
    for run in data["lost"]:
        counts[run["status"]] = counts.get(run["status"], 0) + 1
    words = {"diverged": "diverged", "failed": "failed", "running": "still running", "interrupted": "interrupted"}
    total = sum(cell["runs"] for cell in data["cells"])
    return [
        f"Not in these figures: {count} of {counted(total, 'run')}, {words.get(status, status)}."
        for status, count in counts.items()
    ]
