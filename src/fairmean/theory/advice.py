"""Advice before a run: how long a step is safe, and how far poisoned clients could move the direction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairmean.config import Config, gather, parse
from fairmean.engine.monitor import constants
from fairmean.errors import UserError
from fairmean.experiment import build_federation, resolve
from fairmean.theory import bounds
from fairmean.theory.estimate import Estimate, curves, estimate
from fairmean.theory.softmax import Known, known

KAPPAS = (0.0, 0.5, 1.0, 2.0, 4.0, 16.0)
TAUS = (0.1, 1.0, 10.0)
DELTAS = (0.1, 0.2, 0.3)
SAMPLES = 2_000  # of a client, at most, for an estimate


@dataclass(frozen=True)
class Advice:
    """``known``: constants in closed form, for softmax regression."""

    config: Config
    estimate: Estimate
    known: Known | None

    def known_step(self, kappa: float, tau: float) -> float | None:
        """1/L_Φ that holds at every w, where the constants are known."""
        if self.known is None:
            return None
        return 1 / bounds.smoothness(kappa, tau, self.known.smoothness, bounds.gradient_bound(self.known.gamma))


def advise(
    config: str | Path | Mapping[str, Any] | None = None,
    /,
    *,
    samples: int = SAMPLES,
    tell: Callable[[str], None] | None = None,
    **overrides: Any,
) -> Advice:
    """Look at the start point of a run, with every label as it should be; takes what ``fairmean.run`` takes."""
    if samples < 1:
        raise UserError(f"samples = {samples}: must be a whole number ≥ 1 (of a client, at most)")
    wanted = parse(gather(config, overrides))
    clean = resolve(replace(wanted, attack=replace(wanted.attack, name="none")))
    federation = build_federation(clean)
    kappa, tau = constants(clean.method.build())
    found = curves(clean, federation, samples)
    here, everywhere = estimate(found, kappa, tau, samples, tell), known(found.model, federation)
    if everywhere is not None:
        here = replace(here, gamma=everywhere.gamma)
    return Advice(clean, here, everywhere)
