"""One run: config in, run folder out. An interrupted run resumes; a finished one is never computed twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fairmean.engine.ranks import ALONE, World, check_device
from fairmean.errors import Diverged, UserCodeError, UserError
from fairmean.experiments.building import blaming_the_model, build_simulator
from fairmean.experiments.config import gather, parse_one
from fairmean.experiments.events import NOBODY, Audience, Listener, Report, unwrapping
from fairmean.experiments.folder import RunFolder
from fairmean.experiments.identity import Sources, folder_of, resolve
from fairmean.experiments.in_python import by_name
from fairmean.experiments.reading import Run
from fairmean.experiments.sections import Config
from fairmean.experiments.session import Follower, Session, found

Result = Run
"""What version 0.1 called a run that has finished."""


def run(
    config: str | Path | Mapping[str, Any] | None = None,
    /,
    *,
    report: Report | None = None,
    listeners: Iterable[Listener] = (),
    **overrides: Any,
) -> Run:
    """Run a config (a TOML file, or nested values), with overrides as dotted keys or nested sections.

    ``fairmean.run(seed=3, train={"rounds": 20}, **{"method.kappa": 2.0})``

    Data may be arrays, ``data={"x_train": …, "y_train": …, "x_test": …, "y_test": …}``, and a model a module or a
    function of input shape and number of classes that makes one, ``model=my_factory``.

    ``listeners`` are told what happens (see ``fairmean.Listener``); ``report`` is told after every round how far the
    run has come.
    """
    audience = Audience(listeners)
    return run_config(parse_one(gather(config, by_name(overrides))), report, audience=audience)


def run_config(
    config: Config,
    report: Report | None = None,
    world: World = ALONE,
    sources: Sources | None = None,
    audience: Audience = NOBODY,
) -> Run:
    """Run a parsed config; resume it, or return it, if it is there already.

    In a ``world`` of several ranks the clients are spread over them, and the first rank alone reads and writes.
    """
    sources = sources or Sources()
    return run_resolved(resolve(config, sources), report, world, sources, audience)


def run_resolved(
    config: Config, report: Report | None, world: World, sources: Sources, audience: Audience = NOBODY
) -> Run:
    """As ``run_config``, for a config that says already what is really run."""
    return unwrapping(lambda: _run_resolved(config, report, world, sources, audience))


def _run_resolved(config: Config, report: Report | None, world: World, sources: Sources, audience: Audience) -> Run:
    """As ``run_resolved``, but what a listener raises stays wrapped."""
    check_device(world, config.train.device)
    if world.first(config.hash()) != config.hash():
        raise UserError(f"rank {world.rank} has another config than rank 0; start all ranks with the same settings")
    folder = RunFolder(folder_of(config))
    ended = world.first(folder.summary() if world.rank == 0 else None)
    if ended is None:
        simulator = build_simulator(config, None, world, sources)
        kind = Session if world.rank == 0 else Follower
        with blaming_the_model(config.model.name):
            session = kind(config, folder, simulator, audience)  # a user's mistake shows before anything is written
        determinism = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with determinism:
            if world.rank == 0:
                with folder, blaming_the_model(config.model.name):
                    ended = world.first(folder.summary())  # another process may have ended it meanwhile
                    if ended is None:
                        ended = session.train(report)
                    else:
                        found(config, ended, audience)
                result(config, ended)  # raises Diverged, and then the other ranks wait in vain
            elif world.first(None) is None:
                with blaming_the_model(config.model.name):
                    session.train(report)
        ended = world.first(ended)
    elif world.rank == 0:
        folder.mend_config(config)
        found(config, ended, audience)
    assert ended is not None
    return result(config, ended)


def run_to_an_end(config: Config, report: Report | None, sources: Sources, audience: Audience) -> dict[str, Any]:
    """The summary of a resolved config's run, however it ends: finished, diverged, or failed with the reason."""
    return summary_of(config, lambda: _run_resolved(config, report, ALONE, sources, audience))


def summary_of(config: Config, end: Callable[[], Run]) -> dict[str, Any]:
    """The summary of a run that ends by this call; a run whose own code failed has only a status and a reason."""
    try:
        return end().summary
    except Diverged:
        return RunFolder(folder_of(config)).summary() or {"status": "diverged"}
    except UserCodeError as error:
        return {"status": "failed", "reason": str(error)}


def result(config: Config, ended: dict[str, Any]) -> Run:
    """What a run that has ended gives; raises Diverged if it did."""
    path = folder_of(config)
    if ended["status"] == "diverged":
        if ended.get("cause") == "rule":
            raise UserCodeError(
                f"rule '{config.method.name}' gave weights that are not finite in round {ended['round']}, although "
                "all losses were; what it returned must be finite"
            )
        raise Diverged(_remedy(config, ended["round"], path))
    return Run(path, config, ended)


def _remedy(config: Config, t: int, path: Path) -> str:
    if t == 0:
        return (
            f"the loss is not finite before any step was taken: the model '{config.model.name}' gives NaN or infinite "
            f"values on '{config.data.name}'; look at its initial parameters and at the scale of the inputs"
        )
    smaller = " (or method.kappa, or a larger method.tau)" if "kappa" in config.method.hyper else ""
    own = f", or the rule '{config.method.name}' is at fault" if config.method.sha256 else ""
    return (
        f"the loss became non-finite in round {t}: train.lr = {config.train.lr:g} is too large for the step-size bound "
        f"lr ≤ 1/L_Φ, L_Φ = (1+κ)L + (κ/τ)G² (κ = 0: 1/L){own}; use a smaller train.lr{smaller}; "
        f"the last good checkpoint is kept in {path}"
    )
