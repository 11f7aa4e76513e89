"""The best model of a run so far, judged by samples that were held out from training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch


class Best:
    """The model with the best average so far, and how many evaluations there have been since."""

    def __init__(self, higher: bool) -> None:
        self._sign = 1.0 if higher else -1.0
        self.value, self.round, self.since = -math.inf, -1, 0
        self.w = torch.zeros(0)

    def note(self, t: int, average: float, w: torch.Tensor) -> None:
        """The model w of round t has this average."""
        if self._sign * average > self.value:
            self.value, self.round, self.since, self.w = self._sign * average, t, 0, w.clone()
        else:
            self.since += 1

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"value": self.value, "round": self.round, "since": self.since, "w": self.w}

    def load(self, state: Mapping[str, Any]) -> None:
        """Be as when the state was saved."""
        for name, value in state.items():
            setattr(self, name, value)
