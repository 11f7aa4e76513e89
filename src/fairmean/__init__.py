"""Federated learning that is fair to the clients a model serves worst, and holds up when labels are poisoned."""

from fairmean.aggregators import CoordinateRule, GramRule, LossRule, Round, Rung, SumRule, register
from fairmean.errors import UserError
from fairmean.methods import Method, aggregate, compose, method
from fairmean.scales import Scale, register_scale
from fairmean.transform import dispersion, fair_objective, marginal_weight, phi, psi

__version__ = "0.1.0"

__all__ = [
    "CoordinateRule",
    "GramRule",
    "LossRule",
    "Method",
    "Round",
    "Rung",
    "Scale",
    "SumRule",
    "UserError",
    "aggregate",
    "compose",
    "dispersion",
    "fair_objective",
    "marginal_weight",
    "method",
    "phi",
    "psi",
    "register",
    "register_scale",
]
