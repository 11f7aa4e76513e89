"""Federated learning that is fair to the clients a model serves worst, and holds up when labels are poisoned."""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from fairmean._version import __version__

if TYPE_CHECKING:
    from fairmean.engine.layers.registry import register_layer
    from fairmean.engine.one_round import aggregate, gathered
    from fairmean.engine.server import Server, ServerState, Update
    from fairmean.errors import Diverged, UserError
    from fairmean.experiments.advise import advise
    from fairmean.experiments.audit import Audit, audit
    from fairmean.experiments.events import Checkpointed, Listener, RoundEnded, RunEnded, RunStarted
    from fairmean.experiments.reading import Run, load, runs
    from fairmean.experiments.run import Result, run
    from fairmean.experiments.study import Comparison, compare
    from fairmean.experiments.tune import Tuning, tune
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

_HOMES = {
    "engine.layers.registry": ("register_layer",),
    "engine.one_round": ("aggregate", "gathered"),
    "engine.server": ("Server", "ServerState", "Update"),
    "errors": ("Diverged", "UserError"),
    "experiments.advise": ("advise",),
    "experiments.audit": ("Audit", "audit"),
    "experiments.events": ("Checkpointed", "Listener", "RoundEnded", "RunEnded", "RunStarted"),
    "experiments.reading": ("Run", "load", "runs"),
    "experiments.run": ("Result", "run"),
    "experiments.study": ("Comparison", "compare"),
    "experiments.tune": ("Tuning", "tune"),
    "rules.aggregator": ("CoordinateRule", "GramRule", "LossRule", "SumRule", "register"),
    "rules.context": ("Context",),
    "rules.method": ("Method",),
    "rules.named": ("compose", "method"),
    "rules.objectives": ("CrossEntropy", "Objective", "register_objective"),
    "rules.optimisers": ("Optimiser", "register_optimiser"),
    "rules.round": ("Access", "Round", "Rung"),
    "rules.scales": ("Scale", "register_scale"),
    "theory.certificate": ("certify",),
    "torch.ddp_hook": ("ddp_hook",),
    "torch.groups": ("GroupFairMean",),
    "torch.loss": ("FairMeanLoss",),
    "torch.robust_groups": ("GroupRecess", "GroupSplit"),
    "torch.sampler": ("ClientSampler",),
    "transform": ("dispersion", "fair_objective", "marginal_weight", "phi", "psi"),
}
"""Where each public name lives. It is imported when it is first used: importing PyTorch takes two seconds, which those
who only want a list or a help text need not wait for."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = (
    "data", "engine", "errors", "experiments", "export", "models", "report", "rules", "terminal", "theory", "torch",
    "transform",
)  # fmt: skip

__all__ = [
    "Access",
    "Audit",
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
    "Run",
    "RunEnded",
    "RunStarted",
    "Rung",
    "Scale",
    "Server",
    "ServerState",
    "SumRule",
    "Tuning",
    "Update",
    "UserError",
    "__version__",
    "advise",
    "aggregate",
    "audit",
    "certify",
    "compare",
    "compose",
    "ddp_hook",
    "dispersion",
    "fair_objective",
    "gathered",
    "load",
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
    "runs",
    "tune",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())  # what is said there is shown where the user wants it


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"fairmean.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fairmean' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"fairmean.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
