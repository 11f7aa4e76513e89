"""One round of a method on bare tensors."""

from __future__ import annotations

from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from fairmean.engine.cohort import Gathered
from fairmean.engine.server import Server
from fairmean.errors import UserError
from fairmean.rules.context import Context, Means, bare_context
from fairmean.rules.method import Method
from fairmean.rules.round import NO_ACCESS, Access, State


class Aggregated(NamedTuple):
    """One round: the direction, the weight of each gradient in it (None if it is no weighted sum), the next state."""

    direction: Tensor
    weights: Tensor | None
    state: State


@overload
def aggregate(
    method: Method | str,
    gradients: Tensor,
    losses: Tensor,
    sizes: Tensor | None = None,
    entropies: Tensor | None = None,
    *,
    lr: float = 1.0,
    access: Access = NO_ACCESS,
    state: None = None,
    details: Literal[False] = False,
) -> Tensor: ...
@overload
def aggregate(
    method: Method | str,
    gradients: Tensor,
    losses: Tensor,
    sizes: Tensor | None = None,
    entropies: Tensor | None = None,
    *,
    lr: float = 1.0,
    access: Access = NO_ACCESS,
    state: State | None = None,
    details: bool = False,
) -> Tensor | Aggregated: ...
def aggregate(
    method: Method | str,
    gradients: Tensor,
    losses: Tensor,
    sizes: Tensor | None = None,
    entropies: Tensor | None = None,
    *,
    lr: float = 1.0,
    access: Access = NO_ACCESS,
    state: State | None = None,
    details: bool = False,
) -> Tensor | Aggregated:
    """The direction of one round from bare tensors: gradients n×d, losses n; then w ← w − lr·direction.

    ``method`` is a method, or a text such as "fairmean:kappa=4". ``access`` gives what a few rules need beside: layers
    (fedlf), output rows (lfighter), trial losses (fedmdfg), a clean loss (bant).

    >>> gradients = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> aggregate("fairmean:kappa=1", gradients, losses=torch.tensor([1.0, 0.0]))
    tensor([0.7500, 0.5000])

    **Memory.** Some rules remember something from round to round (centered-clipping, bant, fedmdfg). Without ``state``
    their memory is fresh, as in a first round. Pass ``state={}`` in the first round and what came back in the next
    ones; then, or with ``details=True``, the answer is (direction, weights, state):

    >>> direction, weights, state = aggregate("centered-clipping", gradients, torch.ones(2), state={})
    >>> direction, weights, state = aggregate("centered-clipping", gradients, torch.ones(2), state=state)
    """
    server = Server(method)
    if server.method.needs_samples or server.method.aggregator.reads:
        raise UserError(
            f"{server.method.name}: its clients measure their samples, so gradients and losses are not enough; use "
            "fairmean.Server with fairmean.gathered(…, means=…, context=…)"
        )
    if not (state is None or isinstance(state, dict)):
        raise UserError(f"state = {state!r}: pass {{}} in the first round, and then what came back")
    n = _check_tensors(server.method, gradients, losses, sizes, entropies)
    entropies = entropies if server.method.needs_entropy else None
    clients = gathered(gradients, losses, sizes, entropies, access=access)
    server.method.check(n, access)
    known = server.init(n, gradients.shape[1], device=gradients.device)
    update = server.update(clients, known._replace(rule=state or known.rule), lr)
    assert isinstance(update.direction, Tensor)
    if state is None and not details:
        return update.direction
    return Aggregated(update.direction, update.weights, update.state.rule)


def gathered(
    gradients: Tensor,
    losses: Tensor,
    sizes: Tensor | None = None,
    entropies: Tensor | None = None,
    *,
    means: Means | None = None,
    context: Context | None = None,
    access: Access = NO_ACCESS,
) -> Gathered:
    """A cohort of bare tensors, for ``Server.update``: gradients n×d, losses n, and what else the method needs.

    ``means`` are what clients measured, by name; ``context`` is what they knew. Left out, the clients are 0 … n−1 of
    equal size in a first round.
    """
    device = gradients.device
    sizes = torch.ones(len(gradients), device=device) if sizes is None else sizes
    known = dict(means or {})
    if entropies is not None:
        known["entropy"] = entropies.detach().double()
    return Gathered(gradients, losses.detach().double(), known, context or bare_context(sizes.double()), access)


def _check_tensors(
    method: Method, gradients: Tensor, losses: Tensor, sizes: Tensor | None, entropies: Tensor | None
) -> int:
    """The number of clients; raises if something is missing, has another shape, or is not a number."""
    given = {"gradients": gradients, "losses": losses, "sizes": sizes, "entropies": entropies}
    for name, values in given.items():
        if values is not None and not isinstance(values, Tensor):
            raise UserError(f"{name}: expected a tensor, got a {type(values).__name__}; use torch.as_tensor")
    n = len(gradients) if gradients.dim() else 0
    if gradients.dim() != 2 or n == 0:
        raise UserError(
            f"gradients: expected n×d with n ≥ 1, got shape {tuple(gradients.shape)}; stack one row per client"
        )
    for name, values in given.items():
        if name != "gradients" and values is not None and values.shape != (n,):
            raise UserError(f"{name}: expected one number per client, shape ({n},), got {tuple(values.shape)}")
    if sizes is None and method.aggregator.needs_sizes:
        raise UserError(f"{method.name} weights clients by their sample counts; pass sizes=")
    if method.needs_entropy and entropies is None:
        raise UserError(f"{method.name} needs each client's mean predictive entropy; pass entropies=")
    good = gradients.isfinite().all(1) & losses.isfinite() & (losses >= 0)
    for values in (sizes, entropies):
        good &= True if values is None else values.isfinite()
    if sizes is not None:
        good &= sizes > 0
    if not good.all():
        client = int((~good).nonzero()[0])
        raise UserError(
            f"client {client} sent something NaN or infinite, a negative loss or no samples; drop it before aggregating"
        )
    return n
