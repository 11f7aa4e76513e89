"""What the theorems take for granted, as far as it is known before a run starts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from fairmean.data.federation import Federation
from fairmean.engine import Simulator
from fairmean.theory.measure.monitor import constants
from fairmean.theory.softmax import known

PREMISES = (
    "method", "kappa", "tau", "clients", "delta", "rho", "cross_entropy", "dtype", "not_static", "gamma", "smoothness",
)  # fmt: skip
"""What ``theory.json`` holds."""


def premises(simulator: Simulator, dtype: str) -> dict[str, Any]:
    """Constants of the run for ``theory.json``; Γ and L only where they have a closed form.

    A batch may hold relabelled samples only, so ρ is 1 there. ``cross_entropy``: Lemma 1 applies, that is a client's
    loss is the mean cross-entropy of one model, without dropout.
    """
    kappa, tau = constants(simulator.method)
    plain, n = simulator.method.objective.is_mean_cross_entropy, simulator.federation.clients
    closed = known(simulator.net.model, simulator.federation) if plain else None
    return {
        "method": simulator.method.name,
        "kappa": kappa,
        "tau": tau,
        "clients": n,
        "delta": int((~simulator.federation.regular).sum()) / n,
        "rho": relabelled(simulator.federation) if simulator.training.batch == 0 else 1.0,
        "cross_entropy": plain and not simulator.net.random,
        "dtype": dtype,
        "not_static": simulator.unsteady,
        "gamma": closed.gamma if closed else None,
        "smoothness": closed.smoothness if closed else None,
    }


def relabelled(federation: Federation) -> float:
    """ρ: the largest fraction of a poisoned client's samples with another label; a dynamic attack may change all."""
    changed = (federation.y != federation.clean_y).cpu().numpy()
    if federation.dynamic is not None:
        changed |= federation.dynamic.cpu().numpy() > 0
    shares = [changed[a:b].mean() for a, b in pairwise(federation.offsets.tolist())]
    return float(np.max(np.array(shares)[~federation.regular], initial=0.0))
