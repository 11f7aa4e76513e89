"""One run: config in, run folder out. An interrupted run resumes; a finished one is never computed twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from fairmean import data, federation, models
from fairmean.config import Config, gather, parse
from fairmean.data import own
from fairmean.distributed import ALONE, World, check_device
from fairmean.engine import Simulator, Training
from fairmean.engine.precision import PRECISIONS
from fairmean.engine.simulator import memory
from fairmean.errors import Diverged, UserError
from fairmean.federation import Federation
from fairmean.importing import source_digest
from fairmean.recorder import Follower, Recorder, Report
from fairmean.runfolder import CLIENTS, RunFolder

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
    config: str | Path | Mapping[str, Any] | None = None, /, *, report: Report | None = None, **overrides: Any
) -> Result:
    """Run a config (a TOML file, or nested values), with overrides as dotted keys or nested sections.

    ``fairmean.run(seed=3, train={"rounds": 20}, **{"method.kappa": 2.0})``
    """
    return run_config(parse(gather(config, overrides)), report)


def resolve(config: Config) -> Config:
    """Fill in what depends on the machine or on other keys, so that the config says what was really run."""
    device = config.train.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise UserError(f"train.device = '{device}': no such device; use cpu, cuda or auto") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("train.device = 'cuda': torch sees no CUDA device here; use train.device=cpu")
    seed = config.seed if config.partition.seed is None else config.partition.seed
    sha256 = own.digest(config.data.name)
    if config.data.sha256 not in (None, sha256):
        raise UserError(f"data '{config.data.name}': its content (sha256 {sha256}) is not data.sha256 of the config")
    return replace(
        config,
        train=replace(config.train, device=device),
        partition=replace(config.partition, seed=seed),
        data=replace(config.data, sha256=sha256),
        model=replace(config.model, sha256=source_digest(config.model.name)),
    )


def build_federation(config: Config, loaded: data.Dataset | None = None, like: Federation | None = None) -> Federation:
    """The clients and their data; ``loaded`` and ``like`` save work when there are many runs on the same data."""
    part, attack = config.partition, config.attack
    poisoned = federation.poisoned_clients(part.clients, attack.clients, attack.fraction, attack.pick, config.seed)
    loaded = loaded or data.load(config.data.name, config.data.path)
    trust = config.data.trust or (TRUST if "trust" in config.method.build().aggregator.requires else 0)
    return federation.build(
        loaded,
        trust=min(trust, max(1, len(loaded.test_y) // 10)),
        partition_name=part.name,
        clients=part.clients,
        partition_seed=config.seed if part.seed is None else part.seed,
        partition_options=part.options,
        attack=attack.name,
        poisoned=poisoned,
        rho=attack.rho,
        source=attack.source,
        target=attack.target,
        seed=config.seed,
        like=like,
    )


def build_simulator(config: Config, clients: Federation | None = None, world: World = ALONE) -> Simulator:
    """Everything a run needs in memory; ``clients`` saves building the federation again."""
    clients = clients or build_federation(config)
    with _own_model(config.model.name, clients.shape):
        return _simulator(config, clients, world)


@contextmanager
def _own_model(name: str, shape: tuple[int, ...]) -> Iterator[None]:
    """A user's model that cannot take the data is a user's mistake."""
    try:
        yield
    except UserError:
        raise
    except (RuntimeError, TypeError, ValueError) as error:
        if ":" not in name:
            raise
        raise UserError(f"model '{name}' fails on an input of shape {shape}: {error}") from error


def _simulator(config: Config, clients: Federation, world: World) -> Simulator:
    train = config.train
    return Simulator(
        clients,
        models.build(config.model.name, clients.shape, clients.classes, config.seed),
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
        ),
        seed=config.seed,
        device=train.device,
        precision=PRECISIONS[train.dtype],
        engine=cast(Literal["fast", "reference"], train.engine),
        room=train.memory or None,
        world=world,
    )


def memory_of(simulator: Simulator) -> int:
    """Bytes of the device it runs on."""
    return memory(simulator.w.device)


def folder_of(config: Config) -> Path:
    """Where a resolved config's run lives."""
    return Path(config.run.dir) / config.run.name / config.hash()


def run_config(config: Config, report: Report | None = None, world: World = ALONE) -> Result:
    """Run a parsed config; resume it, or return it, if it is there already.

    In a ``world`` of several ranks the clients are spread over them, and the first rank alone reads and writes.
    """
    config = resolve(config)
    check_device(world, config.train.device)
    if world.first(config.hash()) != config.hash():
        raise UserError(f"rank {world.rank} has another config than rank 0; start all ranks with the same settings")
    folder = RunFolder(folder_of(config))
    ended = world.first(folder.summary() if world.rank == 0 else None)
    if ended is None:
        simulator = build_simulator(config, None, world)  # a user's mistake shows before anything is written
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            if world.rank == 0:
                with folder:
                    ended = world.first(folder.summary())  # another process may have ended it meanwhile
                    ended = ended or Recorder(config, folder, simulator, report).run()
                result(config, ended)  # raises Diverged, and then the other ranks wait in vain
            elif world.first(None) is None:
                Follower(config, folder, simulator, report).run()
        ended = world.first(ended)
    assert ended is not None
    return result(config, ended)


def result(config: Config, ended: dict[str, Any]) -> Result:
    """What a run that has ended gives; raises Diverged if it did."""
    path = folder_of(config)
    if ended["status"] == "diverged":
        raise Diverged(_remedy(config, ended["round"], path))
    return Result(path, config, ended)


def _remedy(config: Config, t: int, path: Path) -> str:
    smaller = " (or method.kappa, or a larger method.tau)" if "kappa" in config.method.hyper else ""
    return (
        f"the loss became non-finite in round {t}: train.lr = {config.train.lr:g} is too large for the step-size bound "
        f"lr ≤ 1/L_Φ, L_Φ = (1+κ)L + (κ/τ)G² (κ = 0: 1/L); use a smaller train.lr{smaller}; "
        f"the last good checkpoint is kept in {path}"
    )
