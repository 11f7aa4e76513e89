"""One run on a GPU whose rounds are recorded once as a CUDA graph, and replayed: no time lost between small kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fairmean.engine.batch import Batch
from fairmean.engine.cohort import Gathered, WithProducts
from fairmean.engine.descent import Direction, descend, held
from fairmean.engine.fleet.vmapped_rule import vectorises, whole_rounds
from fairmean.engine.participation import Presence
from fairmean.engine.paths.one_pass import OnePass
from fairmean.engine.paths.per_client import client_gradients
from fairmean.engine.scoring import Figures
from fairmean.engine.server import ServerState
from fairmean.engine.simulator import Simulator, Step, on
from fairmean.errors import UserCodeError
from fairmean.rules.aggregator import Aggregator
from fairmean.rules.context import Context, Means
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
        if self._inside:  # the graph reads the state where it lies
            simulator.state = ServerState(*(on(part, device) for part in simulator.state))
        self._means: Means = {}
        self._direction: Direction | None = None
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
        everyone = training.participation == 1 and training.presence == Presence()
        same = everyone and training.one_gradient and simulator.engine == "fast"
        if not same or simulator.bounded:
            return False
        if not pooled:
            return simulator.capture is not None
        stateless = type(simulator.method.aggregator).__call__ is Aggregator.__call__
        return stateless and _vectorises(simulator)

    def launch(self, t: int) -> None:
        """Queue round t, or as much of it as a graph can hold."""
        simulator = self.simulator
        self._clients, self._step_size = simulator.participants(t), simulator.training.step_size(t)
        with torch.cuda.stream(self._stream):
            self._lr.fill_(self._step_size)
            batch = simulator.feed(t, self._clients)
            self._context = simulator.context(t, batch)
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
                assert self._direction is not None
                self._descend(self._direction)

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

    def evaluate(self) -> list[tuple[Figures, Figures]]:
        """As ``Simulator.evaluate``."""
        with torch.cuda.stream(self._stream):
            return [self.simulator.evaluate()]

    def _passes(self) -> None:
        """Forward and backward, and the rule where it is part of the graph: all of it on the device."""
        simulator, batch, context = self.simulator, self._static, self._context
        assert batch is not None
        method, net, server = simulator.method, simulator.net, simulator.server
        with net.fresh():
            if self._pooled:
                cohort = OnePass(net, batch, method, context, simulator.chunk, simulator.keep)
                cohort.looks = False
                lr: Any = self._lr
                weighed = server.weigh(cohort, simulator.state, lr)
                self._losses, self._weights, self._direction = weighed.losses, weighed.coefficients, weighed.direction
                if self._direction is None:
                    assert weighed.coefficients is not None
                    self._direction = cohort.weighted_sum(weighed.coefficients)
                self._keep(simulator.state._replace(broadcast=weighed.broadcast), weighed.memory)
                return
            with net.passes():
                parts = (simulator.chunk, method, context, simulator.capture, simulator.gradients)
                self._losses, self._means = client_gradients(net, batch, *parts)
        if self._by_gram:
            self._gram = gram(simulator.gradients)
        if self._inside:
            known = (simulator.gradients, self._losses, self._means, context.memory, simulator.state, self._lr)
            rounds = whole_rounds(server, context, simulator.access)
            answer = rounds(*tree_map(lambda value: value[None], known))
            direction, weights, state, memory = tree_map(lambda value: value[0], answer)
            self._weights = weights if method.aggregator.linear else None
            self._keep(state, memory)
            descend(simulator.w, held(net, direction), self._lr)

    def _keep(self, state: ServerState, memory: State) -> None:
        """What comes next, in place, where the graph reads it; some of a rule's state appears in the first round."""
        for known, new in zip(self.simulator.state, state, strict=True):
            for key, value in new.items():
                if key not in known:
                    known[key] = value.clone()
                elif known[key] is not value:
                    known[key].copy_(value)
        self.simulator.remember(self._context.clients, memory)

    def _descend(self, direction: Direction) -> None:
        """A step outside the graph."""
        simulator = self.simulator
        state = simulator.state
        direction, optimiser = simulator.server.optimise(direction, self._weights, state.optimiser)
        simulator.state = state._replace(optimiser=optimiser)
        descend(simulator.w, held(simulator.net, direction), self._step_size)

    def _solve(self) -> None:
        """A rule on inner products, on the host, which is faster there."""
        simulator, device = self.simulator, self.simulator.w.device
        *rows, losses = torch.cat([self._gram, self._losses[None]]).cpu()
        rule, optimiser, broadcast = simulator.state
        state = ServerState(on(rule, "cpu"), {}, on(broadcast, "cpu"))
        known, (sizes, ids), means = self._context, self._host, on(self._means, "cpu")
        context = Context(known.t.cpu(), known.rounds, ids, sizes, on(known.memory, "cpu"), state.broadcast)
        clients = WithProducts(torch.stack(rows), losses, means, context)
        weighed = simulator.server.weigh(clients, state, self._step_size)
        assert weighed.coefficients is not None
        simulator.state = ServerState(weighed.rule, optimiser, broadcast)
        self._keep(ServerState({}, {}, weighed.broadcast), on(weighed.memory, device))
        self._weights = weighed.coefficients.to(device)
        self._descend(self._weights.to(simulator.w.dtype) @ simulator.gradients)

    def _combine(self) -> None:
        """Any other rule, as it would be alone."""
        simulator, batch = self.simulator, self._static
        assert batch is not None
        simulator.reach.batch, simulator.reach.context = batch, self._context
        clients = Gathered(
            simulator.gradients, self._losses, self._means, self._context, simulator.access, owned=True
        )  # fmt: skip
        update = simulator.server.update(clients, simulator.state, self._step_size)
        self._keep(ServerState({}, {}, update.state.broadcast), update.memory)
        simulator.state = update.state._replace(broadcast=simulator.state.broadcast)
        self._weights = update.weights
        descend(simulator.w, held(simulator.net, update.direction), self._step_size)

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
    n, d, classes = simulator.present.most, len(simulator.w), simulator.federation.classes
    return vectorises(simulator.server, n, d, classes, simulator.access)


def _copy(batch: Batch, key: Tensor) -> Batch:
    """A batch that nobody else writes to: its own tensors, unless they are the whole federation's."""
    if (np.diff(batch.offsets) == batch.sizes.cpu().numpy()).all():
        return replace(batch, key=key, _spans={})
    dynamic = None if batch.dynamic is None else batch.dynamic.clone()
    x, y, rows = batch.x.clone(), batch.y.clone(), batch.rows.clone()
    return replace(batch, x=x, y=y, rows=rows, dynamic=dynamic, key=key, _spans={})
