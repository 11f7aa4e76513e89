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


def sized(value: float | None) -> str:
    """A figure of any size with about three digits, as a variance needs it.

    >>> sized(134.81), sized(82.98), sized(1234.5)
    ('135', '83.0', '1,234')
    """
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:,.{digits}f}".replace("-", "−")


def signed(value: float | None, metric: str) -> str:
    """A difference with its sign, in the digits of its metric.

    >>> signed(-3.21, "worst")
    '−3.2'
    """
    if value is None or not math.isfinite(value):
        return NONE
    text = sized(abs(value)) if metric == "variance" else percent(abs(value))
    if not any(digit in text for digit in "123456789"):
        return text
    return ("−" if value < 0 else "+") + text


def plain(value: float | None, metric: str) -> str:
    """A figure in the digits of its metric."""
    return sized(value) if metric == "variance" else percent(value)


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
