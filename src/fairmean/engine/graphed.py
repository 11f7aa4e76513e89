"""One run on a GPU whose passes are recorded once as a CUDA graph, and replayed: no time lost between small kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmean.aggregators import Rung
from fairmean.aggregators.base import Aggregator
from fairmean.engine.batch import Batch
from fairmean.engine.clientwise import client_gradients
from fairmean.engine.evaluation import Percent
from fairmean.engine.fused import fused_round
from fairmean.engine.simulator import Simulator, Step
from fairmean.engine.vectorised import vectorises
from fairmean.rounds import Outcome


class Graphed:
    """A simulator with the passes of its rounds on a stream of its own. Batches must have the same shape every round.

    The first round runs plainly, which also warms libraries up; the second is recorded.
    """

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        device = simulator.w.device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._lr = torch.zeros((), dtype=torch.float64, device=device)
        self._key = torch.zeros((), dtype=torch.int64, device=device)
        self._graph: Any = None
        self._static: Batch | None = None

    @staticmethod
    def takes(simulator: Simulator) -> bool:
        """Whether every round of this run has the same shapes, and its passes nothing that a graph cannot hold."""
        training, pooled = simulator.training, simulator.method.rung <= Rung.LOSSES
        same = training.participation == 1 and training.local_steps == 1 and simulator.engine == "fast"
        if not (simulator.w.is_cuda and same) or simulator.bounded:
            return False
        if not pooled:
            return simulator._capture is not None
        method, n = simulator.method, simulator.federation.clients
        stateless = type(method.aggregator).__call__ is Aggregator.__call__
        return stateless and vectorises(method, n, len(simulator.w), simulator._access)

    def launch(self, t: int) -> None:
        """Queue round t."""
        simulator = self.simulator
        self._clients, lr = simulator.participants(t), simulator.training.step_size(t)
        with torch.cuda.stream(self._stream):
            self._lr.fill_(lr)
            batch = simulator._feed(t, self._clients)
            if self._static is None:
                self._key.fill_(batch.key)
                self._static = _copy(batch, self._key)
                self._result = self._passes()
            else:
                self._put(batch)
                if self._graph is None:
                    self._graph = self._captured()
                if self._graph:
                    self._graph.replay()
                else:
                    self._result = self._passes()
            self._step(lr)

    def _captured(self) -> Any:
        """The passes as a graph; False where the model looks at numbers on the host, which a graph cannot hold."""
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._result = self._passes()
        except RuntimeError:
            return False
        return graph

    def finish(self) -> list[Step]:
        """The round's record."""
        with torch.cuda.stream(self._stream):
            losses = self._result[0].cpu().numpy().copy()
            weights = self._outcome.weights
            return [Step(self._clients, losses, None if weights is None else weights.cpu().numpy().copy())]

    def evaluate(self) -> list[tuple[Percent, Percent]]:
        """As ``Simulator.evaluate``."""
        with torch.cuda.stream(self._stream):
            return [self.simulator.evaluate()]

    def _passes(self) -> tuple[Tensor, Any]:
        """(losses, the fused outcome or the entropies): forward and backward, all of it on the device."""
        simulator, batch, lr = self.simulator, self._static, self._lr
        assert batch is not None
        method, net = simulator.method, simulator.net
        with net.passes(), net.fresh():
            if method.rung <= Rung.LOSSES:
                return fused_round(net, batch, method, lr, {}, simulator._chunk, simulator._keep)  # type: ignore[arg-type]
            return client_gradients(
                net, batch, simulator._chunk, method.scale.tilt, simulator._capture, simulator._gradients
            )

    def _step(self, lr: float) -> None:
        simulator, (losses, rest) = self.simulator, self._result
        if isinstance(rest, Outcome):
            self._outcome = rest
            simulator.net.descend(lr)
            return
        batch = self._static
        assert batch is not None
        simulator._reach.batch = batch
        self._outcome = simulator.method.combine(
            simulator._gradients,
            losses,
            batch.sizes,
            rest,
            clients=batch.ids,
            lr=lr,
            state=simulator.state,
            access=simulator._access,
            owned=True,
        )
        assert self._outcome.direction is not None
        simulator.w.add_(self._outcome.direction, alpha=-lr)
        simulator.state = self._outcome.state

    def _put(self, batch: Batch) -> None:
        """This round's samples, where the graph reads them."""
        static = self._static
        assert static is not None
        self._key.fill_(batch.key)
        for name in ("x", "y", "rows", "dynamic"):
            to, value = getattr(static, name), getattr(batch, name)
            if value is not None and to.data_ptr() != value.data_ptr():
                to.copy_(value, non_blocking=True)


def _copy(batch: Batch, key: Tensor) -> Batch:
    """A batch that nobody else writes to: its own tensors, unless they are the whole federation's."""
    if (np.diff(batch.offsets) == batch.sizes.cpu().numpy()).all():
        return replace(batch, key=key, _spans={})
    dynamic = None if batch.dynamic is None else batch.dynamic.clone()
    x, y, rows = batch.x.clone(), batch.y.clone(), batch.rows.clone()
    return replace(batch, x=x, y=y, rows=rows, dynamic=dynamic, key=key, _spans={})
