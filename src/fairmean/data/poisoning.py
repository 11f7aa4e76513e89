"""Label poisoning: features never change, only labels, and only at the poisoned clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairmean.errors import UserError

Index = NDArray[np.int64]
Relabel = Callable[[Index], Index]


@dataclass(frozen=True)
class Attack:
    """A relabelling rule; ``make(classes, random, source, target)`` draws what is shared by all poisoned clients."""

    summary: str
    make: Callable[[int, np.random.Generator, int, int], Relabel] | None
    dynamic: bool = False


def _pairwise(classes: int, random: np.random.Generator, source: int, target: int) -> Relabel:
    return lambda y: classes - 1 - y


def _random(classes: int, random: np.random.Generator, source: int, target: int) -> Relabel:
    return lambda y: (y + random.integers(1, classes, size=y.shape)) % classes


def _random_class(classes: int, random: np.random.Generator, source: int, target: int) -> Relabel:
    names = np.arange(classes)
    while True:  # a random permutation is a derangement with probability → 1/e
        image = random.permutation(classes)
        if (image != names).all():
            return lambda y: image[y]


def _targeted(classes: int, random: np.random.Generator, source: int, target: int) -> Relabel:
    for key, value in (("source", source), ("target", target)):
        if not 0 <= value < classes:
            raise UserError(f"attack.{key} = {value}: must be a class, 0 … {classes - 1}")
    if source == target:
        raise UserError(f"attack.source = attack.target = {source}: a targeted flip needs two different classes")
    return lambda y: np.where(y == source, target, y)


ATTACKS: dict[str, Attack] = {
    "none": Attack("no client is poisoned", None),
    "pairwise": Attack("y → K−1−y", _pairwise),
    "random": Attack("each label replaced by a uniformly drawn incorrect one", _random),
    "random_class": Attack("one derangement of the classes, shared by the poisoned clients", _random_class),
    "targeted": Attack("class attack.source → attack.target", _targeted),
    "furthest": Attack("at every step, the class the current model finds least likely", None, dynamic=True),
}


def choose(labels_owner: Index, poisoned: Index, rho: float, random: np.random.Generator) -> NDArray[np.bool_]:
    """Which samples are relabelled: round(ρ m_i) of each poisoned client, drawn without replacement."""
    chosen = np.zeros(len(labels_owner), dtype=bool)
    for client in poisoned:
        rows = np.flatnonzero(labels_owner == client)
        chosen[random.permutation(rows)[: round(rho * len(rows))]] = True
    return chosen
