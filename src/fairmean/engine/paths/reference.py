"""The reference: plain PyTorch, one client after the other, as the paper's algorithm is printed.

Every other path is tested equal to this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from fairmean.data.poisoning import ADAPTIVE, FURTHEST
from fairmean.engine.batch import Batch
from fairmean.engine.cohort import Gathered
from fairmean.engine.local_step import LocalStep
from fairmean.engine.net import Net
from fairmean.rules.context import Context
from fairmean.rules.method import Method
from fairmean.rules.round import Access, State


def reference_cohort(
    net: Net, steps: Sequence[Batch], method: Method, context: Context, local: LocalStep, access: Access
) -> Gathered:
    """The round's clients, each trained in turn from w; ``steps`` holds one batch per local step.

    A client that takes fewer steps than others has no samples in the last ones. A single plain step needs no step: the
    client sends its gradient.
    """
    w = net.flat.clone()
    trained = net.held(torch.ones_like(w))  # 0 where a parameter is frozen
    gradients: list[Tensor] = []
    losses: list[Tensor] = []
    means: list[State] = []
    batches = list(steps)
    for k in range(len(batches[0].clients)):
        own = context.only(slice(k, k + 1))
        w_k, v = w.clone(), torch.zeros_like(w)
        for step, batch in enumerate(batches):
            rows = batch.part(k, k + 1)
            if rows.start == rows.stop:
                break
            gradient, loss, measured = _gradient(net, w_k, batch, rows, method, own)
            if step == 0:
                losses.append(loss.double())
                means.append({name: values.double().mean(0) for name, values in measured.items()})
            v = local.momentum * v + gradient + local.decay * w_k + local.proximal * (w_k - w)
            w_k = w_k - local.lr * trained * v
        single = len(batches) == 1 and local.plain
        gradients.append(gradient if single else (w - w_k) / local.lr)
    every = {name: torch.stack([one[name] for one in means]) for name in means[0]}
    return Gathered(torch.stack(gradients), torch.stack(losses), every, context, access)


def _gradient(
    net: Net, w_k: Tensor, batch: Batch, rows: slice, method: Method, own: Context
) -> tuple[Tensor, Tensor, State]:
    """One client's gradient at w_k on some rows, its loss there, and what it measures of each row."""
    names = [name for name, _ in net.model.named_parameters()]
    parameters = [
        view.clone().requires_grad_(trained) for view, trained in zip(net.views(w_k), net.trained, strict=True)
    ]
    net.mask(batch.rows[rows], batch.key)
    logits = functional_call(net.model, dict(zip(names, parameters, strict=True)), (batch.x[rows],))
    y = batch.y[rows]
    if batch.dynamic is not None:
        how, seen = batch.dynamic[rows], logits.detach()
        wrong = seen.masked_fill(F.one_hot(y, seen.shape[1]).bool(), -torch.inf)
        y = torch.where(how == FURTHEST, seen.argmin(1), torch.where(how == ADAPTIVE, wrong.argmax(1), y))
    here = replace(own, spread=partial(_repeated, len(y)))
    loss = _client_loss(method, logits, y, here)
    gradient = torch.zeros_like(w_k)
    views = [view for view, trained in zip(net.views(gradient), net.trained, strict=True) if trained]
    leaves = [leaf for leaf in parameters if leaf.requires_grad]
    for view, part in zip(views, torch.autograd.grad(loss, leaves, allow_unused=True), strict=True):
        if part is not None:
            view.copy_(part)
    return gradient, loss.detach(), method.measure(logits.detach(), y, here)


def _repeated(m: int, value: Tensor) -> Tensor:
    """One client's value, for each of its m samples."""
    return value.expand(m, *value.shape[1:])


def _client_loss(method: Method, logits: Tensor, y: Tensor, context: Context) -> Tensor:
    """f_i, of all samples of one client."""
    losses = method.objective.losses(logits, y, context)
    weights, t = method.objective.weights(logits.detach(), y, context), method.objective.tilt
    if weights is None:
        return losses.mean() if t == 0 else (torch.logsumexp(t * losses, 0) - math.log(len(y))) / t
    weights = weights.to(losses.dtype)
    total = weights.sum()
    if total == 0:
        return 0.0 * losses.sum()
    if t == 0:
        return (weights * losses).sum() / total
    return (torch.logsumexp(t * losses + weights.log(), 0) - total.log()) / t
