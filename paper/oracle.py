"""The oracle: a method that is told who is poisoned, and never asks them.

It is no method, because nobody has that knowledge: it is a labelled row beside the methods, and says what perfect
detection would reach. Draws, samples, rounds, step sizes and the evaluation of the regular clients are those of the
run beside it; only the poisoned clients never take part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean.engine import Simulator
from fairmean.engine.participation import Clients, Losses, Uniform
from fairmean.engine.server import Server
from fairmean.engine.simulator import on
from fairmean.errors import Diverged
from fairmean.experiments.building import build_simulator
from fairmean.experiments.config import gather, parse
from fairmean.experiments.identity import resolve
from fairmean.experiments.metrics import finished
from fairmean.rules.context import Context, Means
from fairmean.rules.scales import Scale

LABEL = "oracle: {method}, poisoned dropped"


class RegularAlone(Uniform):
    """Whoever would take part, without the poisoned ones."""

    def __init__(self, usual: Uniform, regular: NDArray[np.bool_]) -> None:
        self.n, self.seed, self.most, self.varies = usual.n, usual.seed, usual.most, usual.varies
        self.inclusion = None if usual.inclusion is None else np.where(regular, usual.inclusion, 0.0)
        self._usual, self._regular = usual, regular

    @property
    def partial(self) -> bool:
        return True

    def __call__(self, t: int, losses: Losses) -> Clients:
        clients = self._usual(t, losses)
        return clients[self._regular[clients]]


def oracle(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A record like those of a comparison, from the settings of a run: its label, its status and the metrics."""
    config = resolve(parse(gather(None, dict(settings))))
    simulator = told(build_simulator(config))
    record = {
        "method": LABEL.format(method=config.method.name),
        "attack": config.attack.name,
        "seed": config.seed,
        "status": "diverged",
    }
    try:
        for t in range(config.train.rounds):
            simulator.step(t)
    except Diverged:
        return record
    if not simulator.w.isfinite().all():
        return record
    return record | finished(*simulator.test(), simulator.federation.regular, what=simulator.federation.task.metric)


def told(simulator: Simulator) -> Simulator:
    """The same simulator, which never asks a poisoned client."""
    simulator.present = RegularAlone(simulator.present, simulator.federation.regular)
    return simulator


@dataclass(frozen=True, eq=False)
class RegularOnly(Scale):
    """s_i = 1 for regular clients and 0 for poisoned ones, who are out of every round. Equal to itself alone."""

    __eq__, __hash__ = object.__eq__, object.__hash__  # else those of Scale, which compares no fields

    simple: ClassVar[bool] = False
    regular: Tensor | None = None

    def __call__(self, losses: Tensor, means: Means, context: Context) -> Tensor:
        assert self.regular is not None
        return self.regular.to(losses.device)[context.clients].to(losses.dtype)


def told_in_a_fleet(simulator: Simulator) -> Simulator:
    """The same for a run that advances together with others, where all have the same participants: the rule is Mean."""
    federation, device = simulator.federation, simulator.w.device
    regular = torch.from_numpy(federation.regular).to(device)
    simulator.method = replace(simulator.method, scale=RegularOnly(regular=regular))
    simulator.server = Server(simulator.method, simulator.server.optimiser)
    simulator.memory = on(simulator.method.memory(federation.clients, federation.classes), device)
    return simulator
