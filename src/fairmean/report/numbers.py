"""Numbers as people read them: few digits, a true minus sign, and nothing that pretends to more precision."""

from __future__ import annotations

import math

NONE = "–"
_LARGE, _FINE = 1e7, 6  # a number as large as this, or with more decimals, is written with a power of ten
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def fixed(value: float | None, digits: int, *, sign: bool = False) -> str:
    """A number with so many decimals. ``sign``: it is a difference, and says its sign unless it is shown as zero.

    >>> fixed(69.649, 1), fixed(-0.0312, 4, sign=True), fixed(0.01, 1, sign=True), fixed(3.2e9, 0), fixed(5.64e-5, 7)
    ('69.6', '−0.0312', '0.0', '3.20·10⁹', '5.64·10⁻⁵')
    """
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(value)
    text = _power(size) if size >= _LARGE or (digits > _FINE and size) else f"{size:,.{digits}f}"
    if not any(digit in text for digit in "123456789"):
        return text
    return ("−" if value < 0 else "+" if sign else "") + text


def _power(size: float) -> str:
    mantissa, exponent = f"{size:.2e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(_RAISED)}"


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
