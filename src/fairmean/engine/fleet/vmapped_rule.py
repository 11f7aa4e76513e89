"""One method applied to many runs by one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fairmean.engine.cohort import Gathered, Told
from fairmean.engine.server import Server, ServerState
from fairmean.rules.context import Context
from fairmean.rules.method import Method
from fairmean.rules.round import Access, Rung, State

Mapped = Callable[..., Any]


def whole_rounds(server: Server, like: Context, access: Access) -> Mapped:
    """A server's round for many runs, a run along the first axis of each tensor.

    (gradients, losses, means, memory, state, lr) -> (direction, weights, state, memory); the rest of the context is as
    in ``like``. Trials at other models are of one run: a rule that wants them is not of this kind.
    """
    access = replace(access, trial=None, trust=None)

    def one(g: Tensor, f: Tensor, means: State, memory: State, state: ServerState, lr: Any) -> tuple[Any, ...]:
        context = replace(like, memory=memory, broadcast=state.broadcast, looks=False)
        update = server.update(Gathered(g, f, means, context, access, looks=False), state, lr)
        weights = torch.zeros_like(f) if update.weights is None else update.weights
        return update.direction, weights, update.state, update.memory

    return torch.func.vmap(one)


def coefficients(server: Server, like: Context) -> Mapped:
    """c with d = Σ c_i g_i, from losses alone: (losses, means, memory, state, lr) -> (c, state, memory)."""

    def one(f: Tensor, means: State, memory: State, state: ServerState, lr: Any) -> tuple[Any, ...]:
        weighed = server.weigh(Told(f, means, replace(like, memory=memory, broadcast=state.broadcast)), state, lr)
        return weighed.coefficients, ServerState(weighed.rule, state.optimiser, weighed.broadcast), weighed.memory

    return one


def run_by_run(call: Mapped) -> Mapped:
    """As ``vmap``, one run after the other: for calls that look at numbers."""

    def every(*arguments: Any) -> Any:
        runs = len(tree_leaves(arguments)[0])
        results = [call(*tree_map(lambda value, r=r: value[r], arguments)) for r in range(runs)]
        return tree_map(lambda *values: torch.stack(values), *results)

    return every


_FEW = 64
_KNOWN: dict[Any, bool] = {}


def vectorises(server: Server, n: int, d: int, classes: int, access: Access) -> bool:
    """Whether a method can be applied to many runs by one call: it never looks at a number on the host. Tried out."""
    method = server.method
    if method.rung <= Rung.LOSSES:  # never sees a gradient, and may have very many clients
        d = 1
    elif not method.aggregator.requires:  # a few coordinates will do, and so will the fewest clients that a rule takes
        d = min(d, 1024)
        f = method.hyper.get("f", 0)
        n = min(n, max(_FEW, 4 * f + 4 if isinstance(f, int) else 0))
    key = (method, server.optimiser, n, d, classes)
    if key not in _KNOWN:
        _KNOWN[key] = _tried(server, n, d, classes, access)
    return _KNOWN[key]


def _tried(server: Server, n: int, d: int, classes: int, access: Access) -> bool:
    random, method = torch.Generator().manual_seed(0), server.method

    def made(*shape: int) -> Tensor:
        return torch.rand(2, n, *shape, generator=random, dtype=torch.float64)

    like = Context(torch.zeros((), dtype=torch.float64), 1, torch.arange(n), torch.ones(n, dtype=torch.float64))
    try:
        start = server.init(n, d, classes, dtype=torch.float64)
        means = {key: made(*shape) for key, shape in method.rehearse(classes).items()}
        state, memory = ServerState(*map(_twice, start)), _twice(method.memory(n, classes))
        f, g = made(), torch.randn(2, n, d, generator=random, dtype=torch.float64)
        lr = torch.tensor([0.1, 0.2], dtype=torch.float64)
        whole_rounds(server, like, access)(g, f, means, memory, state, lr)
    except Exception:  # whatever a user's rule may say to tensors without values
        return False
    return True


def objective_vectorises(method: Method, classes: int) -> bool:
    """Whether the objective, too, can be asked about many runs at once."""
    key = (method.objective, method.needs_entropy, classes)
    if key not in _KNOWN:
        _KNOWN[key] = _asked(method, classes)
    return _KNOWN[key]


def _asked(method: Method, classes: int) -> bool:
    like = method.made_up_context(classes)

    def one(z: Tensor, y: Tensor, memory: State, broadcast: State) -> Any:
        context = replace(like, memory=memory, broadcast=broadcast)
        losses, weights = method.objective.losses(z, y, context), method.objective.weights(z, y, context)
        return losses, method.measure(z, y, context), losses if weights is None else weights

    logits, y = torch.zeros(2, 3, classes, dtype=torch.float64), (torch.arange(3) % classes).expand(2, 3)
    try:
        torch.func.vmap(one)(logits, y, _twice(like.memory), _twice(like.broadcast))
    except Exception:  # whatever a user's objective may say to tensors without values
        return False
    return True


def _twice(state: State) -> State:
    return {key: torch.stack([value, value]) for key, value in state.items()}
