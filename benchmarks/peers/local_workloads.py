"""The workloads of local training, W5 … W8: what bench.py, local.py and the peers' drivers agree on.

It needs NumPy and torch alone, so that a driver can import it in the peer's own environment. In every round
``per_round`` of ``clients`` clients take part. Each goes over its rows ``epochs`` times in batches of ``batch``, by
plain gradient steps, and the server takes the mean of the clients' models. Inputs and labels are random: what a round
costs does not depend on what is in them.

The centralised pass that a round is compared with is ``steps`` forward and backward passes on ``per_round · batch``
samples, each in its fastest chunking, without any step of the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TOKENS = 90  # different tokens of the sequences, of which the next is predicted at every place
POOL = 60_000  # samples that the clients of W8 draw their rows from


@dataclass(frozen=True)
class Workload:
    """``model``: mlp, cnn, lstm or transformer; ``shared``: clients draw rows from ``POOL`` samples, with replacement.

    ``evaluated``: at how many clients the model is evaluated, where it is not at all of them.
    """

    title: str
    model: str
    clients: int
    per_round: int
    rows: int
    epochs: int
    batch: int
    shared: bool = False
    evaluated: int | None = None

    @property
    def steps(self) -> int:
        """Local steps of a client in a round."""
        return self.epochs * -(-self.rows // self.batch)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return {"mlp": (28, 28), "cnn": (3, 32, 32)}.get(self.model, (64,))


LOCAL = {
    "W5": Workload("10 of 100 clients × 160, 5 epochs, MLP", "mlp", 100, 10, 160, 5, 32),
    "W6": Workload("10 of 100 clients × 160, 5 epochs, CNN", "cnn", 100, 10, 160, 5, 32),
    "W7 lstm": Workload("10 of 1,000 clients × 160 sequences, LSTM", "lstm", 1_000, 10, 160, 1, 32),
    "W7 transformer": Workload(
        "10 of 1,000 clients × 160 sequences, transformer", "transformer", 1_000, 10, 160, 1, 32
    ),
    "W8": Workload("100 of 100,000 clients × 20, MLP", "mlp", 100_000, 100, 20, 1, 10, shared=True, evaluated=100),
}


def samples(workload: Workload, clients: int | None = None) -> tuple[Tensor, Tensor, NDArray[np.int64] | None]:
    """(inputs, labels, rows of the clients): client i has rows i·m … (i+1)·m − 1, or those named by the third value.

    For sequences the label of every place is the token that follows it. ``clients``: only the first so many clients.
    """
    random = torch.Generator().manual_seed(0)
    clients = clients or workload.clients
    count = POOL if workload.shared else clients * workload.rows
    if workload.model in ("lstm", "transformer"):
        length = workload.shape[0]
        tokens = torch.randint(0, TOKENS, (count, length + 1), generator=random)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), None
    x = torch.randn(count, *workload.shape, generator=random)
    y = torch.randint(0, 10, (count,), generator=random)
    if not workload.shared:
        return x, y, None
    return x, y, np.random.default_rng(0).integers(0, POOL, clients * workload.rows)
