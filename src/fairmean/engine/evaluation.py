"""Accuracy per client."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fairmean.data.federation import Federation
from fairmean.engine.net import Net

Percent = NDArray[np.float64]


class Evaluator:
    """Test accuracy of every client, in percent; NaN for a client without test data."""

    def __init__(self, federation: Federation, net: Net, chunk: int) -> None:
        self._federation, self._net, self._chunk = federation, net, chunk
        self._x = federation.test_x
        self._rows = torch.arange(len(self._x), device=self._x.device)

    def __call__(self) -> tuple[Percent, Percent]:
        """(on clean labels, on the labels as the client itself sees them)."""
        federation, net = self._federation, self._net
        parts = [slice(a, a + self._chunk) for a in range(0, len(self._x), self._chunk)]
        if not parts:  # no client owns a test sample
            nothing = np.full(len(federation.test_offsets) - 1, np.nan)
            return nothing, nothing
        with net.evaluating(), torch.no_grad():
            logits = torch.cat([net.logits(self._x[part], self._rows[part], 0, exact=True) for part in parts])
        predicted = logits.argmax(1)
        own = federation.test_own_y
        if federation.test_dynamic is not None:
            own = torch.where(federation.test_dynamic, logits.argmin(1), own)
        return self._per_client(predicted == federation.test_y), self._per_client(predicted == own)

    def _per_client(self, hits: torch.Tensor) -> Percent:
        total = np.concatenate([[0], np.cumsum(hits.cpu().numpy())])
        counts = np.diff(self._federation.test_offsets)
        with np.errstate(invalid="ignore"):
            return np.asarray(100.0 * np.diff(total[self._federation.test_offsets]) / counts)
