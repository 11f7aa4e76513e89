"""From evidence to verdicts, at a rate of false alarms that the user sets.

Regular clients differ, too: in what they measure, in who comes to them, in chance. So a client's mean excess ẽ_i is
compared with those of all clients. Their centre μ is the median, and their spread σ comes from the median distance to
it (robust against up to about a third of wrong clients), less what sampling explains, drawn towards a floor where there
are few clients. With the standard error s_i of a client's own samples, client i is contradicted if

    ẽ_i > μ + q · √(σ² + s_i²)

q is the quantile of Student's t with few degrees of freedom, since regular clients have a heavy upper tail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fairmean.experiments.audit_folds import Floats

CONTRADICTED = "contradicted"
SERVED_BADLY = "served badly"
TOO_LITTLE = "too little data"
NOTHING = "nothing unusual"
VERDICTS = (CONTRADICTED, SERVED_BADLY, TOO_LITTLE, NOTHING)
DEGREES = 3
PRIOR = 4.0
"""The floor of the spread counts as much as so many clients."""
SPREAD = 0.12
POWER = 0.8
WRONG = 0.5
_TO_SIGMA = 1.4826  # from the median distance to the spread of a Gaussian


@dataclass(frozen=True)
class Limits:
    """Centre and spread of the regular clients, and how many spreads from the centre an alarm is raised."""

    centre: float
    spread: float
    quantile: float

    def of(self, errors: Floats) -> Floats:
        """The value above which a client with this standard error is an alarm."""
        return np.asarray(self.centre + self.quantile * np.sqrt(self.spread**2 + errors**2))


def limits(means: Floats, errors: Floats, rate: float) -> Limits:
    """What is usual among these clients; ``rate``: of regular clients, so many may be called unusual by mistake."""
    known = np.isfinite(errors)
    means, errors = (means[known], errors[known]) if known.sum() >= 2 else (means, np.zeros_like(means))
    centre = float(np.median(means))
    total = _TO_SIGMA * float(np.median(np.abs(means - centre)))
    between = max(0.0, total**2 - float(np.median(errors**2)))
    spread = np.sqrt((PRIOR * SPREAD**2 + len(means) * between) / (PRIOR + len(means)))
    return Limits(centre, float(spread), float(stats.t.ppf(1 - rate, DEGREES)))


class Judged(NamedTuple):
    """Every client's verdict, whether wrong labels would have shown, and what is usual."""

    verdicts: list[str]
    could_tell: NDArray[np.bool_]
    usual: Limits


def verdicts(
    excess: Floats,
    errors: Floats,
    loss: Floats,
    loss_errors: Floats,
    if_wrong: Floats,
    counts: NDArray[np.int64],
    rate: float,
    judge_service: bool = True,
) -> Judged:
    """A verdict for every client.

    *Served badly*: no alarm, but its out-of-sample loss is as unusual as an excess would have to be. *Too little data*:
    wrong labels would not have shown. ``if_wrong`` is the excess that the samples would have with other labels, and
    ``counts`` how many samples there are.
    """
    usual = limits(excess, errors, rate)
    alarm = excess > usual.of(errors)
    badly = loss > limits(loss, loss_errors, rate).of(loss_errors)
    could_tell = _could_tell(excess, errors, if_wrong, counts, usual)
    named = [
        CONTRADICTED
        if alarm[i]
        else SERVED_BADLY
        if badly[i] and judge_service
        else NOTHING
        if could_tell[i]
        else TOO_LITTLE
        for i in range(len(excess))
    ]
    return Judged(named, could_tell, usual)


def _could_tell(
    excess: Floats, errors: Floats, if_wrong: Floats, counts: NDArray[np.int64], usual: Limits
) -> NDArray[np.bool_]:
    """Whether an alarm would be raised in four of five cases if each label were wrong with probability one half.

    The excess would then be half way to ``if_wrong``, and its standard error larger, since it is chance which labels
    are wrong.
    """
    gap = WRONG * (if_wrong - excess)
    wider = np.sqrt(errors**2 + (1 - WRONG) / WRONG * gap**2 / counts)
    return np.asarray(excess + gap > usual.of(wider) + stats.norm.ppf(POWER) * wider)
