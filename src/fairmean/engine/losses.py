"""Per-sample and per-client losses of one forward pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmean.engine.batch import Batch
from fairmean.engine.net import Net


def sample_losses(net: Net, batch: Batch, part: slice) -> tuple[Tensor, Tensor]:
    """Cross-entropy per sample (with its graph, where gradients are on) and the logits (without).

    A poisoned client under a dynamic attack relabels here, by the very logits it is about to train on.
    """
    logits = net.logits(batch.x[part], batch.rows[part], batch.key)
    y = batch.y[part]
    if batch.dynamic is not None:
        y = torch.where(batch.dynamic[part], logits.detach().argmin(1), y)
    return F.cross_entropy(logits, y, reduction="none"), logits.detach()


def entropy(logits: Tensor) -> Tensor:
    """Predictive entropy −Σ p log p per sample: label-free."""
    log_p = F.log_softmax(logits, 1)
    return -(log_p.exp() * log_p).sum(1)


def client_means(values: Tensor, lengths: Tensor, equal: int = 0) -> Tensor:
    """Mean per client of values sorted by client, in float64; ``equal`` is the common length, if there is one."""
    values = values.detach().double()
    if equal:
        return values.view(-1, equal).mean(1)
    return torch.segment_reduce(values, "sum", lengths=lengths, unsafe=True) / lengths
