"""The figure by which a page's clients are judged: its name, its unit, how it is rounded, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fairmean.data.tasks import ACCURACY, Metric
from fairmean.report.numbers import NONE, fixed
from fairmean.text import decimals

_TITLES = {"rmse": "RMSE", "mae": "MAE", "r2": "R²", "auroc": "AUROC"}


def title(name: str) -> str:
    """The name of a figure as a heading has it.

    >>> title("rmse"), title("balanced_accuracy")
    ('RMSE', 'balanced accuracy')
    """
    return _TITLES.get(name, name.replace("_", " "))


@dataclass(frozen=True)
class Judged:
    """``digits`` and ``variance_digits`` are decimals; None lets every variance decide by its own size.

    >>> accuracy = Judged.of(ACCURACY)
    >>> accuracy.whole(69.649), accuracy.estimate(242.9, 52.13, "variance"), accuracy.signed(-3.21)
    ('69.6 %', ('243', '52'), '−3.2')
    >>> error = Judged.of(Metric("rmse", "the target's unit", higher=False), [0.031, 0.042], [0.00011])
    >>> error.whole(0.0314), error.estimate(0.00011, 0.00002, "variance"), error.is_better(-0.002, "worst")
    ('0.0314', ('0.000110', '0.000020'), True)
    """

    name: str
    unit: str
    higher: bool
    about: str
    digits: int
    variance_digits: int | None
    least: float
    """Differences below this are not worth an axis of their own."""

    @classmethod
    def of(cls, metric: Metric, figures: Iterable[float] = (), variances: Iterable[float] = ()) -> Judged:
        """The metric, rounded so that figures and variances of these sizes read well."""
        if metric.unit == "%":
            return cls(metric.name, "%", metric.higher, metric.about, 1, None, 4.0)
        sizes = [abs(value) for value in figures if math.isfinite(value) and value != 0]
        typical = sorted(sizes)[len(sizes) // 2] if sizes else 1.0
        digits, squared = decimals(sizes), decimals(variances)
        return cls(metric.name, "", metric.higher, metric.about, digits, squared, 0.04 * typical)

    @classmethod
    def in_page(cls, data: dict[str, Any]) -> Judged:
        """As a page's data has it."""
        return cls(**{key: value for key, value in data["judged"].items() if key != "title"})

    def plain(self) -> dict[str, Any]:
        """For a page's data."""
        return {**asdict(self), "title": self.title}

    @property
    def title(self) -> str:
        """What it is called: accuracy, or RMSE."""
        return title(self.name)

    @property
    def is_share(self) -> bool:
        """Whether it is a percentage, which lies between 0 and 100."""
        return self.unit == "%"

    @property
    def most(self) -> float:
        """What it cannot exceed."""
        return 100.0 if self.is_share else math.inf

    @property
    def axis(self) -> str:
        """What stands after the name of a client at an axis."""
        return "%" if self.is_share else self.title

    @property
    def heading(self) -> str:
        """What it is, for the beginning of a caption."""
        if self.is_share:
            return f"Test {self.title}"
        better = "more is better" if self.higher else "less is better"
        return f"{self.title} in the target’s unit ({self.about.removeprefix('the ')}; {better})"

    def number(self, value: float | None) -> str:
        """A figure without its unit."""
        return fixed(value, self.digits)

    def whole(self, value: float | None) -> str:
        """A figure with its unit."""
        text = self.number(value)
        return f"{text} %" if self.is_share and text != NONE else text

    def signed(self, value: float | None, metric: str = "worst") -> str:
        """A difference with its sign."""
        return self.estimate(value, None, metric, sign=True)[0]

    def estimate(self, mean: float | None, half: float | None, metric: str, *, sign: bool = False) -> tuple[str, str]:
        """A figure and half its interval, both with the same decimals; the second is empty where there is no interval.

        ``sign``: it is a difference, and says its sign.
        """
        if mean is None or not math.isfinite(mean):
            return NONE, ""
        known = half is not None and math.isfinite(half)
        digits = self.digits
        if metric == "variance":
            largest = max(abs(mean), half if half is not None and known else 0.0)
            digits = self.variance_digits if self.variance_digits is not None else 0 if largest >= 9.95 else 1
        return fixed(mean, digits, sign=sign), fixed(half, digits) if known else ""

    def more_is_better(self, metric: str) -> bool:
        """Whether a larger value of a metric over clients is the better one; of a variance it never is."""
        return self.higher and metric != "variance"

    def is_better(self, difference: float, metric: str) -> bool:
        """Whether a difference is for the better."""
        return difference != 0 and (difference > 0) == self.more_is_better(metric)

    def gain(self, difference: float, metric: str) -> float:
        """A difference that is positive where it is for the better."""
        return difference if self.more_is_better(metric) else -difference


__all__ = ["ACCURACY", "Judged", "Metric", "title"]
