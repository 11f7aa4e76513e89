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
This page has the equation of every method, with when to use it, what it assumes, and where it comes from. For advice
on which one to choose, see [which method](which-method.md). The words are explained in [terms](terms.md).

Each round goes like this. Client i computes its loss f_i and its gradient g_i, multiplies the gradient by a number
s_i, its *scale*, and sends the *message* v_i = s_i g_i. The server turns the n messages into a direction d, often a
weighted sum Σ λ_i v_i, and moves the model: w ← w − lr · d. A method is a scale together with an *aggregator*, the
server's rule. Where a section gives only s_i, the server takes the mean of the messages. Where it gives only the
weights λ_i or the direction d, every s_i is 1.

These letters are used throughout: n clients, of which client i has m_i samples; d parameters (d is also the
direction, where an equation says so); V, the matrix with the messages as rows; M, the matrix of their inner
products; and f without an index, the number of poisoned clients that a defence assumes. The attack never tells a
method that number: you set `method.f`. The *least-norm hull point* is the shortest of all vectors Σ λ_i v_i with λ_i
≥ 0 and Σ λ_i = 1.

Methods stand on a ladder with five rungs, ordered by what the server must see. The less it sees, the cheaper a round
is and the more private the clients stay."""

COMPOSE = """\
Any scale can be combined with any aggregator, and messages can be changed by a pre-aggregation before they are
combined. These three say the same:

- on the command line: `fairmean compare --methods fairmean+nnm+cwtm:f=2`;
- in a config: `method.scale = "fairmean"`, `method.pre = "nnm"`, `method.aggregator = "cwtm"`, `method.f = 2`;
- in Python: `fairmean.compose("fairmean", "cwtm", pre="nnm", f=2)`.

A method with a pre-aggregation stands at least on rung 2. [Add a method](add-a-method.md) says how to write parts of
your own."""

COST = {
    Rung.SUM: "one forward and one backward pass over all samples, and no client's gradient by itself",
    Rung.LOSSES: "the same single pass",
    Rung.GRAM: "every client's gradient from one pass, then algebra with n×n numbers",
    Rung.COORDINATES: "every client's gradient from one pass, then work on n×d numbers",
    Rung.EXTRA: "the same as on rung 2 or 3, and extra forward passes",
}


TRAVELS = """\
In every round the server sends the model, which is d numbers, to the clients that take part, and each of them sends
a message of d numbers. The table says what else is sent, and what stays where it is. Where something is more than
one number, its size stands in brackets. A *divisor* is a number that clients send so that the server can divide the
sum of the messages by the sum of the divisors: s_i in the normalised form, and the number of samples m_i where
clients count by their samples. From rung 1 on a rule may look at every client's loss, although not every rule does.
What servers remember is the centre z of `centered-clipping`, the trust T of `bant`, and for `fedmdfg` each client's
expected loss and in how many rounds it took part.

On rung 0 the server learns sums over clients, and nothing about a single client. A method can still do more there
than scale gradients. Its clients may add small vectors to their messages, for example the shares of their labels.
The server makes something of the sum of these vectors, and sends it to all clients along with the next model. No
method on this page does so, but [a scale of your own](add-a-method.md#a-scale) can.

`fairmean list methods NAME` shows the same for one method, which may also be a composed one or your own."""


ASSUMES = {
    "knows f": "you tell it how many clients are poisoned, as `method.f`",
    "owns clean data": "the server has some clean data of its own",
}


SHORT_FOR = {
    "qffl": "q-fair federated learning, written q-FFL",
    "fedavg": "federated averaging",
    "term": "tilted empirical risk minimisation",
    "cwtm": "the coordinate-wise trimmed mean",
    "nnm": "nearest-neighbour mixing",
}


def paragraph(documented: object) -> str:
    """A docstring as one paragraph."""
    return " ".join((documented.__doc__ or "").split())


def section(name: str, named: Named) -> str:
    """One method."""
    rule = named.rule
    parts = telling(named.objective, named.scale, [], named.aggregator)
    hyper = ", ".join(f"`{key} = {value}`" for key, value in named.hyper.items())
    lines = [
        f"### `{name}`",
        "",
        *([f"Short for {SHORT_FOR[name]}.", ""] if name in SHORT_FOR else []),
        *(f"{paragraph(part)}\n" for part in parts),
        f"*Use it:* {named.when}  ",
    ]
    lines += [f"*Hyper-parameters:* {hyper}.  "] if hyper else []
    lines += [f"*Assumes:* {ASSUMES[rule.assumes]}.  "] if rule.assumes else []
    return "\n".join([*lines, f"*Reference:* {named.reference}."])


def _spelt_out(name: str) -> str:
    return f" ({SHORT_FOR[name]})" if name in SHORT_FOR else ""


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
    text += ["", "## Combining parts", "", *COMPOSE.splitlines()]
    text += ["", "## What travels", "", *TRAVELS.splitlines(), "", *what_travels()]
    for rung in Rung:
        text += ["", f"## Rung {int(rung)}: {rung.sees}"]
        for name, named in methods.items():
            if named.rule.rung == rung:
                text += ["", section(name, named)]
    text += ["", "## Pre-aggregations", "", "These change the messages v_i into v'_i before the rule sees them.", ""]
    text += [f"- `{name}`{_spelt_out(name)}: {paragraph(mixing)}" for name, mixing in MIXINGS.items()]
    return "\n".join(text) + "\n"


def stored() -> str:
    """The catalogue that 'fairmean list' reads where there are no parts of anybody else's."""
    return json.dumps(catalogue.everything(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    ROOT.joinpath("docs", "methods.md").write_text(page(), encoding="utf-8")
    ROOT.joinpath("src", "fairmean", "terminal", stored_catalogue.FILE).write_text(stored(), encoding="utf-8")
