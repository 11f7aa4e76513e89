"""What there is, as plain rows: for 'fairmean list' and the docs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairmean.data.partitions import PARTITIONS
from fairmean.data.poisoning import ATTACKS
from fairmean.errors import unknown
from fairmean.experiments.config import gather, parse
from fairmean.experiments.study import spec
from fairmean.models import MODELS
from fairmean.rules.aggregator import AGGREGATORS
from fairmean.rules.hyper import hyper_parameters
from fairmean.rules.mixing import MIXINGS
from fairmean.rules.named import PAIRS, USUAL, named_methods, telling
from fairmean.rules.objectives import OBJECTIVES
from fairmean.rules.optimisers import OPTIMISERS
from fairmean.rules.scales import SCALES
from fairmean.rules.travels import CLASSES, Item, travels
from fairmean.terminal.stored_catalogue import datasets

Rows = list[dict[str, Any]]


def _first_line(thing: Any) -> str:
    return next(iter((thing.__doc__ or "").strip().splitlines()), "")


def _paragraph(thing: Any) -> str:
    return " ".join((thing.__doc__ or "").replace("``", "").split())


def methods() -> Rows:
    """Every named method, by rung."""
    rows = []
    for name, named in named_methods().items():
        rule = named.rule
        rows.append(
            {
                "name": name,
                "rung": int(rule.rung),
                "server sees": rule.rung.sees,
                "assumes": rule.assumes,
                "hyper-parameters": named.hyper,
                "rule": named.equation,
                "reference": named.reference,
            }
        )
    return sorted(rows, key=lambda row: row["rung"])


def attacks() -> Rows:
    """Every attack."""
    return [{"name": name, "labels of a poisoned client": attack.summary} for name, attack in ATTACKS.items()]


def models() -> Rows:
    """Every model."""
    own = {"name": "module:factory", "what": "your own: factory(input_shape, outputs) -> nn.Module"}
    return [*({"name": name, "what": _first_line(model)} for name, model in MODELS.items()), own]


def partitions() -> Rows:
    """Every partition."""
    given = {"name": "given", "what": "the client ids that come with your data"}
    return [*({"name": name, "what": _first_line(rule)} for name, rule in PARTITIONS.items()), given]


def scales() -> Rows:
    """Every scale: what a client does to its own gradient."""
    return [
        {"name": name, "hyper-parameters": hyper_parameters(scale), "rule": _first_line(scale)}
        for name, scale in SCALES.items()
    ]


def objectives() -> Rows:
    """Every objective: what a sample costs a client."""
    return [
        {"name": name, "hyper-parameters": hyper_parameters(objective), "rule": _first_line(objective)}
        for name, objective in OBJECTIVES.items()
    ]


def optimisers() -> Rows:
    """Every server optimiser: what the server makes of a rule's direction (server.name)."""
    return [
        {"name": name, "hyper-parameters": hyper_parameters(optimiser), "rule": _first_line(optimiser)}
        for name, optimiser in OPTIMISERS.items()
    ]


def aggregators() -> Rows:
    """Every aggregator: what the server does with the messages."""
    return [
        {
            "name": name,
            "rung": int(entry.rule.rung),
            "assumes": entry.rule.assumes,
            "hyper-parameters": hyper_parameters(entry.rule),
            "rule": _first_line(entry.rule),
            "reference": entry.reference,
        }
        for name, entry in AGGREGATORS.items()
    ]


def mixings() -> Rows:
    """Every pre-aggregation."""
    return [
        {"name": name, "hyper-parameters": hyper_parameters(rule), "rule": _first_line(rule)}
        for name, rule in MIXINGS.items()
    ]


CATALOGUE: dict[str, Callable[[], Rows]] = {
    "methods": methods,
    "attacks": attacks,
    "datasets": datasets,
    "models": models,
    "partitions": partitions,
    "objectives": objectives,
    "scales": scales,
    "aggregators": aggregators,
    "pre": mixings,
    "optimisers": optimisers,
}


def one(what: str, name: str) -> dict[str, Any]:
    """One row of a catalogue; of a method, more than its row."""
    if what == "methods":
        return one_method(name)
    rows = {row["name"]: row for row in CATALOGUE[what]()}
    if name not in rows:
        raise unknown(what.removesuffix("s"), name, rows)
    return rows[name]


def one_method(text: str) -> dict[str, Any]:
    """All there is to say about a method, which is written as for ``compare``: ``fairmean+nnm+cwtm:kappa=4:f=1``."""
    config = parse(gather(None, spec(text, "method"))).method
    method, named = config.build(), named_methods().get(config.name)
    scale, pre, aggregator = config.parts
    objective = config.objective or (named.objective if named else USUAL)
    traffic = travels(method)
    return {
        "name": method.name,
        "rule": [_paragraph(part) for part in telling(objective, scale, pre, aggregator)],
        "when": named.when if named else "",
        "hyper-parameters": method.hyper,
        "parts": {"objective": objective, "scale": scale, "pre": pre, "aggregator": aggregator},
        "reference": named.reference if named else _references(scale, aggregator),
        "rung": int(method.rung),
        "server sees": method.rung.sees,
        "assumes": method.assumes,
        "travels": {
            "classes": CLASSES,
            "a client sends": _items(traffic.client_sends),
            "needs": traffic.needs,
            "the server sends": _items(traffic.server_sends),
            "a client measures for itself": _items(traffic.client_measures),
            "a client remembers": _items(traffic.client_remembers),
            "the server remembers": _items(traffic.server_remembers),
        },
    }


def everything() -> dict[str, Any]:
    """All that is stored in a file: every catalogue but that of data sets, and all about every method."""
    rows = {what: list_rows() for what, list_rows in CATALOGUE.items() if what != "datasets"}
    return {**rows, "method": {name: one_method(name) for name in named_methods()}}


def _references(scale: str, aggregator: str) -> str:
    """Of a composed method: where its scale and its aggregator come from, as far as the registries know."""
    found = [pair.reference for pair in PAIRS.values() if (pair.scale, pair.aggregator) == (scale, "mean")]
    if aggregator != "mean" or scale == "none":
        found.append(AGGREGATORS[aggregator].reference)
    return "; ".join(found)


def _items(items: list[Item]) -> Rows:
    return [item._asdict() for item in items]
