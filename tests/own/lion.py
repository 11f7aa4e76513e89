"""A server optimiser of one's own."""

from dataclasses import dataclass

import torch

import fairmean


@fairmean.register_optimiser("lion")
@dataclass(frozen=True)
class Lion(fairmean.Optimiser):
    """d′ = sign(β₁m + (1−β₁)d), m ← β₂m + (1−β₂)d (Chen et al. 2023)."""

    beta1: float = 0.9
    beta2: float = 0.99

    def init(self, d):
        return {"m": torch.zeros(d)}

    def __call__(self, direction, state):
        m = state["m"]
        step = torch.sign(self.beta1 * m + (1 - self.beta1) * direction)
        return step, {"m": self.beta2 * m + (1 - self.beta2) * direction}
