"""A run whose loss swings because its step is too long: noticed on the way, with the step that would be safe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fairmean.engine import Simulator
from fairmean.errors import UserError
from fairmean.rules.round import Rung
from fairmean.theory.estimate import curves, estimate
from fairmean.theory.measure.monitor import constants
from fairmean.transform import marginal_weight

WINDOW = 25  # rounds
SWING = 1.5  # rises within the window, as a multiple of the mean loss there
MARGIN = 10.0  # times the bound
_SAMPLES = 500


class Swing:
    """The mean loss of the last rounds; ``rise`` is the sum of its increases over its mean.

    Where losses differ from round to round by themselves (minibatches, dropout, some clients only), or the rule is
    not a weighted sum like FairMean's, the step-size bound says nothing, and neither does this. ``start`` makes the
    model with its first parameters.
    """

    def __init__(self, simulator: Simulator, start: Callable[[], nn.Module]) -> None:
        self.simulator, self.start = simulator, start
        method = simulator.method
        self.on = (
            simulator.world.size == 1
            and not simulator.unsteady
            and simulator.training.one_gradient
            and simulator.server.optimiser.plain
            and method.rung == Rung.SUM
            and method.objective.is_mean_cross_entropy
            and (method.scale.unit or "kappa" in method.hyper)
        )
        self.recent: list[Tensor] = []
        self.warning: str | None = None

    def note(self, t: int, losses: Tensor) -> None:
        """After round t; looks back once in a window."""
        if not self.on or self.warning is not None:
            return
        self.recent = [*self.recent[1 - WINDOW :], losses.mean()]
        if (t + 1) % WINDOW == 0 and len(self.recent) == WINDOW:
            values = torch.stack(self.recent)
            rises = values.diff().clamp(min=0)
            if (rises.sum() > SWING * values.mean()).item():
                self.warning = self._judge(t, int((rises > 0).sum()), losses)

    def _judge(self, t: int, rises: int, losses: Tensor) -> str | None:
        """The warning, if the step exceeds 1/L_Φ by a wide margin, at the start or here (which may be a wasteland)."""
        simulator = self.simulator
        kappa, tau = constants(simulator.method)
        safe = []
        for w in (None, simulator.w):
            with contextlib.suppress(UserError):  # nothing finite to look at
                point = curves(self.start, simulator.federation, _SAMPLES, simulator.seed, simulator.w.device, w)
                safe.append(estimate(point, kappa, tau, _SAMPLES, most=10).safe_step)
        step = simulator.training.step_size(t)
        if simulator.method.scale.normalised:
            step /= float(marginal_weight(losses, kappa, tau).mean())
        if not safe or not step > MARGIN * min(safe):
            return None
        return (
            f"the loss swings: it rose in {rises} of rounds {t + 1 - WINDOW} … {t}, and the step {step:.3g} is "
            f"{step / min(safe):.0f} times the bound 1/L_Φ = {min(safe):.2g} there or at the start; try a train.lr "
            f"{MARGIN:.0f} times shorter, or see 'fairmean advise'"
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"recent": [value.item() for value in self.recent], "warning": self.warning}

    def load(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        device = self.simulator.w.device
        self.recent = [torch.tensor(value, dtype=torch.float64, device=device) for value in state["recent"]]
        self.warning = state["warning"]
