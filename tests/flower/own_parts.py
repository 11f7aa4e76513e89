"""A scale and an objective with all that a client can have: memory, measured values, side sums, a broadcast, rests."""

from dataclasses import dataclass

import torch

import fairmean


def register():
    """Make them known, in this process; again where they are known already."""
    fairmean.register_scale("rested", replace=True)(Rested)
    fairmean.register_objective("forgiving", replace=True)(Forgiving)


@dataclass(frozen=True)
class Rested(fairmean.Scale):
    """s_i = 1 + H_i, but 0 in every other round for a client whose entropy is below last round's mean."""

    share: float = 1.0
    needs_entropy = True
    fewest = 2

    def __call__(self, losses, means, context):
        sure = means["entropy"] < self.share * context.broadcast["entropy"]
        late = context.t - context.last_sent <= 1
        return torch.where(sure & late & (context.t % 2 == 1), 0.0, 1 + means["entropy"])

    def side(self, scales, means, context):
        return {"entropy": means["entropy"], "pair": torch.stack([scales, torch.ones_like(scales)], 1)}

    def start(self, classes):
        return {"entropy": torch.zeros((), dtype=torch.float64), "shares": torch.zeros(classes)}

    def broadcast(self, sums, before):
        return {"entropy": sums["entropy"] / sums["pair"][1], "shares": before["shares"] + 1}


@dataclass(frozen=True)
class Forgiving(fairmean.CrossEntropy):
    """ω = exp(−ℓ/u_i), where u_i is the running mean of client i's losses: unusually bad samples count less."""

    keep: float = 0.9

    def weights(self, logits, y, context):
        return torch.exp(-self.losses(logits, y, context) / context.per_row(context.memory["usual"]))

    def measure(self, logits, y, context):
        return {"plain": self.losses(logits, y, context)}

    def init(self, n, classes):
        return {"usual": torch.ones(n, dtype=torch.float64)}

    def remember(self, memory, means, context):
        running = self.keep * memory["usual"] + (1 - self.keep) * means["plain"]
        return {"usual": torch.where(context.last_sent < 0, means["plain"], running)}
