"""Writes docs/methods.md and the stored catalogue from the registries:  python scripts/make_docs.py"""

from __future__ import annotations

import json
from pathlib import Path

from fairmean.rules.mixing import MIXINGS
from fairmean.rules.named import Named, method, named_methods, telling
from fairmean.rules.round import Rung
from fairmean.rules.travels import Item, Travels, travels
from fairmean.terminal import catalogue, stored_catalogue

ROOT = Path(__file__).parent.parent

INTRODUCTION = """\
A client sends v_i = s_i g_i, scaled by its own statistics; the server turns the n messages into a direction d, and
w ← w − lr·d. Methods stand on a ladder of what the server must see, which is the cost ladder and the privacy ladder
at once. Any scale composes with any aggregator: `method.scale = "fairmean"`, `method.aggregator = "cwtm"`, and
`method.pre = "nnm"` mixes the messages first; in code `fairmean.compose("fairmean", "cwtm", pre="nnm", f=2)`.
`f` is what a defence assumes; it is never read from the attack."""

COST = {
    Rung.SUM: "one forward and one backward over all samples; no per-client gradient",
    Rung.LOSSES: "the same single pass",
    Rung.GRAM: "per-client gradients from one pass, then n×n algebra",
    Rung.COORDINATES: "per-client gradients from one pass, then work on n×d numbers",
    Rung.EXTRA: "as above, and extra forward passes",
}


TRAVELS = """\
In every round the server sends the model, d numbers, and each client that takes part sends a message of d numbers. The
table says what else is sent, and what stays where it is; where something is more than one number, its size stands in
brackets. A *divisor* is a number by whose sum the server divides the sum of the messages: s_i in the normalised form,
the sample count m_i where clients count by their samples. From rung 1 on a rule may look at losses, although not every
rule does.

On the sum rung the server learns sums over clients, and nothing of a single client. A method can do more there than
scale gradients. Its clients may add small vectors to their messages, such as the shares of their labels. The server
makes something of the sum of these vectors and sends it to all clients along with the next model. No method on this
page does so, but [a scale of your own](add-a-method.md#a-scale) can.

`fairmean list methods NAME` shows the same for one method, which may also be a composed one or your own."""


def paragraph(documented: object) -> str:
    """A docstring as one paragraph."""
    return " ".join((documented.__doc__ or "").split())


def section(name: str, named: Named) -> str:
    """One method."""
    rule = named.rule
    parts = telling(named.objective, named.scale, [], named.aggregator)
    hyper = ", ".join(f"`{key} = {value}`" for key, value in named.hyper.items())
    lines = [f"### `{name}`", "", *(f"{paragraph(part)}\n" for part in parts), f"*Use it:* {named.when}  "]
    lines += [f"*Hyper-parameters:* {hyper}.  "] if hyper else []
    lines += [f"*Assumes:* {rule.assumes}.  "] if rule.assumes else []
    return "\n".join([*lines, f"*Reference:* {named.reference}."])


def row(moved: Travels) -> str:
    """What travels, in the cells of a table."""
    groups = (moved.client_sends, moved.client_measures, moved.server_sends, moved.server_remembers)
    return " | ".join(map(cell, groups))


def cell(items: list[Item]) -> str:
    """Names with their sizes; a single number needs none."""
    return ", ".join(item.name if item.numbers == 1 else f"{item.name} ({item.numbers})" for item in items)


def what_travels() -> list[str]:
    """One row for all methods of a rung that are alike."""
    alike: dict[tuple[Rung, str], list[str]] = {}
    for name in named_methods():
        one = method(name)
        alike.setdefault((one.rung, row(travels(one))), []).append(f"`{name}`")
    header = "| rung | methods | a client sends | it measures for itself | the server sends | the server remembers |"
    rows = [f"| {int(rung)} | {', '.join(names)} | {cells} |" for (rung, cells), names in sorted(alike.items())]
    return [header, "|---|---|---|---|---|---|", *rows]


def page() -> str:
    """The whole page."""
    methods = named_methods()
    text = [
        "# Methods",
        "",
        "<!-- made by scripts/make_docs.py from the registry: edit the docstrings, not this page -->",
        "",
        *INTRODUCTION.splitlines(),
        "",
        "| rung | the server sees | methods | a round costs |",
        "|---|---|---|---|",
    ]
    for rung in Rung:
        names = ", ".join(f"`{name}`" for name, named in methods.items() if named.rule.rung == rung)
        text.append(f"| {int(rung)} | {rung.sees} | {names} | {COST[rung]} |")
    text += ["", "## What travels", "", *TRAVELS.splitlines(), "", *what_travels()]
    for rung in Rung:
        text += ["", f"## Rung {int(rung)}: {rung.sees}"]
        for name, named in methods.items():
            if named.rule.rung == rung:
                text += ["", section(name, named)]
    text += ["", "## Before aggregating", ""]
    text += [f"- `{name}`: {paragraph(mixing)}" for name, mixing in MIXINGS.items()]
    return "\n".join(text) + "\n"


def stored() -> str:
    """The catalogue that 'fairmean list' reads where there are no parts of anybody else's."""
    return json.dumps(catalogue.everything(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    ROOT.joinpath("docs", "methods.md").write_text(page(), encoding="utf-8")
    ROOT.joinpath("src", "fairmean", "terminal", stored_catalogue.FILE).write_text(stored(), encoding="utf-8")
