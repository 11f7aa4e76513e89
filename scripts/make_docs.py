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

These letters are used throughout: n is the number of clients, and m_i the number of samples of client i; p is the
number of parameters of the model; d is the direction; V is the matrix with the messages as rows, and M the matrix of
their inner products; Σ and "mean" are over clients. The letter f has three uses. f_i is the loss of client i; f, where
a vector is meant, is the vector of all losses; and f in a count such as n − f is the number of poisoned clients that a
defence assumes. The attack never tells a method that number: you set it as `method.f`. The *least-norm hull point* is
the shortest of all vectors Σ λ_i v_i with λ_i ≥ 0 and Σ λ_i = 1.

Methods stand on a ladder of five rungs, ordered by how much the server must see of the clients. The less it sees, the
cheaper a round is and the more private the clients stay."""

SEES = {
    Rung.SUM: "only the sum of all messages (so secure aggregation fits)",
    Rung.LOSSES: "also every client's loss",
    Rung.GRAM: "also the inner products between messages",
    Rung.COORDINATES: "every message, number by number",
    Rung.EXTRA: "also data of its own, or losses of steps on trial",
}

ORDER = (
    *("mean", "fedavg", "qffl", "fairmean", "fairmean-normalised", "fairmean-split"),
    *("drfl", "term", "term-hierarchical"),
    *("krum", "multi-krum", "faba", "rfa", "h-nobs", "fedmgda+", "adafed", "fairmoo", "qffl-normalised"),
    *("median", "cwtm", "qffl+cwtm", "centered-clipping", "lfighter", "fedlf"),
    *("fedmdfg", "bant"),
)
"""On the page: plain methods first, and those that build on others after them."""

LITERATURE = """\
- Allouah, Farhadkhani, Guerraoui, Gupta, Pinot & Stephan: Fixing by Mixing: A Recipe for Optimal Byzantine ML under
  Heterogeneity. AISTATS 2023.
- Blanchard, El Mhamdi, Guerraoui & Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
  NeurIPS 2017.
- Hamidi & Yang: AdaFed: Fair Federated Learning via Adaptive Common Descent Direction. TMLR 2024.
- Hu, Shaloudegi, Zhang & Yu: Federated Learning Meets Multi-Objective Optimization. IEEE Transactions on Network
  Science and Engineering 2022.
- Jebreel, Domingo-Ferrer, Sánchez & Blanco-Justicia: LFighter: Defending against the Label-flipping Attack in
  Federated Learning. Neural Networks 2024.
- Karimireddy, He & Jaggi: Learning from History for Byzantine Robust Optimization. ICML 2021.
- Li, Sanjabi, Beirami & Smith: Fair Resource Allocation in Federated Learning. ICLR 2020.
- Li, Beirami, Sanjabi & Smith: On Tilted Losses in Machine Learning: Theory and Applications. JMLR 2023.
- McMahan, Moore, Ramage, Hampson & Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
  Decentralized Data. AISTATS 2017.
- Molodtsov, Medyakov, Skorik, Khachaturov, Tigranyan, Aletov, Avetisyan, Takáč & Beznosikov: Bant: Byzantine Antidote
  via Trial Function and Trust Scores. arXiv 2505.07614; cited as 2026.
- Pan, Wang, Li, Wang, Tang & Zhao: FedMDFG: Federated Learning with Multi-Gradient Descent and Fair Guidance. AAAI
  2023.
- Pan et al.: FedLF: Layer-Wise Fair Federated Learning. AAAI 2024.
- Peng, Li, Vlaski & Ling: Mean Aggregator is More Robust than Robust Aggregators under Label Poisoning Attacks on
  Distributed Heterogeneous Data. JMLR 2025.
- Pillutla, Kakade & Harchaoui: Robust Aggregation for Federated Learning. IEEE Transactions on Signal Processing 2022.
- Xia, Tao, Hao & Li: FABA: An Algorithm for Fast Aggregation against Byzantine Attacks in Distributed Neural
  Networks. IJCAI 2019.
- Yin, Chen, Ramchandran & Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML
  2018.
- Zhao & Joshi: A Dynamic Reweighting Strategy for Fair Federated Learning. ICASSP 2022.
- Zheng, Zhang & Liu: FairMean: Promoting Fairness in Distributed Learning under Label Poisoning Attacks. This is "the
  paper" of these pages.
- Zheng et al. 2026, who introduced FairMOO, is cited here as FairMean's paper cites it.
- Zhou, Xu, Wang & Tian: H-nobs: Achieving Certified Fairness and Robustness in Distributed Learning on Heterogeneous
  Datasets. NeurIPS 2023."""

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
    Rung.COORDINATES: "every client's gradient from one pass, then work on n×p numbers",
    Rung.EXTRA: "the same as on rung 2 or 3, and extra forward passes",
}


TRAVELS = """\
In every round the server sends the model, which is p numbers, to the clients that take part, and each of them sends
a message of p numbers. The table says what else is sent, and what stays where it is. Where something is more than
one number, its size stands in brackets. A *divisor* is a number that clients send so that the server can divide the
sum of the messages by the sum of the divisors: s_i in the normalised form, and the number of samples m_i where
clients count by their samples. From rung 1 on a rule may look at every client's loss, although not every rule does.
What servers remember is the centre z of `centered-clipping`, the trust T of `bant`, and for `fedmdfg` each client's
expected loss and in how many rounds it took part.

On rung 0 the server learns sums over clients, and nothing about a single client. A method can still do more there
than scale gradients. Its clients may add small vectors to their messages, for example the shares of their labels.
The server makes something of the sum of these vectors, and sends it to all clients along with the next model. No
method on this page does so, but [a scale of your own](add-a-method.md#a-scale) can.

`fairmean list methods NAME` shows the same for one method, which may also be a composed one or your own. (The command
writes d for the number of parameters p.)"""


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
    return " ".join((documented.__doc__ or "").replace("``", "`").split())


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
    sizes = [str(item.numbers).replace("d", "p") for item in items]  # on this page d is the direction
    return ", ".join(
        item.name if size == "1" else f"{item.name} ({size})" for item, size in zip(items, sizes, strict=True)
    )


def in_order() -> dict[str, Named]:
    """All methods, in the order of the page; one that it does not name comes last."""
    methods = named_methods()
    known = [name for name in ORDER if name in methods]
    return {name: methods[name] for name in dict.fromkeys([*known, *methods])}


def what_travels() -> list[str]:
    """One row for all methods of a rung that are alike."""
    alike: dict[tuple[Rung, str], list[str]] = {}
    for name in in_order():
        one = method(name)
        alike.setdefault((one.rung, row(travels(one))), []).append(f"`{name}`")
    header = "| rung | methods | a client sends | it measures for itself | the server sends | the server remembers |"
    found = sorted(alike.items(), key=lambda row: row[0][0])
    rows = [f"| {int(rung)} | {', '.join(names)} | {cells} |" for (rung, cells), names in found]
    return [header, "|---|---|---|---|---|---|", *rows]


def page() -> str:
    """The whole page."""
    methods = in_order()
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
        text.append(f"| {int(rung)} | {SEES[rung]} | {names} | {COST[rung]} |")
    text += ["", "## Combining parts", "", *COMPOSE.splitlines()]
    text += ["", "## What travels", "", *TRAVELS.splitlines(), "", *what_travels()]
    for rung in Rung:
        text += ["", f"## Rung {int(rung)}: {SEES[rung]}"]
        for name, named in methods.items():
            if named.rule.rung == rung:
                text += ["", section(name, named)]
    text += ["", "## Pre-aggregations", "", "These change the messages v_i into v'_i before the rule sees them.", ""]
    text += [f"- `{name}`{_spelt_out(name)}: {paragraph(mixing)}" for name, mixing in MIXINGS.items()]
    text += ["", "## Literature", "", *LITERATURE.splitlines()]
    return "\n".join(text) + "\n"


def stored() -> str:
    """The catalogue that 'fairmean list' reads where there are no parts of anybody else's."""
    return json.dumps(catalogue.everything(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    ROOT.joinpath("docs", "methods.md").write_text(page(), encoding="utf-8")
    ROOT.joinpath("src", "fairmean", "terminal", stored_catalogue.FILE).write_text(stored(), encoding="utf-8")
