"""The reference round: plain PyTorch, one client after the other, as the paper's algorithm is printed.

Every fast path is tested equal to this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from fairmean.engine.batch import Batch
from fairmean.engine.net import Net
from fairmean.rules.method import Method, Outcome
from fairmean.rules.round import Access, State


def reference_round(
    net: Net, steps: Sequence[Batch], method: Method, lr: float, local_lr: float, state: State, access: Access
) -> tuple[Tensor, Outcome]:
    """(losses, outcome) of one round; ``steps`` holds one batch per local step."""
    w = net.flat.clone()
    names = [name for name, _ in net.model.named_parameters()]
    gradients, losses, entropies = [], [], []
    for k in range(len(steps[0].clients)):
        w_k = w.clone()
        for step, batch in enumerate(steps):
            rows = batch.part(k, k + 1)
            parameters = [view.clone().requires_grad_() for view in net.views(w_k)]
            net.mask(batch.rows[rows], batch.key)
            logits = functional_call(net.model, dict(zip(names, parameters, strict=True)), (batch.x[rows],))
            y = batch.y[rows]
            if batch.dynamic is not None:
                y = torch.where(batch.dynamic[rows], logits.detach().argmin(1), y)
            losses_k = method.objective.losses(logits, y)
            t = method.objective.tilt
            loss = losses_k.mean() if t == 0 else (torch.logsumexp(t * losses_k, 0) - math.log(len(y))) / t
            gradient = torch.empty_like(w_k)
            parts = torch.autograd.grad(loss, parameters, allow_unused=True)
            for view, part in zip(net.views(gradient), parts, strict=True):
                view.copy_(torch.zeros_like(view) if part is None else part)
            if step == 0:
                p = logits.detach().softmax(1)
                losses.append(loss.detach().double())
                entropies.append(-(p * p.log()).nan_to_num().sum(1).mean().double())
            if len(steps) == 1:
                gradients.append(gradient)
            else:
                w_k = w_k - local_lr * gradient
        if len(steps) > 1:
            gradients.append((w - w_k) / local_lr)
    first = steps[0]
    outcome = method.combine(
        torch.stack(gradients),
        torch.stack(losses),
        first.sizes,
        torch.stack(entropies),
        clients=first.ids,
        lr=lr,
        state=state,
        access=access,
    )
    return torch.stack(losses), outcome
