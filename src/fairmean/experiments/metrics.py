"""How well, and how evenly, the clients are served, from one figure of each: its accuracy in %, or its error.

A variance has the square of the figure's unit, such as %².
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.data.tasks import ACCURACY, Metric

Values = NDArray[np.float64]


def average(x: Values) -> float:
    """Mean over clients."""
    return float(x.mean())


def variance(x: Values) -> float:
    """Population variance, (1/n) Σ (x_i − x̄)²."""
    return float(x.var())


def worst(x: Values, higher: bool = True) -> float:
    """The lowest value, or the highest where less is better."""
    return float(x.min() if higher else x.max())


def worst_tenth(x: Values, higher: bool = True) -> float:
    """Mean of the tenth of the clients that is served worst (at least one)."""
    order = np.sort(x) if higher else np.sort(x)[::-1]
    return float(order[: math.ceil(len(x) / 10)].mean())


def jain(x: Values) -> float:
    """(Σx)² / (n Σx²): 1 when all are equal, 1/n when one has everything."""
    squares = float((x**2).sum())
    return float(x.sum()) ** 2 / (len(x) * squares) if squares else 1.0


def gini(x: Values) -> float:
    """Σ_ij |x_i − x_j| / (2 n Σx): 0 when all are equal."""
    n, total = len(x), float(x.sum())
    rank = np.arange(1, n + 1)
    return float(((2 * rank - n - 1) * np.sort(x)).sum() / (n * total)) if total else 0.0


METRICS: dict[str, Callable[..., float]] = {
    "average": average,
    "variance": variance,
    "worst": worst,
    "worst_tenth": worst_tenth,
    "jain": jain,
    "gini": gini,
}
_ORIENTED = ("worst", "worst_tenth")


def summarise(figures: Values, regular: NDArray[np.bool_], higher: bool = True) -> dict[str, float]:
    """Every metric over the regular clients that have test data; NaN when none has. ``higher``: more is better."""
    x = figures[regular & ~np.isnan(figures)]
    if not len(x):
        return dict.fromkeys(METRICS, math.nan)
    return {name: metric(x, higher) if name in _ORIENTED else metric(x) for name, metric in METRICS.items()}


def _listed(values: Values) -> list[float | None]:
    """As JSON has it, which knows no NaN."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def finished(
    figures: Values,
    own_figures: Values,
    regular: NDArray[np.bool_],
    loss_dispersion: float = math.nan,
    warning: str | None = None,
    what: Metric = ACCURACY,
    details: Mapping[str, Values] | None = None,
    validation: Values | None = None,
) -> dict[str, Any]:
    """The summary of a run that came to its end, from the clients' figures at its final model.

    ``details`` are further figures of every client, and ``validation`` are the first ones on samples held out from
    training, where there are such samples.
    """
    tested, poisoned = ~regular & ~np.isnan(figures), None
    if tested.any():
        poisoned = {"clean_average": average(figures[tested]), "own_average": average(own_figures[tested])}
    held_out = {} if validation is None else {"validation": summarise(validation, regular, what.higher)}
    return {
        "status": "finished",
        **({} if what == ACCURACY else {"metric": what.name}),
        **summarise(figures, regular, what.higher),
        "loss_dispersion": loss_dispersion,
        "poisoned": poisoned,
        "without_test_data": int(np.isnan(figures).sum()),
        **held_out,
        what.name: figures.tolist(),
        f"own_{what.name}": own_figures.tolist(),
        "regular": regular.tolist(),
        "clients": {name: _listed(values) for name, values in (details or {}).items()},
        **({"warning": warning} if warning else {}),
    }
