"""What a run needs in memory, from its config: the clients with their data, the model, the simulator."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fairmean import data, models
from fairmean.data import federation
from fairmean.data.federation import Federation
from fairmean.data.scaling import unscaled
from fairmean.engine import Simulator, Training
from fairmean.engine.participation import Presence
from fairmean.engine.precision import PRECISIONS
from fairmean.engine.ranks import ALONE, World
from fairmean.engine.simulator import memory
from fairmean.errors import Diverged, Lost, UserCodeError, UserError, unknown
from fairmean.experiments.identity import Sources
from fairmean.experiments.sections import Config
from fairmean.importing import failure, frame_in

TRUST = 500  # clean test samples given to a server that must own some, at most a tenth of them


def build_federation(config: Config, loaded: data.Dataset | None = None, like: Federation | None = None) -> Federation:
    """The clients and their data; ``loaded`` and ``like`` save work when there are many runs on the same data."""
    part, attack = config.partition, config.attack
    loaded = loaded or Sources().dataset(config.data)
    hint = unscaled(loaded, own_model=config.model.name not in ("auto", *models.MODELS))
    if hint:
        warnings.warn(hint, stacklevel=2)
    trust = config.data.trust or (TRUST if "trust" in config.method.build().aggregator.requires else 0)
    return federation.build(
        loaded,
        trust=min(trust, max(1, len(loaded.test_y) // 10)),
        validation=config.data.validation,
        partition_name=part.name,
        clients=part.clients,
        partition_seed=config.seed if part.seed is None else part.seed,
        partition_options=part.options,
        attack=attack.name,
        poisoned=poisoned(config, loaded.client_names),
        rho=attack.rho,
        source=attack.source,
        target=attack.target,
        seed=config.seed,
        like=like,
    )


def poisoned(config: Config, names: Sequence[str] | None = None) -> NDArray[np.int64]:
    """Ids of the clients that the config poisons: none without an attack. ``names``: what clients are called."""
    attack, clients = config.attack, config.attack.clients
    if attack.name == "none":
        return np.array([], dtype=np.int64)
    n = config.partition.clients
    if isinstance(clients, str):  # as it is typed: clients=Bonn or clients=[Bonn,Kiel]
        clients = [name.strip() for name in clients.strip("[]").split(",")]
    if isinstance(clients, list) and (names or any(isinstance(client, str) for client in clients)):
        places = {name: place for place, name in enumerate(names or map(str, range(n)))}
        for client in clients:  # a number, too, is what the client is called
            if str(client) not in places:
                raise unknown("client in attack.clients", client, places)
        clients = [places[str(client)] for client in clients]
    if isinstance(clients, list):
        twice = [int(client) for client, count in Counter[Any](clients).items() if count > 1]
        if twice:
            called = names[twice[0]] if names else twice[0]
            raise UserError(f"attack.clients = {attack.clients}: {called} is there twice; name each client once")
    return federation.poisoned_clients(n, cast("int | list[int]", clients), attack.fraction, attack.pick, config.seed)


def build_simulator(
    config: Config, clients: Federation | None = None, world: World = ALONE, sources: Sources | None = None
) -> Simulator:
    """Everything a run needs in memory; ``clients`` saves building the federation again."""
    if clients is None:
        loaded = (sources or Sources()).dataset(config.data)
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


def build_model(config: Config, clients: Federation) -> nn.Module:
    """The model with the parameters that it begins with."""
    return models.build(
        config.model.name,
        clients.shape,
        clients.outputs,
        config.seed,
        clients.x[:1],
        task=clients.task.name,
        vocabulary=clients.vocabulary,
        weights=config.model.weights,
        weights_sha256=config.model.weights_sha256,
        frozen=config.model.patterns,
    )


def _simulator(config: Config, clients: Federation, world: World) -> Simulator:
    train = config.train
    return Simulator(
        clients,
        build_model(config, clients),
        config.method.build(),
        Training(
            lr=train.lr,
            lr_decay=train.lr_decay,
            schedule=cast(Literal["exponential", "cosine"], train.schedule),
            rounds=train.rounds,
            batch=train.batch,
            local_steps=train.local_steps,
            local_lr=train.local_lr,
            local_epochs=train.local_epochs,
            client_momentum=train.client_momentum,
            weight_decay=train.weight_decay,
            proximal=train.proximal,
            participation=train.participation,
            server_lr=config.server.lr,
            presence=Presence(train.presence, train.spell, train.spread, train.candidates, train.unbiased),
        ),
        seed=config.seed,
        device=train.device,
        precision=PRECISIONS[train.dtype],
        engine=cast(Literal["fast", "reference"], train.engine),
        room=train.memory or None,
        world=world,
        optimiser=config.server.build(),
        evaluated=config.run.eval_clients or None,
    )


def memory_of(simulator: Simulator) -> int:
    """Bytes of the device it runs on."""
    return memory(simulator.w.device)
