"""Numbers as people read them: few digits, a true minus sign, and nothing that pretends to more precision."""

from __future__ import annotations

import math

NONE = "–"


def percent(value: float | None) -> str:
    """An accuracy in percent, with one decimal.

    >>> percent(69.649)
    '69.6'
    """
    return NONE if value is None or not math.isfinite(value) else f"{value:.1f}"


def estimate(mean: float | None, half: float | None, metric: str, *, sign: bool = False) -> tuple[str, str]:
    """A figure and half its interval, both with the same decimals: one, or for a large variance none.

    ``sign``: it is a difference, and says its sign. The second text is empty where there is no interval.

    >>> estimate(242.9, 52.13, "variance"), estimate(-3.21, 2.14, "worst", sign=True)
    (('243', '52'), ('−3.2', '2.1'))
    """
    if mean is None or not math.isfinite(mean):
        return NONE, ""
    known = half is not None and math.isfinite(half)
    largest = max(abs(mean), half if half is not None and known else 0.0)
    digits = 0 if metric == "variance" and largest >= 9.95 else 1
    text = f"{abs(mean) if sign else mean:,.{digits}f}".replace("-", "−")
    if sign and any(digit in text for digit in "123456789"):
        text = ("−" if mean < 0 else "+") + text
    return text, f"{half:,.{digits}f}" if known else ""


def signed(value: float | None, metric: str = "worst") -> str:
    """A difference with its sign.

    >>> signed(-3.21)
    '−3.2'
    """
    return estimate(value, None, metric, sign=True)[0]


def probability(p: float) -> str:
    """A p-value for a sentence.

    >>> probability(0.0000012), probability(0.0312)
    ('p < 0.001', 'p = 0.031')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    >>> counted(1, "draw"), counted(1200, "client")
    ('1 draw', '1,200 clients')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
