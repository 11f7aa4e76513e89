"""Federated learning that is fair to the clients a model serves worst, and holds up when labels are poisoned."""

import logging

from fairmean._version import __version__
from fairmean.engine.layers.registry import register_layer
from fairmean.engine.one_round import aggregate, gathered
from fairmean.engine.server import Server, ServerState, Update
from fairmean.errors import Diverged, UserError
from fairmean.experiments.advise import advise
from fairmean.experiments.events import Checkpointed, Listener, RoundEnded, RunEnded, RunStarted
from fairmean.experiments.run import Result, run
from fairmean.experiments.study import Comparison, compare
from fairmean.rules.aggregator import CoordinateRule, GramRule, LossRule, SumRule, register
from fairmean.rules.context import Context
from fairmean.rules.method import Method
from fairmean.rules.named import compose, method
from fairmean.rules.objectives import CrossEntropy, Objective, register_objective
from fairmean.rules.optimisers import Optimiser, register_optimiser
from fairmean.rules.round import Access, Round, Rung
from fairmean.rules.scales import Scale, register_scale
from fairmean.theory.certificate import certify
from fairmean.torch.ddp_hook import ddp_hook
from fairmean.torch.groups import GroupFairMean
from fairmean.torch.loss import FairMeanLoss
from fairmean.torch.robust_groups import GroupRecess, GroupSplit
from fairmean.torch.sampler import ClientSampler
from fairmean.transform import dispersion, fair_objective, marginal_weight, phi, psi

__all__ = [
    "Access",
    "Checkpointed",
    "ClientSampler",
    "Comparison",
    "Context",
    "CoordinateRule",
    "CrossEntropy",
    "Diverged",
    "FairMeanLoss",
    "GramRule",
    "GroupFairMean",
    "GroupRecess",
    "GroupSplit",
    "Listener",
    "LossRule",
    "Method",
    "Objective",
    "Optimiser",
    "Result",
    "Round",
    "RoundEnded",
    "RunEnded",
    "RunStarted",
    "Rung",
    "Scale",
    "Server",
    "ServerState",
    "SumRule",
    "Update",
    "UserError",
    "__version__",
    "advise",
    "aggregate",
    "certify",
    "compare",
    "compose",
    "ddp_hook",
    "dispersion",
    "fair_objective",
    "gathered",
    "marginal_weight",
    "method",
    "phi",
    "psi",
    "register",
    "register_layer",
    "register_objective",
    "register_optimiser",
    "register_scale",
    "run",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())  # what is said there is shown where the user wants it
