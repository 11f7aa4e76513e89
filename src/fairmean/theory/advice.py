"""Advice before a run: how long a step is safe, and how far poisoned clients could move the direction."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fairmean.text import columns
from fairmean.theory import bounds
from fairmean.theory.estimate import Estimate
from fairmean.theory.softmax import Known

if TYPE_CHECKING:
    from fairmean.experiments.sections import Config

KAPPAS = (0.0, 0.5, 1.0, 2.0, 4.0, 16.0)
TAUS = (0.1, 1.0, 10.0)
DELTAS = (0.1, 0.2, 0.3)


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


def record(given: Advice) -> dict[str, Any]:
    """For programs."""
    e = given.estimate
    grid = [
        {"kappa": k, "tau": tau, "cap": 1 + k, "step": e.step(k, tau), "known_step": given.known_step(k, tau)}
        | {"radius": {f"{d:g}": e.radius(d, k) for d in DELTAS}}
        for k, tau in itertools.product(KAPPAS, TAUS)
    ]
    constants = asdict(e) | {"safe_step": e.safe_step, "edge": e.edge}
    return {"estimate": constants, "known": asdict(given.known) if given.known else None, "grid": grid}


def page(given: Advice) -> str:
    """κ × τ: the cap, the safe step, and ε per poisoned fraction; then what to set."""
    config, e = given.config, given.estimate
    used = f"on at most {e.samples:,} samples of each client"
    lines = [
        f"{config.data.name} · {config.partition.clients} clients · the start point of seed {config.seed}, {used}",
        f"L = {e.L:.4g} (client {e.steepest} curves most)   G = {e.G:.4g}   H = {e.H:.4g}   "
        f"Γ {'≥' if given.known is None else '='} {e.gamma:.4g}   "
        f"λ_max(∇²Φ) = {e.curvature:.4g} at κ = {e.kappa:g}, τ = {e.tau:g}",
    ]
    if not e.settled:
        lines.append("(a power iteration had not settled: the curvatures are lower bounds)")
    header = ["κ", "τ", "cap 1+κ", "L_Φ", "safe step 1/L_Φ", *(f"ε at δ={d:g}" for d in DELTAS)]
    if given.known is not None:
        header.append("1/L_Φ at every w")
    rows = []
    for kappa, tau in itertools.product(KAPPAS, TAUS):
        if kappa == 0 and tau != 1.0:
            continue
        radii = [f"{e.radius(delta, kappa):.3g}" for delta in DELTAS]
        row = [f"{kappa:g}", f"{tau:g}" if kappa else "any", f"{1 + kappa:g}"]
        row += [f"{1 / e.step(kappa, tau):.3g}", f"{e.step(kappa, tau):.3g}", *radii]
        step = given.known_step(kappa, tau)
        rows.append(row if step is None else [*row, f"{step:.3g}"])
    lines += ["", columns(rows, header), ""]
    lines += [
        f"safe at the start: train.lr={down(e.safe_step)} (Theorem 2 for κ = {e.kappa:g}, τ = {e.tau:g}). "
        f"Steps beyond {e.edge:.2g} overshoot in the steepest direction.",
        "Curvature changes in training, and often grows to about 2/lr: a run with theory=true measures it on the way, "
        "and 'fairmean check' says whether the bound held.",
        "ε is what Lemma 2 allows when every label of a poisoned client may change; real attacks reach a part of it.",
    ]
    return "\n".join(lines)


def down(value: float) -> str:
    """Two digits, never more than the value."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.floor(value / unit) * unit:.2g}"
