"""What there is, as plain rows: for 'fairmean list' and the docs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairmean import data
from fairmean.data.partitions import PARTITIONS
from fairmean.data.poisoning import ATTACKS
from fairmean.models import MODELS
from fairmean.rules.aggregator import AGGREGATORS
from fairmean.rules.hyper import hyper_parameters
from fairmean.rules.mixing import MIXINGS
from fairmean.rules.named import named_methods
from fairmean.rules.objectives import OBJECTIVES
from fairmean.rules.optimisers import OPTIMISERS
from fairmean.rules.scales import SCALES

Rows = list[dict[str, Any]]


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


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


def datasets() -> Rows:
    """Every data set, and where it is."""
    return [row | {"shape": "×".join(map(str, row["shape"]))} for row in data.describe()]


def models() -> Rows:
    """Every model."""
    own = {"name": "module:factory", "what": "your own: factory(input_shape, classes) -> nn.Module"}
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
