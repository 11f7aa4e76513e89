"""One round as a rule sees it: exactly what its rung of the ladder allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

from torch import Tensor

State = dict[str, Tensor]
"""What a rule remembers between rounds; empty for most. Saved in checkpoints."""


class Rung(IntEnum):
    """The ladder: what the server must see. It is the cost ladder and the privacy ladder at once."""

    SUM = 0
    LOSSES = 1
    GRAM = 2
    COORDINATES = 3
    EXTRA = 4

    @property
    def sees(self) -> str:
        """In words."""
        return ("the sum only", "losses", "inner products", "every message", "extra data or trial losses")[self]


class Round:
    """One round as a rule sees it: exactly what its rung allows; looking at more is an error.

    ``sizes`` (n,) sample counts · ``clients`` (n,) ids of those taking part · ``lr`` · ``losses`` (n,) ·
    ``means`` what clients measured, by name, as far as the rule ``reads`` it ·
    ``squared_norms`` (n,), ``gram`` M (n×n) and ``squared_distances`` (n×n) of messages, float64, computed when looked
    at · ``times(λ)`` = Mλ and ``distances_to(λ)`` = ‖v_i − Σλ_j v_j‖, without forming M when there are many clients ·
    ``messages`` (n×d) · ``layers`` column slices, one per layer · ``output`` (n×K×p) the rows of the output layer ·
    ``trial(λ, step)`` the clients' losses at w − step·Σλ_i v_i · ``trust(λ, step)`` the loss there on the server's own
    clean data (λ None: at w).
    """

    sizes: Tensor
    clients: Tensor
    lr: float
    losses: Tensor
    means: State
    squared_norms: Tensor
    gram: Tensor
    squared_distances: Tensor
    times: Callable[[Tensor], Tensor]
    messages: Tensor
    layers: tuple[slice, ...]
    output: Tensor
    trial: Callable[[Tensor, float], Tensor]
    trust: Callable[[Tensor | None, float], Tensor]

    def __init__(self, lazy: dict[str, Callable[[], Any]] | None = None, **seen: Any) -> None:
        self.__dict__.update(seen, _lazy=lazy or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._lazy:
            known = Round.__annotations__
            if name not in known:
                close = get_close_matches(name, known, 1)
                hint = f"did you mean round.{close[0]}?" if close else f"there are {', '.join(sorted(known))}"
                raise AttributeError(f"a round has no '{name}'; {hint}")
            raise AttributeError(f"round.{name} is not visible on this rule's rung; declare a higher one")
        value = self.__dict__[name] = self._lazy[name]()
        return value

    def distances_to(self, weights: Tensor) -> Tensor:
        """‖v_i − Σ_j λ_j v_j‖ for every i."""
        inner = self.times(weights)
        return (self.squared_norms - 2 * inner + weights @ inner).clamp(min=0).sqrt()


@dataclass(frozen=True)
class Access:
    """What a rule beyond the losses can reach of the round; the engine fills it in, or a caller of ``aggregate``.

    ``trial(direction, step)``: every client's loss at w − step·direction. ``trust(direction, step)``: the loss there on
    clean data of the server. ``output``: the output layer's rows of every message, n×K×p.
    """

    layers: tuple[slice, ...] = ()
    output: Callable[[Tensor], Tensor] | None = None
    trial: Callable[[Tensor, float], Tensor] | None = None
    trust: Callable[[Tensor | None, float], Tensor] | None = None


NO_ACCESS = Access()
