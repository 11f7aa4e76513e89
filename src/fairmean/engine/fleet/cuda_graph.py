"""One run on a GPU whose rounds are recorded once as a CUDA graph, and replayed: no time lost between small kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmean.engine.batch import Batch
from fairmean.engine.evaluation import Percent
from fairmean.engine.fleet.vmapped_rule import vectorised, vectorises
from fairmean.engine.paths.one_pass import fused_round
from fairmean.engine.paths.per_client import client_gradients
from fairmean.engine.simulator import Simulator, Step
from fairmean.errors import UserCodeError
from fairmean.rules.aggregator import Aggregator
from fairmean.rules.products import gram
from fairmean.rules.round import Rung, State


class Graphed:
    """A simulator with its rounds on a stream of its own. Batches must have the same shape every round.

    The first round runs plainly, which also warms libraries up; the second is recorded. A rule that never looks at
    numbers on the host is part of the graph. Else the graph ends before it: a rule on inner products is solved on the
    host, any other one runs as it would alone, when the round is finished and others are under way.
    """

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        method, device = simulator.method, simulator.w.device
        self._pooled = method.rung <= Rung.LOSSES
        self._inside = not self._pooled and _vectorises(simulator)
        self._state: State = {}
        if self._inside:
            self._state = {key: value.to(device, copy=True) for key, value in simulator.state.items()}
            simulator.state = self._state
        self._lr = torch.zeros((), dtype=torch.float64, device=device)
        self._key = torch.zeros((), dtype=torch.int64, device=device)
        self._graph: Any = None
        self._static: Batch | None = None
        self._weights: Tensor | None = None
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))

    @property
    def _by_gram(self) -> bool:
        method = self.simulator.method
        return not self._inside and method.rung == Rung.GRAM and method.aggregator.linear

    @staticmethod
    def takes(simulator: Simulator) -> bool:
        """Whether every round of this run has the same shapes, and its passes nothing that a graph cannot hold."""
        training, pooled = simulator.training, simulator.method.rung <= Rung.LOSSES
        same = training.participation == 1 and training.local_steps == 1 and simulator.engine == "fast"
        if not same or simulator.bounded:
            return False
        if not pooled:
            return simulator._capture is not None
        stateless = type(simulator.method.aggregator).__call__ is Aggregator.__call__
        return stateless and _vectorises(simulator)

    def launch(self, t: int) -> None:
        """Queue round t, or as much of it as a graph can hold."""
        simulator = self.simulator
        self._clients, self._step_size = simulator.participants(t), simulator.training.step_size(t)
        with torch.cuda.stream(self._stream):
            self._lr.fill_(self._step_size)
            batch = simulator._feed(t, self._clients)
            if self._static is None:
                self._key.fill_(batch.key)
                self._static = _copy(batch, self._key)
                self._host = (batch.sizes.cpu(), batch.ids.cpu())
                self._passes()
            else:
                self._put(batch)
                if self._graph is None and self._stream is not None:
                    self._graph = self._captured()
                if self._graph:
                    self._graph.replay()
                else:
                    self._passes()
            if self._pooled:
                simulator.net.descend(self._step_size)

    def _captured(self) -> Any:
        """The passes as a graph, without the rule if it does not fit in; False where the model itself does not."""
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._passes()
        except (RuntimeError, UserCodeError):
            if not self._inside:
                return False
            self._inside = False
            return self._captured()
        return graph

    def finish(self) -> list[Step]:
        """What the graph left over, and the round's record."""
        with torch.cuda.stream(self._stream):
            if self._by_gram:
                self._solve()
            elif not self._pooled and not self._inside:
                self._combine()
            losses, weights = self._losses, self._weights
            if weights is None:
                return [Step(self._clients, losses.cpu().numpy().copy(), None)]
            both = torch.stack([losses, weights]).cpu().numpy()
            return [Step(self._clients, both[0], both[1])]

    def evaluate(self) -> list[tuple[Percent, Percent]]:
        """As ``Simulator.evaluate``."""
        with torch.cuda.stream(self._stream):
            return [self.simulator.evaluate()]

    def _passes(self) -> None:
        """Forward and backward, and the rule where it is part of the graph: all of it on the device."""
        simulator, batch = self.simulator, self._static
        assert batch is not None
        method, net = simulator.method, simulator.net
        with net.passes(), net.fresh():
            if self._pooled:
                lr: Any = self._lr
                self._losses, outcome = fused_round(net, batch, method, lr, {}, simulator._chunk, simulator._keep)
                self._weights = outcome.weights
                return
            parts = (simulator._chunk, method.objective, simulator._capture, simulator._gradients)
            self._losses, self._entropies = client_gradients(net, batch, *parts)
        if self._by_gram:
            self._gram = gram(simulator._gradients)
        if self._inside:
            state = {key: value[None] for key, value in self._state.items()}
            known = (simulator._gradients, self._losses, self._entropies, self._lr)
            rule = vectorised(method, batch, simulator._access)
            direction, weights, new = rule(*(value[None] for value in known), state)
            self._weights = weights[0] if method.aggregator.linear else None
            self._keep({key: value[0] for key, value in new.items()})
            simulator.w.addcmul_(self._lr.to(simulator.w.dtype), direction[0], value=-1)

    def _keep(self, new: State) -> None:
        """The next state in place, where the graph reads it; some appears in the first round."""
        for key, value in new.items():
            if key in self._state:
                self._state[key].copy_(value)
            else:
                self._state[key] = value.clone()

    def _solve(self) -> None:
        """A rule on inner products, on the host, which is faster there."""
        simulator = self.simulator
        *rows, losses, entropies = torch.cat([self._gram, self._losses[None], self._entropies[None]]).cpu()
        sizes, ids = self._host
        lr, state = self._step_size, {key: value.cpu() for key, value in simulator.state.items()}
        c, simulator.state = simulator.method.weigh(
            torch.stack(rows), losses, sizes, entropies, clients=ids, lr=lr, state=state
        )
        self._weights = c.to(simulator.w.device)
        simulator.w.sub_((self._weights * lr).to(simulator.w.dtype) @ simulator._gradients)

    def _combine(self) -> None:
        """Any other rule, as it would be alone."""
        simulator, batch = self.simulator, self._static
        assert batch is not None
        simulator._reach.batch = batch
        outcome = simulator.method.combine(
            simulator._gradients,
            self._losses,
            batch.sizes,
            self._entropies,
            clients=batch.ids,
            lr=self._step_size,
            state=simulator.state,
            access=simulator._access,
            owned=True,
        )
        assert outcome.direction is not None
        simulator.w.add_(outcome.direction, alpha=-self._step_size)
        simulator.state, self._weights = outcome.state, outcome.weights

    def _put(self, batch: Batch) -> None:
        """This round's samples, where the graph reads them."""
        static = self._static
        assert static is not None
        self._key.fill_(batch.key)
        for name in ("x", "y", "rows", "dynamic"):
            to, value = getattr(static, name), getattr(batch, name)
            if value is not None and to.data_ptr() != value.data_ptr():
                to.copy_(value, non_blocking=True)


def _vectorises(simulator: Simulator) -> bool:
    return vectorises(simulator.method, len(simulator.participants(0)), len(simulator.w), simulator._access)


def _copy(batch: Batch, key: Tensor) -> Batch:
    """A batch that nobody else writes to: its own tensors, unless they are the whole federation's."""
    if (np.diff(batch.offsets) == batch.sizes.cpu().numpy()).all():
        return replace(batch, key=key, _spans={})
    dynamic = None if batch.dynamic is None else batch.dynamic.clone()
    x, y, rows = batch.x.clone(), batch.y.clone(), batch.rows.clone()
    return replace(batch, x=x, y=y, rows=rows, dynamic=dynamic, key=key, _spans={})
