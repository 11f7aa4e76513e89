"""Who takes part in a round: drawn uniformly, by availability, by size, or by loss.

Every draw is a function of the run's seed and the round, so a resumed run sees the same clients. Only the choice by
loss depends on the model as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairmean.errors import UserError, unknown
from fairmean.randomness import drawn, generator

Clients = NDArray[np.int64]
Losses = Callable[[Clients], NDArray[np.float64]]
"""The losses of some clients at the model as it is."""

LOWEST_RATE = 0.01


@dataclass(frozen=True)
class Presence:
    """How the clients of a round are chosen; the fraction of them is ``Training.participation``.

    ``spell``: how many rounds an available client stays so, in the mean ('markov'). ``spread``: how far the clients'
    rates of availability differ, as their variance over the largest that is possible ('markov'; 0: all alike).
    ``candidates``: how many clients are asked for their losses ('power-of-choice'; 0: twice as many as take part).
    ``unbiased``: weights are divided by the probability of taking part.
    """

    name: str = "uniform"
    spell: float = 10.0
    spread: float = 0.0
    candidates: int = 0
    unbiased: bool = False


class Uniform:
    """k = fraction · n clients, every set of k alike.

    ``most`` is the largest number of clients in a round. ``inclusion`` are the probabilities π_i of taking part in a
    round, known before anything is drawn; None where there are none.
    """

    inclusion: NDArray[np.float64] | None
    varies = False  # the number of clients differs from round to round

    def __init__(self, presence: Presence, fraction: float, sizes: NDArray[np.int64], seed: int) -> None:
        self.n, self.seed = len(sizes), seed
        self.most = max(1, round(fraction * self.n))
        self.inclusion = np.full(self.n, self.most / self.n)
        self._everyone = np.arange(self.n)

    @property
    def partial(self) -> bool:
        """Whether some clients may be missing in a round."""
        return self.most < self.n

    def __call__(self, t: int, losses: Losses) -> Clients:
        """The clients of round t, in order of id."""
        if self.most == self.n:
            return self._everyone
        return drawn(generator(self.seed, "participation", t), self.n, self.most)

    def idle(self, rounds: int, fewest: int) -> int:
        """In how many rounds fewer clients than ``fewest`` were there."""
        return 0


class Markov(Uniform):
    """Every client comes and goes by itself, and whoever is there takes part.

    A client with rate p is there in a share p of all rounds. It leaves with probability 1/spell after a round, and
    comes back with probability p / ((1 − p) spell), so its absences last (1 − p)/p · spell rounds in the mean. In the
    first round it is there with probability p, and so the chance is p in every round. With a spread s > 0 the rates
    are drawn from Beta(pν, (1−p)ν) with ν = 1/s − 1, which has mean p and variance s p (1 − p); none is below 0.01.
    Absences last a round at least: a client with a rate so high that they would be shorter has longer spells.
    """

    varies = True

    def __init__(self, presence: Presence, fraction: float, sizes: NDArray[np.int64], seed: int) -> None:
        super().__init__(presence, fraction, sizes, seed)
        self.most = self.n
        rates = np.full(self.n, fraction)
        if presence.spread and fraction < 1:
            nu = 1 / presence.spread - 1
            rates = generator(seed, "rates").beta(fraction * nu, (1 - fraction) * nu, self.n)
            rates = rates.clip(min(LOWEST_RATE, fraction), 1.0)
        self.inclusion = self.rates = rates
        absent = np.maximum(1 - rates, 1e-12)
        self._leave = np.where(rates < 1, np.minimum(1 / presence.spell, absent / rates), 0.0)
        self._come = np.minimum(self._leave * rates / absent, 1.0)
        self._at, self._there = -1, np.zeros(self.n, dtype=bool)

    @property
    def partial(self) -> bool:
        return bool((self.rates < 1).any())

    def __call__(self, t: int, losses: Losses) -> Clients:
        """The clients that are there in round t. Later rounds are reached from the last one that was asked for."""
        if t < self._at:
            self._at = -1
        while self._at < t:
            self._at += 1
            draws = generator(self.seed, "availability", self._at).random(self.n)
            stays = np.where(self._there, 1 - self._leave, self._come)
            self._there = draws < (self.rates if self._at == 0 else stays)
        return self._there.nonzero()[0]

    def idle(self, rounds: int, fewest: int) -> int:
        return sum(len(self(t, _nobody_is_asked)) < fewest for t in range(rounds))


class BySize(Uniform):
    """k clients, client i with probability π_i = min(1, c · size_i), where c makes the sum of all π_i equal to k.

    Clients stand in a line in random order, each as long as its π_i, and one point in every unit of length is drawn at
    the same random place (systematic sampling). So k and the π_i hold exactly.
    """

    def __init__(self, presence: Presence, fraction: float, sizes: NDArray[np.int64], seed: int) -> None:
        super().__init__(presence, fraction, sizes, seed)
        self.inclusion = self._chances = inclusion_by_size(sizes, self.most)

    def __call__(self, t: int, losses: Losses) -> Clients:
        return by_chance(self._chances, generator(self.seed, "participation by size", t))


class PowerOfChoice(Uniform):
    """Candidates are drawn by size; those k of them take part whose losses at the broadcast model are largest.

    The losses are of the candidates' samples of the round, with the labels that they train on. So every round costs a
    forward pass of all candidates more, and every candidate's loss is shown to the server. Ties go to lower ids.
    """

    def __init__(self, presence: Presence, fraction: float, sizes: NDArray[np.int64], seed: int) -> None:
        super().__init__(presence, fraction, sizes, seed)
        asked = presence.candidates or 2 * self.most
        if asked < self.most:
            raise UserError(
                f"train.candidates = {asked}: {self.most} clients take part in a round; ask as many at least, or set a "
                "lower train.participation"
            )
        self._chances = inclusion_by_size(sizes, min(asked, self.n))
        self.inclusion = None  # it depends on the losses

    def __call__(self, t: int, losses: Losses) -> Clients:
        candidates = by_chance(self._chances, generator(self.seed, "candidates", t))
        order = np.argsort(-np.nan_to_num(losses(candidates), nan=np.inf), kind="stable")
        return np.sort(candidates[order[: self.most]])


MODELS: dict[str, type[Uniform]] = {
    "uniform": Uniform,
    "markov": Markov,
    "size": BySize,
    "power-of-choice": PowerOfChoice,
}


def participation(presence: Presence, fraction: float, sizes: NDArray[np.int64], seed: int) -> Uniform:
    """The model of that name, for clients of these sizes."""
    if presence.name not in MODELS:
        raise unknown("train.presence", presence.name, MODELS)
    return MODELS[presence.name](presence, fraction, sizes, seed)


def inclusion_by_size(sizes: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """π_i = min(1, c · size_i) with Σ π_i = count."""
    inclusion = np.zeros(len(sizes))
    certain = np.zeros(len(sizes), dtype=bool)
    while True:
        left = count - certain.sum()
        total = sizes[~certain].sum()
        inclusion[~certain] = left * sizes[~certain] / total if total else 0.0
        more = ~certain & (inclusion >= 1)
        if not more.any():
            return inclusion
        certain |= more
        inclusion[certain] = 1.0


def by_chance(inclusion: NDArray[np.float64], random: np.random.Generator) -> Clients:
    """As many places as the sum of the probabilities says, each with its own probability, in order."""
    order = random.permutation(len(inclusion))
    count = round(inclusion.sum())
    ends = np.cumsum(inclusion[order])
    ends *= count / ends[-1]
    places = np.searchsorted(ends, random.random() + np.arange(count), side="right")
    return np.unique(order[np.minimum(places, len(order) - 1)])


def _nobody_is_asked(clients: Clients) -> NDArray[np.float64]:
    raise AssertionError("losses are for the choice by loss alone")
