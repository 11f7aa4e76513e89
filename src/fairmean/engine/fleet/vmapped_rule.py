"""One method applied to many runs by one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fairmean.rules.method import Method
from fairmean.rules.round import Access, Rung, State


def vectorised(method: Method, rows: Any, access: Access) -> Callable[..., tuple[Tensor, Any, State]]:
    """The method on many runs: (gradients, losses, entropies, lr, state), a run along the first axis of each.

    Trials at other models are of one run: a rule that wants them is not of this kind.
    """
    access = replace(access, trial=None, trust=None)

    def one(g: Tensor, f: Tensor, h: Tensor, lr: Any, state: State) -> tuple[Tensor, Tensor, State]:
        outcome = method.combine(g, f, rows.sizes, h, clients=rows.ids, lr=lr, state=state, access=access, looks=False)
        assert outcome.direction is not None
        weights = torch.zeros_like(f) if outcome.weights is None else outcome.weights
        return outcome.direction, weights, outcome.state

    return torch.func.vmap(one)


@dataclass(frozen=True)
class _Clients:
    sizes: Tensor
    ids: Tensor


_FEW = 64
_KNOWN: dict[Any, bool] = {}


def vectorises(method: Method, n: int, d: int, access: Access) -> bool:
    """Whether a method can be applied to many runs by one call: it never looks at a number on the host. Tried out."""
    if method.rung <= Rung.LOSSES:  # never sees a gradient, and may have very many clients
        d = 1
    elif not method.aggregator.requires:  # a few coordinates will do, and so will the fewest clients that a rule takes
        d = min(d, 1024)
        f = method.hyper.get("f", 0)
        n = min(n, max(_FEW, 4 * f + 4 if isinstance(f, int) else 0))
    key = (method, n, d)
    if key not in _KNOWN:
        _KNOWN[key] = _tried(method, n, d, access)
    return _KNOWN[key]


def _tried(method: Method, n: int, d: int, access: Access) -> bool:
    random = torch.Generator().manual_seed(0)
    g = torch.randn(2, n, d, generator=random, dtype=torch.float64)
    f = torch.rand(2, n, generator=random, dtype=torch.float64)
    rows = _Clients(torch.ones(n, dtype=torch.float64), torch.arange(n))
    try:
        state = {key: torch.stack([value, value]) for key, value in method.aggregator.init(n).items()}
        vectorised(method, rows, access)(g, f, f, torch.tensor([0.1, 0.2], dtype=torch.float64), state)
    except Exception:  # whatever a user's rule may say to tensors without values
        return False
    return True
