"""The claims of docs/claims.md as comparisons, and their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fairmean.experiments.statistics import Difference, holm, paired
from paper import paper
from paper.paper import METRICS

SEVEN = tuple(paper.FASHION_MNIST)
SIX = tuple(name for name in SEVEN if name != "fairmean")
ATTACKED = ("random", "random_class", "pairwise")
EVERY = ("none", *ATTACKED)
BETTER = {"average": 1, "variance": -1, "worst": 1}
THREE_POISONED = "pairwise, δ = 0.3"
EQUAL = "fairmean-equal"
"""FairMean's tuned κ in the normalised form at Mean's tuned step: it differs from Mean by the weighting alone."""

Values = Callable[[str, str, str], NDArray[np.float64] | None]
"""(method, attack, metric) → one value per draw, or None where it was not run."""


@dataclass(frozen=True)
class Comparison:
    """x is better than y in this metric under this attack, when ``plus`` is added to x."""

    x: str
    y: str
    metric: str
    attack: str
    plus: float = 0.0

    @property
    def sign(self) -> int:
        """Of x − y, if x is better."""
        return BETTER[self.metric]


@dataclass(frozen=True)
class Claim:
    """Some comparisons that should all come out as claimed."""

    name: str
    text: str
    comparisons: tuple[Comparison, ...]


def _all(
    x: str, ys: Iterable[str], metrics: Iterable[str], attacks: Iterable[str], plus: float = 0.0
) -> tuple[Comparison, ...]:
    return tuple(Comparison(x, y, m, a, plus) for y, m, a in product(ys, metrics, attacks))


CLAIMS = (
    Claim(
        "P1",
        "Without attack, FairMean is fairer than the average objective",
        _all("fairmean", ("mean", "fedavg"), ("variance", "worst"), ("none",)),
    ),
    Claim(
        "P2",
        "Under attack, FairMean has the lowest variance of the seven",
        _all("fairmean", SIX, ("variance",), ATTACKED),
    ),
    Claim(
        "P3",
        "Under attack, FairMean has the highest worst accuracy of the seven",
        _all("fairmean", SIX, ("worst",), ATTACKED),
    ),
    Claim("P4", "FairMean's average stays within 2.5 points", _all("fairmean", SIX, ("average",), EVERY, plus=2.5)),
    Claim(
        "P5",
        "The bound limits what unbounded weights amplify",
        _all("fairmean", ("qffl", "term+"), ("worst",), ATTACKED),
    ),
    Claim(
        "P6",
        "Screening and trimming discard what fairness needs",
        _all("fairmean", ("h-nobs", "qffl+cwtm"), ("worst",), ATTACKED),
    ),
    Claim(
        "P7",
        "Mean does better than robust aggregation under label poisoning",
        _all("mean", ("median", "cwtm", "krum", "rfa", "faba"), ("average",), ATTACKED),
    ),
    Claim(
        "P8",
        "With three poisoned clients FairMean is fairer than q-FFL",
        _all("fairmean", ("qffl",), ("variance", "worst"), (THREE_POISONED,)),
    ),
    Claim(
        "S1",
        "Without attack, split is fairer than Mean",
        _all("fairmean-split", ("mean",), ("variance", "worst"), ("none",)),
    ),
    Claim(
        "S2",
        "Under pairwise and random_class, split beats Mean",
        _all("fairmean-split", ("mean",), METRICS, ("pairwise", "random_class")),
    ),
    Claim("S3", "Under random, split beats Mean", _all("fairmean-split", ("mean",), METRICS, ("random",))),
    Claim(
        "S4",
        "Split beats distrust alone (TERM, t < 0)",
        _all("fairmean-split", ("term-",), ("worst",), ATTACKED)
        + _all("fairmean-split", ("term-",), ("variance",), ("none",)),
    ),
    Claim("S5", "Split beats FairMean under attack", _all("fairmean-split", ("fairmean",), METRICS, ATTACKED)),
)
FASHION_MNIST_ONLY = ("P7", "P8")
"""Claims on methods and an attack that are not run on CIFAR-10."""

QUESTIONS = (
    Claim("Q1", "What FairMean's weighting adds over Mean at an equal step", _all(EQUAL, ("mean",), METRICS, EVERY)),
    Claim("Q2", "FairMean against Mean, each at its own step", _all("fairmean", ("mean",), METRICS, EVERY)),
)


@dataclass(frozen=True)
class Outcome:
    """A comparison with its difference and corrected p-value."""

    comparison: Comparison
    difference: Difference
    p: float

    @property
    def as_claimed(self) -> bool:
        """The sign of the mean difference."""
        return self.difference.mean * self.comparison.sign > 0

    @property
    def significant(self) -> bool:
        """At 5 %, corrected."""
        return self.p < 0.05


@dataclass(frozen=True)
class Verdict:
    """``word``: holds, leans, fails or open (docs/claims.md); incomplete where comparisons are still to be run."""

    claim: Claim
    outcomes: tuple[Outcome, ...]
    word: str

    @property
    def borne_out(self) -> int:
        """How many comparisons are as claimed, significantly."""
        return sum(o.as_claimed and o.significant for o in self.outcomes)


def judge(claims: Sequence[Claim], values: Values, ranks: bool = False) -> list[Verdict]:
    """These claims of one data set, their p-values (of the t-test, or of signed ranks) corrected together.

    A comparison of several claims counts once; one that was not run yet counts too, with p = 1.
    """
    family = list(dict.fromkeys(c for claim in claims for c in claim.comparisons))
    found: dict[Comparison, Difference] = {}
    for c in family:
        x, y = values(c.x, c.attack, c.metric), values(c.y, c.attack, c.metric)
        if x is not None and y is not None:
            found[c] = paired(x, y, c.plus)
    p = {c: (d.ranks if ranks else d.p) for c, d in found.items()}
    corrected = dict(zip(family, holm([p.get(c, 1.0) for c in family]), strict=True))
    verdicts = []
    for claim in claims:
        mine = tuple(Outcome(c, found[c], corrected[c]) for c in claim.comparisons if c in found)
        verdicts.append(Verdict(claim, mine, _word(mine, len(claim.comparisons))))
    return verdicts


def _word(outcomes: Sequence[Outcome], registered: int) -> str:
    if any(not o.as_claimed and o.significant for o in outcomes):
        return "fails"
    if len(outcomes) < registered:
        return "incomplete"
    if all(o.as_claimed and not o.difference.lost for o in outcomes):
        return "holds" if all(o.significant for o in outcomes) else "leans"
    return "open"
