"""Advice on a config, before it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fairmean import models
from fairmean.errors import UserError
from fairmean.experiments.building import blaming_the_model, build_federation
from fairmean.experiments.config import gather, parse
from fairmean.experiments.identity import Sources, resolve
from fairmean.theory.advice import Advice
from fairmean.theory.estimate import curves, estimate
from fairmean.theory.measure.monitor import constants
from fairmean.theory.softmax import known

SAMPLES = 2_000  # of a client, at most, for an estimate


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
    sources = Sources()
    clean = resolve(replace(wanted, attack=replace(wanted.attack, name="none")), sources)
    federation = build_federation(clean, sources.dataset(clean.data.name, clean.data.path, clean.data.scale))
    method = clean.method.build()
    if not method.objective.is_mean_cross_entropy:
        raise UserError(f"advise: knows the mean cross-entropy of a client, and {method.name} has another objective")
    if not clean.server.build().plain:
        raise UserError(f"advise: knows plain steps, and server.name = '{clean.server.name}'; use server.name=plain")
    kappa, tau = constants(method)
    with blaming_the_model(clean.model.name):
        chosen = clean.model.name, federation.shape, federation.classes, clean.seed, federation.x[:1]
        start = partial(models.build, *chosen)
        found = curves(start, federation, samples, clean.seed, clean.train.device)
        here, everywhere = estimate(found, kappa, tau, samples, tell), known(found.model, federation)
    if everywhere is not None:
        here = replace(here, gamma=everywhere.gamma)
    return Advice(clean, here, everywhere)
