"""One run: config in, run folder out. An interrupted run resumes; a finished one is never computed twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fairmean import data, models
from fairmean.data import federation
from fairmean.data.federation import Federation
from fairmean.engine import Simulator, Training
from fairmean.engine.precision import PRECISIONS
from fairmean.engine.ranks import ALONE, World, check_device
from fairmean.engine.simulator import memory
from fairmean.errors import Diverged, Lost, UserCodeError, UserError
from fairmean.experiments.config import Config, gather, parse
from fairmean.experiments.events import NOBODY, Audience, Listener, Report, unwrapping
from fairmean.experiments.folder import CLIENTS, RunFolder
from fairmean.experiments.identity import Sources, folder_of, resolve
from fairmean.experiments.session import Follower, Session, found
from fairmean.importing import failure, frame_in

TRUST = 500  # clean test samples given to a server that must own some, at most a tenth of them


@dataclass(frozen=True)
class Result:
    """A finished run: its metrics, and the folder with everything else."""

    folder: Path
    config: Config
    summary: dict[str, Any]

    @property
    def table(self) -> Path:
        """The long table, one row per round and client: ``pandas.read_csv(result.table)``."""
        return self.folder / CLIENTS

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Final test accuracy of every client, in percent, on clean labels."""
        return np.array(self.summary["accuracy"], dtype=np.float64)

    @property
    def regular(self) -> NDArray[np.bool_]:
        """Which clients are regular."""
        return np.array(self.summary["regular"])


def run(
    config: str | Path | Mapping[str, Any] | None = None,
    /,
    *,
    report: Report | None = None,
    listeners: Iterable[Listener] = (),
    **overrides: Any,
) -> Result:
    """Run a config (a TOML file, or nested values), with overrides as dotted keys or nested sections.

    ``fairmean.run(seed=3, train={"rounds": 20}, **{"method.kappa": 2.0})``

    ``listeners`` are told what happens (see ``fairmean.Listener``); ``report`` is told after every round how far the
    run has come.
    """
    audience = Audience(listeners)
    return run_config(parse(gather(config, overrides)), report, audience=audience)


def build_federation(config: Config, loaded: data.Dataset | None = None, like: Federation | None = None) -> Federation:
    """The clients and their data; ``loaded`` and ``like`` save work when there are many runs on the same data."""
    part, attack = config.partition, config.attack
    loaded = loaded or Sources().dataset(config.data.name, config.data.path)
    trust = config.data.trust or (TRUST if "trust" in config.method.build().aggregator.requires else 0)
    return federation.build(
        loaded,
        trust=min(trust, max(1, len(loaded.test_y) // 10)),
        partition_name=part.name,
        clients=part.clients,
        partition_seed=config.seed if part.seed is None else part.seed,
        partition_options=part.options,
        attack=attack.name,
        poisoned=poisoned(config),
        rho=attack.rho,
        source=attack.source,
        target=attack.target,
        seed=config.seed,
        like=like,
    )


def poisoned(config: Config) -> NDArray[np.int64]:
    """Ids of the clients that the config poisons: none without an attack."""
    attack = config.attack
    if attack.name == "none":
        return np.array([], dtype=np.int64)
    n = config.partition.clients
    return federation.poisoned_clients(n, attack.clients, attack.fraction, attack.pick, config.seed)


def build_simulator(
    config: Config, clients: Federation | None = None, world: World = ALONE, sources: Sources | None = None
) -> Simulator:
    """Everything a run needs in memory; ``clients`` saves building the federation again."""
    if clients is None:
        loaded = (sources or Sources()).dataset(config.data.name, config.data.path)
        clients = build_federation(config, loaded)
    with blaming_the_model(config.model.name):
        return _simulator(config, clients, world)


@contextmanager
def blaming_the_model(name: str) -> Iterator[None]:
    """A failure inside the files of the user's model is named as such; every other one stays what it is."""
    module, colon, _ = name.partition(":")
    try:
        yield
    except (UserError, Diverged, Lost, MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:
        place = frame_in(error, module) if colon else None
        if place is None:
            raise
        raise UserCodeError(f"model '{name}' failed ({failure(error)})") from error


def _simulator(config: Config, clients: Federation, world: World) -> Simulator:
    train = config.train
    return Simulator(
        clients,
        models.build(config.model.name, clients.shape, clients.classes, config.seed, clients.x[:1]),
        config.method.build(),
        Training(
            lr=train.lr,
            lr_decay=train.lr_decay,
            schedule=cast(Literal["exponential", "cosine"], train.schedule),
            rounds=train.rounds,
            batch=train.batch,
            local_steps=train.local_steps,
            local_lr=train.local_lr,
            participation=train.participation,
            server_lr=config.server.lr,
        ),
        seed=config.seed,
        device=train.device,
        precision=PRECISIONS[train.dtype],
        engine=cast(Literal["fast", "reference"], train.engine),
        room=train.memory or None,
        world=world,
        optimiser=config.server.build(),
    )


def memory_of(simulator: Simulator) -> int:
    """Bytes of the device it runs on."""
    return memory(simulator.w.device)


def run_config(
    config: Config,
    report: Report | None = None,
    world: World = ALONE,
    sources: Sources | None = None,
    audience: Audience = NOBODY,
) -> Result:
    """Run a parsed config; resume it, or return it, if it is there already.

    In a ``world`` of several ranks the clients are spread over them, and the first rank alone reads and writes.
    """
    sources = sources or Sources()
    return run_resolved(resolve(config, sources), report, world, sources, audience)


def run_resolved(
    config: Config, report: Report | None, world: World, sources: Sources, audience: Audience = NOBODY
) -> Result:
    """As ``run_config``, for a config that says already what is really run."""
    return unwrapping(lambda: _run_resolved(config, report, world, sources, audience))


def _run_resolved(config: Config, report: Report | None, world: World, sources: Sources, audience: Audience) -> Result:
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


def summary_of(config: Config, end: Callable[[], Result]) -> dict[str, Any]:
    """The summary of a run that ends by this call; a run whose own code failed has only a status and a reason."""
    try:
        return end().summary
    except Diverged:
        return RunFolder(folder_of(config)).summary() or {"status": "diverged"}
    except UserCodeError as error:
        return {"status": "failed", "reason": str(error)}


def result(config: Config, ended: dict[str, Any]) -> Result:
    """What a run that has ended gives; raises Diverged if it did."""
    path = folder_of(config)
    if ended["status"] == "diverged":
        if ended.get("cause") == "rule":
            raise UserCodeError(
                f"rule '{config.method.name}' gave weights that are not finite in round {ended['round']}, although "
                "all losses were; what it returned must be finite"
            )
        raise Diverged(_remedy(config, ended["round"], path))
    return Result(path, config, ended)


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
