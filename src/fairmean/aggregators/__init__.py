"""The rules of the server, one file per family. Importing this package registers them all."""

from fairmean.aggregators import means, qffl
from fairmean.aggregators.base import (
    AGGREGATORS,
    REFERENCES,
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

__all__ = [
    "AGGREGATORS",
    "REFERENCES",
    "Aggregator",
    "CoordinateRule",
    "GramRule",
    "LossRule",
    "Round",
    "Rung",
    "State",
    "SumRule",
    "means",
    "qffl",
    "register",
]
