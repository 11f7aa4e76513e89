"""Checks of single values, with errors that name the value and the remedy."""

from __future__ import annotations

from fairmean.errors import UserError


def as_float(name: str, value: float) -> float:
    """A number as a float; a whole number may be too large to be one."""
    try:
        return float(value)
    except OverflowError:
        raise UserError(f"{name}: this whole number is too large") from None


def at_least(name: str, value: float, low: float, why: str = "") -> None:
    """``low`` ≤ value < ∞."""
    if not low <= value < float("inf"):
        raise UserError(f"{name} = {value}: must be a finite number ≥ {low:g}{why and f' ({why})'}")


def within(name: str, value: float, low: float, high: float, why: str = "") -> None:
    """``low`` ≤ value ≤ ``high``."""
    if not low <= value <= high:
        raise UserError(f"{name} = {value}: must be between {low:g} and {high:g}{why and f' ({why})'}")
