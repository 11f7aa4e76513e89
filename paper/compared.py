"""Methods of the evidence compared: with a baseline, and as the claims want it."""

from __future__ import annotations

from itertools import product

from fairmean.experiments.statistics import Difference, holm, paired
from paper.claims import CLAIMS, EQUAL, FASHION_MNIST_ONLY, QUESTIONS, Claim, Verdict, judge
from paper.evidence import ATTACKS, Evidence
from paper.paper import METRICS
from paper.tuning import TUNING


def registered(dataset: str) -> list[Claim]:
    """The claims that are tested on a data set."""
    return [claim for claim in CLAIMS if dataset == "fashion-mnist" or claim.name not in FASHION_MNIST_ONLY]


def family(evidence: Evidence) -> int:
    """How many comparisons with one baseline there will be, when every method has been run."""
    return (len({*TUNING[evidence.dataset], EQUAL, *evidence.methods}) - 1) * len(ATTACKS) * len(METRICS)


def differences(evidence: Evidence, baseline: str) -> dict[tuple[str, str, str], tuple[Difference, float]]:
    """(method, attack, metric) → difference to the baseline, and its p-value corrected for the whole family."""
    found: dict[tuple[str, str, str], Difference] = {}
    for method, attack, metric in product(evidence.methods, ATTACKS, METRICS):
        x, y = evidence.values(method, attack, metric), evidence.values(baseline, attack, metric)
        if method != baseline and x is not None and y is not None:
            found[method, attack, metric] = paired(x, y)
    waiting = [1.0] * (family(evidence) - len(found))
    corrected = holm([*(d.p for d in found.values()), *waiting])
    return {key: (d, p) for (key, d), p in zip(found.items(), corrected, strict=False)}


def verdicts(evidence: Evidence, ranks: bool = False) -> list[Verdict]:
    """Of the claims, and of the questions: two families, corrected each on its own."""
    claims = registered(evidence.dataset)
    return [*judge(claims, evidence.values, ranks), *judge(QUESTIONS, evidence.values, ranks)]
