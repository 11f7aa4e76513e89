"""Many runs at once, for networks of Linear layers and ReLUs: their parameters stacked, a few large matrix products.

Runs of one draw have the same samples in the same order; only labels, methods and step sizes differ.

When every method of a stack needs only losses, the rows carry the clients' coefficients and there is one gradient per
run (``pooled``); else there is one for every client. On a GPU a whole round, rules included, is recorded once as a CUDA
graph and replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fairmean.engine.batch import Batch
from fairmean.engine.fleet.stack_net import StackedNet
from fairmean.engine.fleet.stack_samples import Rows
from fairmean.engine.fleet.vmapped_rule import vectorised, vectorises
from fairmean.engine.losses import entropy
from fairmean.engine.precision import matmul_tf32
from fairmean.engine.simulator import Simulator, Step
from fairmean.errors import UserCodeError
from fairmean.rules.method import Method
from fairmean.rules.objectives import CrossEntropy, Objective
from fairmean.rules.products import gram
from fairmean.rules.round import Access, Rung, State

Percent = NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """Runs of a stack with the same method: rows ``runs`` of everything.

    ``together``: the rule is applied to all by one vmapped call. Else it looks at numbers on the host: one run after
    the other, from inner products alone where that is all it sees (``by_gram``).
    """

    method: Method
    runs: slice
    together: bool

    @property
    def by_gram(self) -> bool:
        return not self.together and self.method.rung == Rung.GRAM and self.method.aggregator.linear


def _by_autograd(objective: Objective, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The losses (runs × rows) of an objective, and ∂ℓ/∂logits by autograd on the logits alone."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        values = objective.losses(leaf.flatten(0, 1), y.flatten()).view_as(y)
        (slope,) = torch.autograd.grad(values.sum(), leaf)
    return values.detach(), slope


class Stack:
    """Simulators of one draw, advancing together. Their parameters become rows of ``W`` (runs × d)."""

    def __init__(self, simulators: Sequence[Simulator], wide: dict[int, Tensor] | None = None) -> None:
        order = sorted(range(len(simulators)), key=lambda i: repr(simulators[i].method))
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
        self._x = self._net.widened(fed.x, self.precision.storage)
        self._test_x = self._net.widened(fed.test_x, self.dtype)
        self._y = torch.stack([s.federation.y for s in self.simulators])
        dynamic = [s.federation.dynamic for s in self.simulators]
        self._dynamic = (
            torch.stack(
                [
                    torch.zeros_like(y, dtype=torch.bool) if d is None else d
                    for d, y in zip(dynamic, self._y, strict=True)
                ]
            )
            if any(d is not None for d in dynamic)
            else None
        )
        self.groups = self._grouped()
        self._entropy = any(g.method.needs_entropy for g in self.groups)
        self._states = [self._stacked_state(group) for group in self.groups]
        self._lr = torch.zeros(len(self.simulators), dtype=torch.float64, device=self.device)
        self._feed = first._feed
        self._everyone = self.training.participation == 1.0
        self._graphable = self._everyone and (not self.pooled or all(group.together for group in self.groups))
        self._record: tuple[Tensor, Tensor] | None = None
        self._graph: Any = None
        self._static: Rows | None = None
        self._rounds = 0
        self._entropies: Tensor | None = None
        self._gradients: Tensor | None = None
        self._grams: list[Tensor | None] = [None] * len(self.groups)
        self._stream: Any = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

    # -- a round ------------------------------------------------------------------------------------------------------

    def launch(self, t: int) -> None:
        """Queue round t; on a GPU this returns before it is done."""
        first = self.simulators[0]
        self._t, self._clients = t, first.participants(t)
        with torch.cuda.stream(self._stream):
            lr = [s.training.step_size(t) for s in self.simulators]
            self._lr.copy_(torch.tensor(lr, dtype=torch.float64), non_blocking=True)
            rows = self._rows(self._feed(t, self._clients))
            graphable = self._stream is not None and self._graphable
            if graphable and self._rounds > 0 and (self._graph is not None or self._capture(rows)):
                self._graph.replay()
            else:
                self._record = self._round(rows)
            self._rounds += 1

    def finish(self) -> list[Step]:
        """The round's records, in the order the simulators were given in."""
        assert self._record is not None
        with torch.cuda.stream(self._stream):
            losses, weights = self._record
            for group, gram in zip(self.groups, self._grams, strict=True):
                if gram is not None:
                    self._by_gram(group, gram, losses, weights)
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
            losses, entropies, share, delta = self._losses(logits, rows)
        if self.pooled:
            weights = self._coefficients(losses, entropies, rows)
            share = share * weights.to(share.dtype)[:, rows.owner]
        else:
            weights = torch.zeros_like(losses)
        with matmul_tf32(self.precision.tf32):
            bounds = [0, len(rows.x)] if self.pooled else rows.bounds
            gradients = self._net.backward(delta.mul_(share[..., None]), rows.x, hidden, hat, bounds)
        if self.pooled:
            self.W.addcmul_(self._lr.to(self.dtype)[:, None], gradients[:, 0], value=-1)
            return losses, weights
        self._gradients, self._entropies, self._last = gradients, entropies, rows
        for group, state in zip(self.groups, self._states, strict=True):
            if group.together:
                mine = group.runs
                known = (gradients[mine], losses[mine], entropies[mine], self._lr[mine], state)
                direction, weights[mine], new = vectorised(group.method, rows, self._access())(*known)
                self._keep(state, new)
                self.W[mine].addcmul_(self._lr[mine].to(self.dtype)[:, None], direction, value=-1)
        self._grams = [torch.func.vmap(gram)(gradients[g.runs]) if g.by_gram else None for g in self.groups]
        return losses, weights

    def _by_gram(self, group: Group, gram: Tensor, losses: Tensor, weights: Tensor) -> None:
        """A rule on inner products, on the host, which is faster there; then one step for all its runs."""
        assert self._gradients is not None
        assert self._entropies is not None
        mine, rows = group.runs, self._last
        known = torch.cat([gram, losses[mine, None], self._entropies[mine, None]], 1).cpu()
        each = []
        for r, one in zip(range(mine.start, mine.stop), known, strict=True):
            simulator = self.simulators[r]
            c, simulator.state = group.method.weigh(
                one[:-2],
                one[-2],
                rows.host_sizes,
                one[-1],
                clients=rows.host_ids,
                lr=simulator.training.step_size(self._t),
                state={key: value.cpu() for key, value in simulator.state.items()},
            )
            each.append(c)
        c = torch.stack(each).to(self.device)
        weights[mine] = c
        step = (c * self._lr[mine, None]).to(self.dtype)[:, None]
        self.W[mine].sub_(torch.bmm(step, self._gradients[mine])[:, 0])

    def _one_by_one(self, group: Group, losses: Tensor, weights: Tensor) -> None:
        """A rule that looks at numbers, run after run, as it would alone."""
        assert self._gradients is not None
        assert self._entropies is not None
        for r in range(group.runs.start, group.runs.stop):
            simulator, lr = self.simulators[r], self.simulators[r].training.step_size(self._t)
            simulator._reach.batch = simulator._feed(self._t, self._clients)
            outcome = group.method.combine(
                self._gradients[r],
                losses[r],
                self._last.sizes,
                self._entropies[r],
                clients=self._last.ids,
                lr=lr,
                state=simulator.state,
                access=simulator._access,
            )
            assert outcome.direction is not None
            simulator.state = outcome.state
            self.W[r].add_(outcome.direction, alpha=-lr)
            if outcome.weights is not None:
                weights[r] = outcome.weights

    def _coefficients(self, losses: Tensor, entropies: Tensor, rows: Rows) -> Tensor:
        """c (runs × clients) with d = Σ c_i g_i."""
        parts = []
        for group, state in zip(self.groups, self._states, strict=True):
            mine, method = group.runs, group.method

            def one(f: Tensor, h: Tensor, lr: Any, state: State, method: Method = method) -> tuple[Tensor, State]:
                return method.coefficients(f, rows.sizes, h, clients=rows.ids, lr=lr, state=state)

            if group.together:
                c, new = torch.func.vmap(one)(losses[mine], entropies[mine], self._lr[mine], state)
            else:
                each = []
                for r in range(mine.start, mine.stop):
                    lr = self.simulators[r].training.step_size(self._t)
                    each.append(one(losses[r], entropies[r], lr, {k: v[r - mine.start] for k, v in state.items()}))
                c = torch.stack([c for c, _ in each])
                new = {key: torch.stack([s[key] for _, s in each]) for key in each[0][1]}
            self._keep(state, new)
            parts.append(c)
        return torch.cat(parts)

    def _losses(self, logits: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(client losses, mean entropies if anyone asks, each sample's share in its client's gradient, ∂ℓ/∂logits)."""
        y = rows.y
        if rows.dynamic is not None:
            y = torch.where(rows.dynamic, logits.argmin(2), y)
        log_p = F.log_softmax(logits, 2)
        values = -log_p.gather(2, y[..., None])[..., 0]
        slopes = []
        for group in self.groups:
            if type(group.method.objective).losses is not CrossEntropy.losses:  # which has the closed form below
                values[group.runs], slope = _by_autograd(group.method.objective, logits[group.runs], y[group.runs])
                slopes.append((group.runs, slope))
        losses = rows.means(values)
        share = rows.inverse.expand_as(values)
        for group in self.groups:
            tilt, mine = group.method.objective.tilt, group.runs
            if tilt != 0:
                share = share.clone()
                losses[mine], share[mine] = rows.tilted(values[mine], tilt)
        entropies = rows.means(entropy(logits.flatten(0, 1)).view_as(values)) if self._entropy else losses
        delta = log_p.exp_().scatter_add_(2, y[..., None], rows.minus_one.expand_as(values)[..., None])
        for runs, slope in slopes:
            delta[runs] = slope
        return losses, entropies, share, delta

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(self) -> list[tuple[Percent, Percent]]:
        """As ``Simulator.evaluate``, for every run at once, in the order they were given in."""
        feds = [s.federation for s in self.simulators]
        with torch.cuda.stream(self._stream), torch.no_grad():
            hat = self._net.exact()
            predicted, furthest = [], []
            for part in torch.split(self._test_x, max(1, 2**22 // len(self.W))):
                logits = self._net.forward(part, hat, False)[1]
                predicted.append(logits.argmax(2))
                furthest.append(logits.argmin(2))
            first, last = torch.cat(predicted, 1), torch.cat(furthest, 1)
            clean = first == feds[0].test_y
            own_y = torch.stack(
                [
                    f.test_own_y if f.test_dynamic is None else torch.where(f.test_dynamic, last[r], f.test_own_y)
                    for r, f in enumerate(feds)
                ]
            )
            hits = torch.stack([clean, first == own_y]).cpu().numpy()
        offsets = feds[0].test_offsets
        total = np.concatenate([np.zeros((*hits.shape[:2], 1), np.int64), hits.cumsum(2)], 2)
        with np.errstate(invalid="ignore"):
            percent = 100.0 * np.diff(total[..., offsets], axis=2) / np.diff(offsets)
        result: list[Any] = [None] * len(feds)
        for r, place in enumerate(self.order):
            result[place] = (percent[0, r], percent[1, r])
        return result

    # -- set-up -------------------------------------------------------------------------------------------------------

    def _grouped(self) -> list[Group]:
        groups: list[Group] = []
        for r, simulator in enumerate(self.simulators):
            if groups and groups[-1].method == simulator.method:
                groups[-1] = Group(simulator.method, slice(groups[-1].runs.start, r + 1), groups[-1].together)
            else:
                together = vectorises(simulator.method, len(simulator.participants(0)), self.W.shape[1], self._access())
                groups.append(Group(simulator.method, slice(r, r + 1), together))
        return groups

    def _access(self) -> Access:
        net = self.simulators[0].net
        return Access(layers=net.layers, output=net.output_rows)

    def _stacked_state(self, group: Group) -> State:
        """The states of a group's runs, stacked; the simulators see rows of it."""
        members = self.simulators[group.runs]
        stacked = {
            key: torch.stack([m.state[key].to(self.device) for m in members]) for key in (members[0].state or {})
        }
        if group.together or self.pooled:
            self._show(members, stacked)
        return stacked

    def _show(self, members: Sequence[Simulator], state: State) -> None:
        for r, member in enumerate(members):
            member.state = {key: value[r] for key, value in state.items()}

    def _keep(self, state: State, new: State) -> None:
        """The next state in place, where the graph reads it."""
        for key, value in new.items():
            if key in state:
                state[key].copy_(value)
            else:  # it appears in the first round
                state[key] = value.clone()
                for group, known in zip(self.groups, self._states, strict=True):
                    if known is state:
                        self._show(self.simulators[group.runs], state)

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

    def _capture(self, rows: Rows) -> bool:
        """Record the round as a graph; without the user's own rules if they do not fit in. False: not at all."""
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._record = self._round(rows)
        except (RuntimeError, UserCodeError):
            doubtful = [group.together and group.method.is_own for group in self.groups]
            self.groups = [
                replace(group, together=False) if doubt else group
                for group, doubt in zip(self.groups, doubtful, strict=True)
            ]
            if any(doubtful) and not self.pooled:
                return self._capture(rows)
            self._graphable = False
            return False
        self._graph = graph
        return True
