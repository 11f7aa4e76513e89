"""Federated learning that is fair to the clients a model serves worst, and holds up when labels are poisoned."""

from fairmean._version import __version__
from fairmean.aggregators import CoordinateRule, GramRule, LossRule, Round, Rung, SumRule, register
from fairmean.errors import Diverged, UserError
from fairmean.experiment import Result, run
from fairmean.methods import aggregate, compose, method
from fairmean.rounds import Access, Method
from fairmean.scales import Scale, register_scale
from fairmean.study import Comparison, compare
from fairmean.theory.advice import advise
from fairmean.theory.certificate import certify
from fairmean.transform import dispersion, fair_objective, marginal_weight, phi, psi

__all__ = [
    "Access",
    "Comparison",
    "CoordinateRule",
    "Diverged",
    "GramRule",
    "LossRule",
    "Method",
    "Result",
    "Round",
    "Rung",
    "Scale",
    "SumRule",
    "UserError",
    "__version__",
    "advise",
    "aggregate",
    "certify",
    "compare",
    "compose",
    "dispersion",
    "fair_objective",
    "marginal_weight",
    "method",
    "phi",
    "psi",
    "register",
    "register_scale",
    "run",
]
