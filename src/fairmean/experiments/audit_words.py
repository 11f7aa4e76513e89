"""What an audit says, in plain words: a table, a sentence for every client, and rows for spreadsheets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairmean.experiments.audit_verdicts import CONTRADICTED, NOTHING, POWER, SERVED_BADLY, TOO_LITTLE
from fairmean.text import columns

MOST_ROWS = 40
_MOVES, _SAMPLES = 3, 3


def number(value: float | None) -> str:
    """An excess with two decimals; a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.2f}".replace("-", "−")


def share(value: float | None) -> str:
    """A share in percent."""
    return "–" if value is None else f"{100 * value:.0f} %"


def heads(record: Mapping[str, Any]) -> list[str]:
    """The columns of the table."""
    error = "error" if record["task"] == "regression" else "predicted otherwise"
    return ["client", "verdict", "excess ẽ", "95 % interval", "alarm above", "samples", error]


def row(client: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """One client's cells."""
    span = f"{number(client['low'])} … {number(client['high'])}" if client["low"] is not None else "–"
    error = number(client["error"]) if record["task"] == "regression" else share(client["error"])
    return [
        client["client"], client["verdict"], number(client["excess"]), span, number(client["limit"]),
        "–" if client["samples"] is None else f"{client['samples']:,}", error,
    ]  # fmt: skip


def table(record: Mapping[str, Any], most: int = MOST_ROWS) -> str:
    """The clients with the largest excess first; those with nothing unusual may be cut."""
    ordered = sorted(record["clients"], key=lambda client: -(client["excess"] or 0.0))
    unusual = [client for client in ordered if client["verdict"] != NOTHING]
    usual = [client for client in ordered if client["verdict"] == NOTHING]
    kept = usual[: max(0, most - len(unusual))]
    text = columns([row(client, record) for client in [*unusual, *kept]], heads(record))
    if len(kept) < len(usual):
        text += f"\n… and {len(usual) - len(kept)} more with nothing unusual"
    return text


def page(record: Mapping[str, Any]) -> str:
    """All that the terminal shows."""
    told = [client["words"] for client in record["clients"] if client["verdict"] != NOTHING]
    parts = [headline(record), table(record), *told, *record["notes"]]
    return "\n".join(parts)


def doubts(record: Mapping[str, Any]) -> list[str]:
    """What a contradiction may mean beside wrong labels."""
    if not any(client["verdict"] == CONTRADICTED for client in record["clients"]):
        return []
    return ["Wrong labels, other units of an input and another population look alike: see the samples that are named."]


def headline(record: Mapping[str, Any]) -> str:
    """The answer in one sentence."""
    clients = record["clients"]
    by = {verdict: [c["client"] for c in clients if c["verdict"] == verdict] for verdict in
          (CONTRADICTED, SERVED_BADLY, TOO_LITTLE, NOTHING)}  # fmt: skip
    said = []
    if by[CONTRADICTED]:
        said.append(
            f"The labels as given of {listed(by[CONTRADICTED])} are contradicted by what the other clients' data say"
        )
    else:
        said.append("No client's labels as given are contradicted by the others")
    if by[SERVED_BADLY]:
        said.append(f"{listed(by[SERVED_BADLY])} would be served badly by a model of the others")
    if by[TOO_LITTLE]:
        said.append(f"for {listed(by[TOO_LITTLE])} there is too little data to say")
    return "; ".join(said) + "."


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names in a sentence."""
    kept = [f"'{name}'" for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(kept)} and {len(names) - most} more clients"
    return kept[0] if len(kept) == 1 else f"{', '.join(kept[:-1])} and {kept[-1]}"


def sentence(client: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """One client in words."""
    name, verdict = client["client"], client["verdict"]
    if verdict == CONTRADICTED:
        return f"'{name}' is contradicted: {_contradicted(client, record)}"
    if verdict == SERVED_BADLY:
        hardly = "" if client["could_tell"] else ", where wrong ones would hardly show"
        return (
            f"'{name}' is served badly: nothing speaks against its labels as given{hardly}, but models of the others' "
            f"data predict {share(client['error'])} of its samples otherwise, and {share(record['usual_error'])} at "
            "the median client."
        )
    if verdict == TOO_LITTLE:
        if client["excess"] is None:
            return f"'{name}' has too little data to say: nothing was recorded of it while it was absent."
        missed = round(1 / (1 - POWER))
        return (
            f"'{name}' has too little data to say: if half of the labels of its {_samples(client['samples_used'])} "
            f"were wrong, that would be missed in more than one of {missed} cases. It has few samples, or the others "
            f"cannot tell such samples apart{_or_disagree(record)}."
        )
    return f"'{name}': nothing unusual."


def _or_disagree(record: Mapping[str, Any]) -> str:
    """Where there are two others at most, these may be at odds with each other."""
    return "" if len(record["clients"]) > 3 else ", or the two others contradict each other: audit more clients"


def _samples(count: int) -> str:
    return f"{count:,} sample{'' if count == 1 else 's'}"


def _contradicted(client: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    said = [f"its excess is {number(client['excess'])}, and an alarm begins at {number(client['limit'])}."]
    for move in client["moves"][:_MOVES]:
        said.append(
            f"Of its {_samples(move['given'])} labelled '{move['label']}', {move['count']:,} look like "
            f"'{move['seems']}' to the others."
        )
    if record["task"] == "regression" and client["bias"] is not None:
        way = "above" if client["bias"] > 0 else "below"
        said.append(f"Its targets lie {abs(client['bias']):.3g} {way} what the others predict, on average.")
    if client["most_contradicted"]:
        names = [sample["sample"] for sample in client["most_contradicted"][:_SAMPLES]]
        said.append(f"Look first at {', '.join(names)}.")
    return " ".join(said)


def rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for every client, for spreadsheets."""
    result = []
    for client in record["clients"]:
        plain = {key: value for key, value in client.items() if key not in ("moves", "most_contradicted")}
        plain["moves"] = "; ".join(f"{m['label']} -> {m['seems']} ({m['count']} of {m['given']})"
                                   for m in client["moves"])  # fmt: skip
        plain["most_contradicted"] = "; ".join(sample["sample"] for sample in client["most_contradicted"])
        result.append(plain)
    return result
