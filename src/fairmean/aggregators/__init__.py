"""The rules of the server, one file per family. Importing this package registers them all."""

from fairmean.aggregators import clipping, clustering, means, medians, minnorm, qffl, screening, trust, weighting
from fairmean.aggregators.base import (
    AGGREGATORS,
    Aggregator,
    CoordinateRule,
    GramRule,
    LossRule,
    Round,
    Rung,
    State,
    SumRule,
    register,
)
from fairmean.aggregators.mixing import MIXINGS, Mixing, register_mixing

__all__ = [
    "AGGREGATORS",
    "MIXINGS",
    "Aggregator",
    "CoordinateRule",
    "GramRule",
    "LossRule",
    "Mixing",
    "Round",
    "Rung",
    "State",
    "SumRule",
    "clipping",
    "clustering",
    "means",
    "medians",
    "minnorm",
    "qffl",
    "register",
    "register_mixing",
    "screening",
    "trust",
    "weighting",
]
