"""How well every client is served by the current model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fairmean.data.federation import Federation, Index
from fairmean.engine.net import Net
from fairmean.engine.scoring import Figures, details, figures, relabelled, scores


class Evaluator:
    """The task's figure of every client, such as its test accuracy in percent; NaN for a client without test data.

    ``chosen``: ids of the clients that are evaluated, and the others' figures are NaN; None: all are.
    """

    def __init__(self, federation: Federation, net: Net, chunk: int, chosen: Index | None = None) -> None:
        self._clients, self._chosen = federation.clients, chosen
        federation = federation if chosen is None else federation.tests_of(chosen)
        self._federation, self._net, self._chunk = federation, net, chunk
        self._x = federation.test_x
        self._rows = torch.arange(len(self._x), device=self._x.device)

    def __call__(self) -> tuple[Figures, Figures]:
        """(on clean labels, on the labels as the client itself sees them)."""
        federation = self._federation
        clean, own = [], []
        for part, outputs in self._passes():
            clean.append(scores(federation.task, outputs, federation.test_y[part]))
            own.append(scores(federation.task, outputs, self._own_y(part, outputs)))
        return self._figures(clean), self._figures(own)

    def details(self) -> dict[str, Figures]:
        """Further figures of every client on clean labels, by name."""
        federation = self._federation
        passes = [outputs for _, outputs in self._passes()]
        if not passes:
            return {}
        found = details(
            federation.task,
            torch.cat(passes),
            federation.test_y,
            federation.test_offsets,
            federation.classes,
            federation.target_spread,
        )
        return {name: self._of_all(values) for name, values in found.items()}

    def _passes(self) -> Iterator[tuple[slice, Tensor]]:
        """The model's outputs for the test samples, some at a time."""
        with self._net.evaluating(), torch.no_grad():
            for start in range(0, len(self._x), self._chunk):
                part = slice(start, start + self._chunk)
                yield part, self._net.logits(self._x[part], self._rows[part], 0, exact=True)

    def _own_y(self, part: slice, outputs: Tensor) -> Tensor:
        own, dynamic = self._federation.test_own_y[part], self._federation.test_dynamic
        return own if dynamic is None else relabelled(dynamic[part], outputs, own)

    def _figures(self, parts: list[Tensor]) -> Figures:
        federation = self._federation
        values = torch.cat(parts).cpu().numpy() if parts else torch.zeros(0, dtype=torch.float64).numpy()
        return self._of_all(figures(federation.task, values, federation.test_offsets, federation.target_spread))

    def _of_all(self, values: Figures) -> Figures:
        """Figures of all clients, from those of the clients that were evaluated."""
        if self._chosen is None:
            return values
        every = np.full(self._clients, np.nan)
        every[self._chosen] = values
        return every
