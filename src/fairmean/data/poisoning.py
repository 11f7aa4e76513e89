"""Label poisoning: features never change, only labels, and only at the poisoned clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.errors import UserError

Index = NDArray[np.int64]
Targets = NDArray[Any]
Inputs = Callable[[], NDArray[Any]]
Relabel = Callable[[Targets, Index, Inputs], Targets]
"""(clean targets, the owner of each, how to get the samples) to wrong targets. Where a sample is not chosen, its target
stays as it was."""
FURTHEST, ADAPTIVE = 1, 2
"""How a label is set anew at every step: the least likely class, or the most likely wrong one."""
_ROWS = 8192  # samples that are compared with class means at a time


@dataclass(frozen=True)
class Labels:
    """What a relabelling rule may know: the number of classes, two classes, the middle and the spread of numbers, and
    how to get the mean input of every class.
    """

    classes: int
    source: int = 0
    target: int = 1
    middle: float = 0.0
    spread: float = 1.0
    class_means: Inputs | None = None


@dataclass(frozen=True)
class Attack:
    """A relabelling rule; ``make(labels, random)`` draws what is shared by all poisoned clients."""

    summary: str
    make: Callable[[Labels, np.random.Generator], Relabel] | None
    dynamic: int = 0


def _pairwise(labels: Labels, random: np.random.Generator) -> Relabel:
    return lambda y, owner, x: labels.classes - 1 - y


def _random(labels: Labels, random: np.random.Generator) -> Relabel:
    return lambda y, owner, x: (y + random.integers(1, labels.classes, size=y.shape)) % labels.classes


def _random_class(labels: Labels, random: np.random.Generator) -> Relabel:
    names = np.arange(labels.classes)
    while True:  # a random permutation is a derangement with probability → 1/e
        image = random.permutation(labels.classes)
        if (image != names).all():
            return lambda y, owner, x: image[y]


def _targeted(labels: Labels, random: np.random.Generator) -> Relabel:
    source, target, classes = labels.source, labels.target, labels.classes
    for key, value in (("source", source), ("target", target)):
        if not 0 <= value < classes:
            raise UserError(f"attack.{key} = {value}: must be a class, 0 … {classes - 1}")
    if source == target:
        raise UserError(f"attack.source = attack.target = {source}: a targeted flip needs two different classes")
    return lambda y, owner, x: np.where(y == source, target, y)


def _look_alike(labels: Labels, random: np.random.Generator) -> Relabel:
    """Classes in pairs, those with the nearest means first; a class that is left over goes to the one it is nearest."""
    assert labels.class_means is not None
    means = labels.class_means()
    squares = (means**2).sum(1)
    with np.errstate(invalid="ignore"):
        distances = squares[:, None] + squares - 2 * means @ means.T
    distances = np.where(np.isfinite(distances) & ~np.eye(labels.classes, dtype=bool), distances, np.inf)
    image: Index = np.argmin(distances, 1)
    left = np.ones(labels.classes, dtype=bool)
    for place in np.argsort(distances, axis=None, kind="stable"):
        a, b = divmod(int(place), labels.classes)
        if a != b and left[a] and left[b]:
            image[a], image[b] = b, a
            left[[a, b]] = False
    return lambda y, owner, x: image[y]


def _confused(labels: Labels, random: np.random.Generator) -> Relabel:
    assert labels.class_means is not None
    means = labels.class_means()
    known = np.isfinite(means[:, 0])
    means = np.where(known[:, None], means, 0.0)
    squares = np.where(known, (means**2).sum(1), np.inf)

    def relabel(y: Targets, owner: Index, x: Inputs) -> Targets:
        samples, wrong = x().reshape(len(y), -1), np.empty_like(y)
        for start in range(0, len(y), _ROWS):
            part = slice(start, start + _ROWS)
            distances = squares - 2 * samples[part].astype(np.float64) @ means.T
            distances[np.arange(len(distances)), y[part]] = np.inf
            wrong[part] = distances.argmin(1)
        return wrong

    return relabel


def _sign(labels: Labels, random: np.random.Generator) -> Relabel:
    return lambda y, owner, x: (2 * labels.middle - y).astype(y.dtype)


def _shift(labels: Labels, random: np.random.Generator) -> Relabel:
    return lambda y, owner, x: (y + 2 * labels.spread).astype(y.dtype)


def _permutation(labels: Labels, random: np.random.Generator) -> Relabel:
    def relabel(y: Targets, owner: Index, x: Inputs) -> Targets:
        order = np.lexsort([random.permutation(len(y)), owner])  # every client's samples in an order of chance
        wrong = np.empty_like(y)
        wrong[np.argsort(owner, kind="stable")] = y[order]
        return wrong

    return relabel


ATTACKS: dict[str, Attack] = {
    "none": Attack("no client is poisoned", None),
    "pairwise": Attack("y → K−1−y", _pairwise),
    "random": Attack("each label replaced by a uniformly drawn incorrect one", _random),
    "random_class": Attack("one derangement of the classes, shared by the poisoned clients", _random_class),
    "targeted": Attack("class attack.source → attack.target", _targeted),
    "look-alike": Attack("classes in pairs, those with the most similar mean inputs first, exchanged", _look_alike),
    "confused": Attack("the wrong class whose mean input is nearest to the sample", _confused),
    "furthest": Attack("at every step, the class the current model finds least likely", None, FURTHEST),
    "adaptive": Attack("at every step, the wrong class the current model finds most likely", None, ADAPTIVE),
    "sign": Attack("numbers are mirrored at the mean of all: y → 2ȳ − y", _sign),
    "permutation": Attack("a client's numbers are given to its samples in an order of chance", _permutation),
    "shift": Attack("numbers are two standard deviations too large", _shift),
}


def choose(
    labels_owner: Index, poisoned: Index, rho: float, random: np.random.Generator, spare: int = 0
) -> NDArray[np.bool_]:
    """Which samples are relabelled: round(ρ m_i) of each of these clients, drawn without replacement.

    At least ``spare`` of a client's samples are left out.
    """
    chosen = np.zeros(len(labels_owner), dtype=bool)
    for client in poisoned:
        rows = np.flatnonzero(labels_owner == client)
        chosen[random.permutation(rows)[: min(round(rho * len(rows)), len(rows) - spare)]] = True
    return chosen
