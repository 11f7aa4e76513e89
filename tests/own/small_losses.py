"""A client leaves out most of what its own largest losses teach, the more so the longer it has been away."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

import fairmean


@fairmean.register_objective("small-losses")
@dataclass(frozen=True)
class SmallLosses(fairmean.CrossEntropy):
    """ω = exp(−ℓ · rounds since the client last sent), f_i = Σ ω ℓ / Σ ω."""

    def weights(self, logits, y, context):
        away = (context.t - context.last_sent).clamp(max=3)
        return torch.exp(-F.cross_entropy(logits, y, reduction="none") * context.per_row(away))


@fairmean.register_objective("small-losses-tilted")
@dataclass(frozen=True)
class SmallLossesTilted(SmallLosses):
    """The same, tilted: f_i = (1/t) log (Σ ω exp(t ℓ) / Σ ω)."""

    tilt = -0.5
