"""Many runs at once, for networks of Linear layers and ReLUs: their parameters stacked, a few large matrix products.

Runs of one draw have the same samples in the same order; only labels, methods and step sizes differ.

When every method of a stack needs only losses, the rows carry the clients' coefficients and there is one gradient per
run (``pooled``); else there is one for every client. On a GPU a whole round, rules included, is recorded once as a CUDA
graph and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fairmean.engine.batch import Batch
from fairmean.engine.cohort import Gathered, WithProducts
from fairmean.engine.descent import descend, flattened
from fairmean.engine.fleet.stack_net import StackedNet
from fairmean.engine.fleet.stack_samples import Present, Rows
from fairmean.engine.fleet.vmapped_rule import (
    Mapped,
    coefficients,
    objective_vectorises,
    run_by_run,
    vectorises,
    whole_rounds,
)
from fairmean.engine.precision import matmul_tf32
from fairmean.engine.scoring import Figures, figures, relabelled, scores
from fairmean.engine.server import Server, ServerState
from fairmean.engine.simulator import Simulator, Step, on
from fairmean.errors import UserCodeError
from fairmean.rules.context import Context
from fairmean.rules.method import Method
from fairmean.rules.objectives import CrossEntropy
from fairmean.rules.products import gram
from fairmean.rules.round import Access, Rung, State


@dataclass
class Group:
    """Runs of a stack with the same method: rows ``runs`` of everything, their servers' states and clients' memories.

    ``together``: the rule is applied to all by one vmapped call. Else it looks at numbers on the host: one run after
    the other, from inner products alone where that is all it sees (``by_gram``), and each keeps its own rule state.
    ``mapped``: whether the objective, too, is asked about all runs at once.
    """

    server: Server
    simulators: list[Simulator]
    runs: slice
    together: bool
    mapped: bool
    state: ServerState
    memory: State
    means: State = field(default_factory=dict)
    gram: Tensor | None = None

    @property
    def method(self) -> Method:
        return self.server.method

    @property
    def by_gram(self) -> bool:
        return not self.together and self.method.rung == Rung.GRAM and self.method.aggregator.linear

    def every(self, call: Mapped) -> Mapped:
        """The call for all runs at once, or run after run where it looks at numbers."""
        return torch.func.vmap(call) if self.together else run_by_run(call)

    def show(self, rules: bool = True) -> None:
        """Let the simulators see their rows of what is stacked; the states of rules only if they are kept here."""
        for r, simulator in enumerate(self.simulators):
            state = ServerState(*({key: value[r] for key, value in part.items()} for part in self.state))
            simulator.state = state if rules else simulator.state._replace(broadcast=state.broadcast)
            simulator.memory = {key: value[r] for key, value in self.memory.items()}

    def adopt(self, simulator: Simulator, state: ServerState, memory: State, clients: Tensor) -> None:
        """What comes next for a run that went its own way: what clients read lies where a graph reads it."""
        if not self.method.remembers:
            simulator.state = state
            return
        for key, value in simulator.state.broadcast.items():
            value.copy_(state.broadcast[key])
        simulator.state = state._replace(broadcast=simulator.state.broadcast)
        simulator.remember(clients, on(memory, clients.device))

    def keep(self, state: ServerState, memory: State, clients: Tensor) -> None:
        """What comes next, in place, where a graph reads it; some of a rule's state appears in the first round."""
        for known, new in zip(self.state, state, strict=True):
            for key, value in new.items():
                if key in known:
                    known[key].copy_(value)
                else:
                    known[key] = value.clone()
                    self.show()
        for key, value in memory.items():
            self.memory[key].index_copy_(1, clients, value)


def stacked(simulators: Sequence[Simulator], device: torch.device) -> tuple[ServerState, State]:
    """The states and memories of several runs, one row for each."""

    def stack(states: list[State]) -> State:
        return {key: torch.stack([state[key].to(device) for state in states]) for key in states[0]}

    parts = zip(*(simulator.state for simulator in simulators), strict=True)
    return ServerState(*(stack(list(part)) for part in parts)), stack([s.memory for s in simulators])


class Stack:
    """Simulators of one draw, advancing together. Their parameters become rows of ``W`` (runs × d)."""

    def __init__(self, simulators: Sequence[Simulator], wide: dict[int, Tensor] | None = None) -> None:
        order = sorted(range(len(simulators)), key=lambda i: repr(_kind(simulators[i])))
        self.order = order
        self.simulators = [simulators[i] for i in order]
        first = self.simulators[0]
        self.training, self.device = first.training, first.w.device
        self.pooled = all(s.method.rung <= Rung.LOSSES for s in simulators)
        self.precision = first.precision
        self.dtype = first.w.dtype
        self.W = torch.stack([s.w for s in self.simulators])
        for row, simulator in zip(self.W, self.simulators, strict=True):
            simulator.net.move(row)
        fed = first.federation
        self._net = StackedNet(first.net.model, self.W, self.precision, {} if wide is None else wide)
        self._x = self._inputs()
        self._test_x = self._net.widened(fed.test_x, self.dtype)
        self._y = torch.stack([s.federation.y for s in self.simulators])
        dynamic = [s.federation.dynamic for s in self.simulators]
        self._dynamic = (
            torch.stack(
                [
                    torch.zeros_like(y, dtype=torch.int8) if d is None else d
                    for d, y in zip(dynamic, self._y, strict=True)
                ]
            )
            if any(d is not None for d in dynamic)
            else None
        )
        self.groups = self._grouped()
        self._plain = all(group.server.optimiser.plain for group in self.groups)
        self._t = torch.zeros((), dtype=torch.float64, device=self.device)
        self._lr = torch.zeros(len(self.simulators), dtype=torch.float64, device=self.device)
        self._feed = first.feed
        self._everyone = self.training.participation == 1.0
        self._graphable = self._everyone and (not self.pooled or all(group.together for group in self.groups))
        self._record: tuple[Tensor, Tensor] | None = None
        self._graph: Any = None
        self._static: Rows | None = None
        self._rounds = 0
        self._gradients: Tensor | None = None
        self._stream: Any = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    # -- a round ------------------------------------------------------------------------------------------------------

    def launch(self, t: int) -> None:
        """Queue round t; on a GPU this returns before it is done."""
        first = self.simulators[0]
        self._round_number, self._clients = t, first.participants(t)
        with torch.cuda.stream(self._stream):
            self._t.fill_(t)
            lr = [s.training.step_size(t) for s in self.simulators]
            self._lr.copy_(torch.tensor(lr, dtype=torch.float64), non_blocking=True)
            self._record = self._compute(t)

    def _compute(self, t: int) -> tuple[Tensor, Tensor]:
        """Round t, or its graph; (losses, weights), runs × clients."""
        rows = self._rows(self._feed(t, self._clients))
        self._rounds += 1
        graphable = self._stream is not None and self._graphable
        if graphable and self._rounds > 1 and (self._graph is not None or self._capture(lambda: self._round(rows))):
            self._graph.replay()
            assert self._record is not None
            return self._record
        return self._round(rows)

    def finish(self) -> list[Step]:
        """The round's records, in the order the simulators were given in."""
        assert self._record is not None
        with torch.cuda.stream(self._stream):
            losses, weights = self._record
            for group in self.groups:
                if group.by_gram and not self.pooled:
                    self._by_gram(group, losses, weights)
                elif not group.together and not self.pooled:
                    self._one_by_one(group, losses, weights)
            host = torch.stack([losses, weights]).cpu().numpy()
        steps: list[Any] = [None] * len(self.simulators)
        for r, place in enumerate(self.order):
            known = self.simulators[r].method.aggregator.linear
            steps[place] = Step(self._clients, host[0, r], host[1, r] if known else None)
        return steps

    def _round(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Everything but rules that must look at numbers on the host; (losses, weights), runs × clients."""
        with matmul_tf32(self.precision.tf32):
            hat = self._net.filled()
            hidden, logits = self._net.forward(rows.x, hat)
            losses, share, delta = self._losses(logits, rows)
        if self.pooled:
            weights = self._coefficients(losses, rows)
            share = share * weights.to(share.dtype)[:, rows.owner]
        with matmul_tf32(self.precision.tf32):
            bounds = [0, len(rows.x)] if self.pooled else rows.bounds
            gradients = self._net.backward(delta.mul_(share[..., None]), rows.x, hidden, hat, bounds)
        if self.pooled:
            self._descend(gradients[:, 0], weights)
            return losses, weights
        return losses, self._decide(losses, gradients, rows)

    def _decide(self, losses: Tensor, gradients: Tensor, present: Present) -> Tensor:
        """The steps of rules that see gradients (runs × clients × d), but for those that must look at numbers."""
        weights = torch.zeros_like(losses)
        self._gradients, self._last = gradients, present
        for group in self.groups:
            if group.together:
                mine = group.runs
                rounds = whole_rounds(group.server, self._context(present), self._access())
                known = (gradients[mine], losses[mine], group.means, self._memory(group, present), group.state)
                direction, weights[mine], state, memory = rounds(*known, self._lr[mine])
                group.keep(state, memory, present.ids)
                descend(self.W[mine], direction, self._lr[mine, None])
            elif group.by_gram:
                group.gram = torch.func.vmap(gram)(gradients[group.runs])
        return weights

    def _descend(self, directions: Tensor, weights: Tensor) -> None:
        """The steps of all runs, along Σ c_i g_i as their optimisers make it."""
        if not self._plain:
            directions = directions.clone()
            for group in self.groups:
                mine = group.runs
                if not group.server.optimiser.plain:
                    every = group.every(group.server.optimise)
                    directions[mine], optimiser = every(directions[mine], weights[mine], group.state.optimiser)
                    group.keep(group.state._replace(optimiser=optimiser), {}, self._last_ids)
        descend(self.W, directions, self._lr[:, None])

    def _by_gram(self, group: Group, losses: Tensor, weights: Tensor) -> None:
        """A rule on inner products, on the host, which is faster there; then one step for all its runs."""
        assert self._gradients is not None
        assert group.gram is not None
        mine, present, server = group.runs, self._last, group.server
        products = torch.cat([group.gram, losses[mine, None]], 1).cpu()
        means = on(group.means, "cpu")
        everybody = Context(self._t.cpu(), self.training.rounds, present.host_ids, present.host_sizes)
        each = []
        for r, (simulator, one) in enumerate(zip(group.simulators, products, strict=True)):
            own = {key: value[r] for key, value in means.items()}
            rule, optimiser, broadcast = simulator.state
            context, broadcast = everybody, on(broadcast, "cpu")
            if group.method.remembers:
                memory = {key: value.cpu()[present.host_ids] for key, value in simulator.memory.items()}
                context = replace(everybody, memory=memory, broadcast=broadcast)
            lr = simulator.training.step_size(self._round_number)
            state = ServerState(on(rule, "cpu"), {}, broadcast)
            weighed = server.weigh(WithProducts(one[:-1], one[-1], own, context), state, lr)
            assert weighed.coefficients is not None
            each.append(weighed.coefficients)
            new = ServerState(weighed.rule, optimiser, weighed.broadcast)
            group.adopt(simulator, new, weighed.memory, present.ids)
        weights[mine] = torch.stack(each).to(self.device)
        directions = torch.bmm(weights[mine].to(self.dtype)[:, None], self._gradients[mine])[:, 0]
        for r, simulator in enumerate(group.simulators):
            if not group.server.optimiser.plain:
                state = simulator.state
                step, optimiser = group.server.optimise(directions[r], weights[mine][r], state.optimiser)
                directions[r] = flattened(step)
                simulator.state = state._replace(optimiser=optimiser)
        descend(self.W[mine], directions, self._lr[mine, None])

    def _one_by_one(self, group: Group, losses: Tensor, weights: Tensor) -> None:
        """A rule that looks at numbers, run after run, as it would alone."""
        assert self._gradients is not None
        for r, simulator in zip(range(group.runs.start, group.runs.stop), group.simulators, strict=True):
            lr = simulator.training.step_size(self._round_number)
            batch = simulator.local_batches(self._round_number, self._clients)[0]
            context = simulator.context(self._round_number, batch)
            simulator.reach.batch, simulator.reach.context = batch, context
            means = {key: value[r - group.runs.start] for key, value in group.means.items()}
            clients = Gathered(self._gradients[r], losses[r], means, context, simulator.access)
            update = group.server.update(clients, simulator.state, lr)
            group.adopt(simulator, update.state, update.memory, batch.ids)
            descend(self.W[r], update.direction, lr)
            if update.weights is not None:
                weights[r] = update.weights

    def _coefficients(self, losses: Tensor, present: Present) -> Tensor:
        """c (runs × clients) with d = Σ c_i g_i."""
        parts, self._last_ids = [], present.ids
        for group in self.groups:
            mine, one = group.runs, coefficients(group.server, self._context(present))
            known = (losses[mine], group.means, self._memory(group, present), group.state)
            lr = self._lr[mine] if group.together else self._lr[mine].cpu()
            c, state, memory = group.every(one)(*known, lr)
            group.keep(state, memory, present.ids)
            parts.append(c)
        return torch.cat(parts)

    def _losses(self, logits: Tensor, rows: Rows, measure: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """(client losses, each sample's share in its client's gradient, ∂ℓ/∂logits).

        Groups get what their objective measured, if it should ``measure`` now.
        """
        y = rows.y
        if rows.dynamic is not None:
            y = relabelled(rows.dynamic, logits, y)
        closed = any(type(group.method.objective).losses is CrossEntropy.losses for group in self.groups)
        log_p = F.log_softmax(logits, 2) if closed else torch.empty_like(logits)
        values = -log_p.gather(2, y[..., None])[..., 0] if closed else torch.empty_like(logits[..., 0])
        slopes, sample_weights = [], []
        for group in self.groups:
            mine, method = group.runs, group.method
            if type(method.objective).losses is not CrossEntropy.losses:  # which has the closed form below
                values[mine], slope = self._by_autograd(group, logits[mine], y[mine], rows)
                slopes.append((mine, slope))
            if not method.plain_mean:
                sample_weights.append((mine, self._ask(group, method.objective.weights, logits[mine], y[mine], rows)))
            if measure and method.measures:
                measured = self._ask(group, method.measure, logits[mine], y[mine], rows)
                group.means = {key: rows.means(value) for key, value in measured.items()}
        losses = rows.means(values)
        share = rows.inverse.expand_as(values)
        given = {mine.start: weights for mine, weights in sample_weights}
        for group in self.groups:
            tilt, mine = group.method.objective.tilt, group.runs
            if tilt != 0 or given.get(mine.start) is not None:
                share = share.clone()
                losses[mine], share[mine] = rows.weighted(values[mine], tilt, given.get(mine.start))
        delta = log_p
        if closed:
            delta = log_p.exp_().scatter_add_(2, y[..., None], rows.minus_one.expand_as(values)[..., None])
        for runs, slope in slopes:
            delta[runs] = slope
        return losses, share, delta

    def _by_autograd(self, group: Group, logits: Tensor, y: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """The losses (runs × rows) of an objective, and ∂ℓ/∂logits by autograd on the logits alone."""
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            values = self._ask(group, group.method.objective.losses, leaf, y, rows)
            (slope,) = torch.autograd.grad(values.sum(), leaf)
        return values.detach(), slope

    def _ask(self, group: Group, question: Callable[..., Any], logits: Tensor, y: Tensor, rows: Rows) -> Any:
        """What an objective says of every run's logits and labels."""
        like = replace(self._context(rows), spread=lambda values: values[rows.owner])

        def one(z: Tensor, labels: Tensor, memory: State, broadcast: State) -> Any:
            return question(z, labels, replace(like, memory=memory, broadcast=broadcast))

        every: Mapped = torch.func.vmap(one) if group.mapped else run_by_run(one)
        return every(logits, y, self._memory(group, rows), group.state.broadcast)

    def _context(self, present: Present) -> Context:
        """What clients of all runs know alike."""
        return Context(self._t, self.training.rounds, present.ids, present.sizes)

    def _memory(self, group: Group, present: Present) -> State:
        """Of the clients of the round."""
        if self._everyone or not group.memory:
            return group.memory
        return {key: value[:, present.ids] for key, value in group.memory.items()}

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(self) -> list[tuple[Figures, Figures]]:
        """As ``Simulator.evaluate``, for every run at once, in the order they were given in."""
        feds = [s.federation for s in self.simulators]
        with torch.cuda.stream(self._stream), torch.no_grad():
            hat, what = self._net.exact(), feds[0].task
            own_y = torch.stack([f.test_own_y for f in feds])
            dynamic = [f.test_dynamic for f in feds]
            parts: list[Tensor] = []
            rows = max(1, 2**22 // len(self.W))
            for start in range(0, len(self._test_x), rows):
                part = slice(start, start + rows)
                outputs = self._net.forward(self._test_x[part], hat, False)[1]
                own = own_y[:, part]
                if any(d is not None for d in dynamic):
                    own = torch.stack(
                        [
                            y if d is None else relabelled(d[part], outputs[r], y)
                            for r, (d, y) in enumerate(zip(dynamic, own, strict=True))
                        ]
                    )
                clean = feds[0].test_y[part].expand_as(own)
                parts.append(torch.stack([scores(what, outputs, clean), scores(what, outputs, own)]))
            values = torch.cat(parts, 2).cpu().numpy() if parts else np.zeros((2, len(feds), 0))
        found = figures(what, values, feds[0].test_offsets, feds[0].target_spread)
        result: list[Any] = [None] * len(feds)
        for r, place in enumerate(self.order):
            result[place] = (found[0, r], found[1, r])
        return result

    def _inputs(self) -> Tensor:
        """x̂, of which a round's rows are taken."""
        return self._net.widened(self.simulators[0].federation.x, self.precision.storage)

    # -- set-up -------------------------------------------------------------------------------------------------------

    def _grouped(self) -> list[Group]:
        groups: list[list[Simulator]] = []
        for simulator in self.simulators:
            if groups and _kind(groups[-1][0]) == _kind(simulator):
                groups[-1].append(simulator)
            else:
                groups.append([simulator])
        result, start = [], 0
        for members in groups:
            first, runs = members[0], slice(start, start + len(members))
            state, memory = stacked(members, self.device)
            classes, n = first.federation.classes, first.present.most
            together = vectorises(first.server, n, self.W.shape[1], classes, self._access())
            mapped = objective_vectorises(first.method, classes)
            group = Group(
                first.server, members, runs, together, mapped, state, memory
            )  # fmt: skip
            group.show(rules=group.together or self.pooled)
            result.append(group)
            start = runs.stop
        return result

    def _access(self) -> Access:
        net = self.simulators[0].net
        return Access(layers=net.layers, output=net.output_rows)

    def _rows(self, batch: Batch) -> Rows:
        """The round's samples; in place where a graph reads them."""
        whole = len(batch.rows) == len(self._x)
        if whole and self._static is not None:
            return self._static
        x, y, dynamic = self._x, self._y, self._dynamic
        if not whole:
            x, y = x[batch.rows], y[:, batch.rows]
            dynamic = None if dynamic is None else dynamic[:, batch.rows]
        if self._static is not None and self._everyone:
            self._static.x.copy_(x)
            self._static.y.copy_(y)
            if dynamic is not None and self._static.dynamic is not None:
                self._static.dynamic.copy_(dynamic)
            return self._static
        rows = Rows.of(batch, x, y, dynamic, self.dtype)
        if self._everyone:
            self._static = rows
        return rows

    def _capture(self, round_: Callable[[], tuple[Tensor, Tensor]]) -> bool:
        """Record the round as a graph; without the user's own rules if they do not fit in. False: not at all."""
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._record = round_()
        except (RuntimeError, UserCodeError):
            doubtful = [group for group in self.groups if group.together and group.method.is_own]
            for group in doubtful:
                group.together = False
            if doubtful and not self.pooled:
                return self._capture(round_)
            self._graphable = False
            return False
        self._graph = graph
        return True


def _kind(simulator: Simulator) -> tuple[Any, ...]:
    """What runs must share so that one call serves them all."""
    return simulator.method, simulator.server.optimiser
