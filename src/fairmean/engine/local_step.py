"""The step that a client takes by itself, when it takes several before it sends something."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LocalStep:
    """v ← βv + g + a·w_k + μ(w_k − w), then w_k ← w_k − lr·v, where w is the model that the server sent.

    β is ``momentum``, a is ``decay`` (weight decay) and μ is ``proximal`` (FedProx). v is 0 when a round begins. In
    whatever way a client has moved, its message is the pseudo-gradient (w − w_k)/lr.
    """

    lr: float
    momentum: float = 0.0
    decay: float = 0.0
    proximal: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether it is w_k ← w_k − lr·g."""
        return self.momentum == self.decay == self.proximal == 0
