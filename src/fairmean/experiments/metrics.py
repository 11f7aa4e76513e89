"""How well, and how evenly, the clients are served. Accuracies are in percent, so variances are in %²."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def average(x: Values) -> float:
    """Mean over clients."""
    return float(x.mean())


def variance(x: Values) -> float:
    """Population variance, (1/n) Σ (x_i − x̄)²."""
    return float(x.var())


def worst(x: Values) -> float:
    """The lowest value."""
    return float(x.min())


def worst_tenth(x: Values) -> float:
    """Mean of the lowest tenth of the clients (at least one)."""
    return float(np.sort(x)[: math.ceil(len(x) / 10)].mean())


def jain(x: Values) -> float:
    """(Σx)² / (n Σx²): 1 when all are equal, 1/n when one has everything."""
    squares = float((x**2).sum())
    return float(x.sum()) ** 2 / (len(x) * squares) if squares else 1.0


def gini(x: Values) -> float:
    """Σ_ij |x_i − x_j| / (2 n Σx): 0 when all are equal."""
    n, total = len(x), float(x.sum())
    rank = np.arange(1, n + 1)
    return float(((2 * rank - n - 1) * np.sort(x)).sum() / (n * total)) if total else 0.0


METRICS: dict[str, Callable[[Values], float]] = {
    "average": average,
    "variance": variance,
    "worst": worst,
    "worst_tenth": worst_tenth,
    "jain": jain,
    "gini": gini,
}


def summarise(accuracy: Values, regular: NDArray[np.bool_]) -> dict[str, float]:
    """Every metric over the regular clients that have test data; NaN when none has."""
    x = accuracy[regular & ~np.isnan(accuracy)]
    return {name: metric(x) if len(x) else math.nan for name, metric in METRICS.items()}


def finished(
    accuracy: Values,
    own_accuracy: Values,
    regular: NDArray[np.bool_],
    loss_dispersion: float = math.nan,
    warning: str | None = None,
) -> dict[str, Any]:
    """The summary of a run that came to its end, from the accuracies of its final model."""
    tested, poisoned = ~regular & ~np.isnan(accuracy), None
    if tested.any():
        poisoned = {"clean_average": average(accuracy[tested]), "own_average": average(own_accuracy[tested])}
    return {
        "status": "finished",
        **summarise(accuracy, regular),
        "loss_dispersion": loss_dispersion,
        "poisoned": poisoned,
        "without_test_data": int(np.isnan(accuracy).sum()),
        "accuracy": accuracy.tolist(),
        "own_accuracy": own_accuracy.tolist(),
        "regular": regular.tolist(),
        **({"warning": warning} if warning else {}),
    }
