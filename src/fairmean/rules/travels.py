"""What travels in a round of a method, and what stays where it is. Plain data, for the terminal and the docs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch

from fairmean.errors import UserCodeError
from fairmean.rules.context import LAST_SENT
from fairmean.rules.method import Method
from fairmean.rules.products import Products
from fairmean.rules.round import Round, Rung

CLASSES = 10
_N, _D = 13, 29  # clients and parameters of a made-up round: no other size is likely to be one of these


class Item(NamedTuple):
    """Some numbers by name. ``numbers`` says how many: a count, ``d`` (parameters of the model) or ``n`` (clients)."""

    name: str
    numbers: int | str
    about: str = ""


@dataclass(frozen=True)
class Travels:
    """One round of a method: what one client and the server send, and what each of them has for itself.

    Counts are for a task with 10 classes. ``needs`` says in sentences what the server must see of what clients send.
    """

    client_sends: list[Item]
    needs: list[str]
    server_sends: list[Item]
    client_measures: list[Item]
    client_remembers: list[Item]
    server_remembers: list[Item]


def travels(method: Method) -> Travels:
    """What travels in a round of this method. The client's side is asked about made-up samples to find out."""
    asked = _Asked(method)
    tries = "trial" in method.aggregator.requires
    measured = asked.items("measured", {"entropy": "the mean predictive entropy on its own inputs; no label is used"})
    if not method.scale.unit and method.aggregator.rung < Rung.LOSSES:
        measured = [Item("loss", 1, "f_i"), *measured]
    return Travels(
        client_sends=[
            *_message(method),
            *[item._replace(about="the server reads it") for item in measured if item.name in method.aggregator.reads],
            *asked.items("side", {}, "only the sum over clients is used"),
            *([Item("trial loss", 1, "at each model that the server tries")] if tries else []),
        ],
        needs=_needs(method),
        server_sends=[
            Item("model", "d"),
            *asked.items("broadcast", {}, "made of the last round's sums"),
            *([Item("trial model", "d", "for each step that the server tries")] if tries else []),
        ],
        client_measures=measured,
        client_remembers=asked.items("memory", {LAST_SENT: "the last round in which its message was accepted"}),
        server_remembers=_state(method),
    )


class _Asked:
    """The sizes of what clients measure, remember and add, and of what the server sends along."""

    def __init__(self, method: Method) -> None:
        self._known = _shapes(method, CLASSES)
        try:
            self._one_more = _shapes(method, CLASSES + 1)
        except UserCodeError:  # it is written for this number of classes alone, so sizes do not change with it
            self._one_more = self._known

    def items(self, kind: str, about: dict[str, str], otherwise: str = "") -> list[Item]:
        """Names and sizes, with what there is to say about them."""
        found = []
        for name, size in self._known[kind].items():
            more = self._one_more[kind].get(name, size)
            per = "one per class" if (size, more) == (CLASSES, CLASSES + 1) else f"with {CLASSES} classes"
            per = "" if more == size else per
            found.append(Item(name, size, "; ".join(filter(None, [per, about.get(name, otherwise)]))))
        return found


def _shapes(method: Method, classes: int) -> dict[str, dict[str, int]]:
    measured, report = method.rehearsal(classes)
    per_client = {"measured": measured, "side": report.side, "memory": report.memory}
    sizes = {
        kind: {name: math.prod(value.shape[1:]) for name, value in table.items()} for kind, table in per_client.items()
    }
    sizes["broadcast"] = {name: value.numel() for name, value in method.first_broadcast(classes).items()}
    return sizes


def _message(method: Method) -> list[Item]:
    """The message itself, and single numbers beside it."""
    scale, rule = method.scale, method.aggregator
    adds_up = method.rung == Rung.SUM
    count = ["m_i"] if rule.needs_sizes else []
    factors = [*(count if adds_up else []), *([] if scale.unit else ["s_i"])]
    words = {"m_i": "its sample count", "s_i": "its scale"}
    times = "".join(f", times {words[factor]}" for factor in factors)
    items = [Item("message", "d", f"{' '.join([*factors, 'g_i'])}: its gradient{times}")]
    if adds_up and (count or scale.normalised or method.may_be_out):
        divisor = " ".join([*count, *(["s_i"] if scale.normalised else [])])
        about = (
            f"{divisor}: the server divides by the sum of these" if divisor else "1: the server divides by their number"
        )
        items.append(Item("divisor", 1, about))
    if not adds_up and scale.normalised:
        items.append(Item("scale", 1, "s_i: the server divides by the mean of these"))
    if not adds_up and count:
        items.append(Item("count", 1, "m_i: its sample count"))
    if rule.rung >= Rung.LOSSES:
        may = "" if rule.rung == Rung.LOSSES else ": rules on this rung may look at it"
        items.append(Item("loss", 1, f"f_i{may}"))
    return items


def _needs(method: Method) -> list[str]:
    what = {
        Rung.SUM: "nothing but sums over clients of what they send, so secure aggregation fits",
        Rung.LOSSES: "the loss of every client, and then one weighted sum of the messages",
        Rung.GRAM: "the inner products of the messages, and then one weighted sum of them",
        Rung.COORDINATES: "the message of every client",
        Rung.EXTRA: "the message of every client",
    }[method.rung]
    requires = method.aggregator.requires
    if "trial" in requires:
        what += ", and the losses of all clients at models that it tries"
    if method.aggregator.reads:
        names = " and ".join(name.replace("_", " ") for name in method.aggregator.reads)
        what += f", and what every client measured ({names})"
    if "trust" in requires:
        what += ", and clean data of its own"
    sentences = [f"The server needs {what}."]
    if method.may_be_out:
        sentences.append("A client whose scale is 0 sends nothing in that round.")
    if method.adds_sums and method.scale.fewest > 1:
        few = f"fewer than {method.scale.fewest} clients"
        sentences.append(f"When {few} send something, what comes along with the model stays as it was.")
    return sentences


def _state(method: Method) -> list[Item]:
    """What the server's rule remembers; a rule that makes its state in a first round is asked for one."""
    state = method.init(_N)
    if method.aggregator.remembers and (not state or method.aggregator.reads):
        try:
            state = _first_round(method, state)
        except UserCodeError:  # made-up messages are not all that it needs
            return [Item("state", "?", "its first round decides how much")]
    known = {_N: Item("", "n", "one per client"), _D: Item("", "d"), _N * _D: Item("", "n·d", "d per client")}
    known[_N * CLASSES] = Item("", f"{CLASSES}·n", f"{CLASSES} per client")
    return [known.get(value.numel(), Item("", value.numel()))._replace(name=name) for name, value in state.items()]


def _first_round(method: Method, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    measured = method.rehearse(CLASSES) if method.aggregator.reads else {}
    ones = torch.ones(_N, dtype=torch.float64)
    products = Products(torch.eye(_N, _D), ones, unit=True)
    round = Round(
        lazy=products.lazy | {"messages": products.messages},
        sizes=ones,
        clients=torch.arange(_N),
        lr=1.0,
        losses=ones,
        means={name: ones.new_ones(_N, *shape) for name, shape in measured.items()},
        times=products.times,
    )
    return method.decide(round, state, None if method.aggregator.linear else _D)[1]
