"""Methods: what clients do to their gradients, what the server does with the messages, and their registries."""

from fairmean.rules import recess, servers
from fairmean.rules.aggregator import (
    AGGREGATORS,
    Aggregator,
    CoordinateRule,
    GramRule,
    LossRule,
    SumRule,
    register,
)
from fairmean.rules.mixing import MIXINGS, Mixing, register_mixing
from fairmean.rules.objectives import OBJECTIVES, Objective, register_objective
from fairmean.rules.round import Access, Round, Rung, State
from fairmean.rules.scales import SCALES, Scale, register_scale

__all__ = [
    "AGGREGATORS",
    "MIXINGS",
    "OBJECTIVES",
    "SCALES",
    "Access",
    "Aggregator",
    "CoordinateRule",
    "GramRule",
    "LossRule",
    "Mixing",
    "Objective",
    "Round",
    "Rung",
    "Scale",
    "State",
    "SumRule",
    "recess",
    "register",
    "register_mixing",
    "register_objective",
    "register_scale",
    "servers",
]
