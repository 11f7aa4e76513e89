"""The step itself, w ← w − lr·d: the only place where parameters move."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fairmean.engine.net import Net


class InPlace:
    """A direction that backward passes left in the model's own gradients, tensor by tensor: nothing is copied."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self.pairs = net.with_gradients()

    def times(self, factor: Tensor) -> InPlace:
        """The direction multiplied by a number."""
        if self.pairs[1]:
            torch._foreach_mul_(self.pairs[1], factor.to(self._net.flat.dtype))
        return self

    def flat(self) -> Tensor:
        """The same as one vector."""
        return self._net.flat_gradient()


Direction = Tensor | InPlace


def times(direction: Direction, factor: Tensor) -> Direction:
    """The direction multiplied by a number."""
    return direction.times(factor) if isinstance(direction, InPlace) else direction * factor.to(direction.dtype)


def flattened(direction: Direction) -> Tensor:
    """The direction as one vector."""
    return direction.flat() if isinstance(direction, InPlace) else direction


def held(net: Net, direction: Direction) -> Direction:
    """The direction as far as parameters are trained: zero for frozen ones, whatever a rule or an optimiser says."""
    return direction if isinstance(direction, InPlace) else net.held(direction)


def descend(w: Tensor, direction: Direction, lr: float | Tensor) -> None:
    """w ← w − lr·d, in place. A step size on the device (one for each row of w) stays there."""
    if isinstance(direction, InPlace):
        move(*direction.pairs, lr)
    else:
        move([w], [direction], lr)


def move(parameters: Sequence[Tensor], direction: Sequence[Tensor], lr: float | Tensor) -> None:
    """The same for parameters in several tensors; in none, when every client is out and nothing has a gradient."""
    if not parameters:
        return
    with torch.no_grad():
        if isinstance(lr, Tensor):
            for w, d in zip(parameters, direction, strict=True):
                w.addcmul_(lr.to(w.dtype), d, value=-1)
        elif len(parameters) == 1:
            parameters[0].add_(direction[0], alpha=-lr)
        else:
            torch._foreach_add_(list(parameters), list(direction), alpha=-lr)
