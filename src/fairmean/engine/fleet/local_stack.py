"""Many runs at once whose clients take several steps, for networks of Linear layers and ReLUs.

The models of all clients of all runs are the rows of one matrix P, client after client and, within a client, run after
run. A local step is a few batched products over P, as in ``paths/stacked_steps.py``. Clients are sorted by the number
of their steps, so that those that have done theirs leave P from above. Then G = (w − P)/lr holds the pseudo-gradients,
and everything after that is as in a stack of runs with one gradient a round.

On a GPU a round whose batches have the lengths of the round before is recorded once as a CUDA graph, and replayed from
then on while the lengths stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean.engine.batch import Batch, Index, LocalBatches
from fairmean.engine.fleet.stack import Group, Stack
from fairmean.engine.fleet.stack_samples import Present, Rows
from fairmean.engine.kernels.local_update import add_products
from fairmean.engine.paths.stacked_steps import Layers, forward, layers_of, padding
from fairmean.engine.precision import matmul_tf32
from fairmean.engine.simulator import Simulator
from fairmean.rules.round import State


@dataclass(frozen=True)
class Planned:
    """A local step of the clients from place ``first`` on, in the order in which they train.

    ``clients``: their places among those of the round; ``samples``: where theirs stand among the samples of the round;
    ``table``: those as rows of equal length, if they are not; ``real``: the places of the real ones in that table.
    """

    first: int
    clients: Tensor
    samples: slice
    longest: int
    table: Tensor | None
    real: Tensor | None
    rows: Rows


@dataclass(frozen=True)
class Plan:
    """What the lengths of a round's batches decide alone, and room for what else differs from round to round.

    ``order``: clients by the number of their steps; ``back``: from there to the order of the batch, if it is another.
    ``numbers``: step size, momentum, decay and proximal term of every run (4 × runs × 1); ``moving`` says whether
    there is momentum, and ``pulled`` whether there is one of the last two.
    """

    key: tuple[bytes, bool, bool]
    order: Index
    back: Tensor | None
    steps: list[Planned]
    samples: Tensor
    ids: Tensor
    sizes: Tensor
    numbers: Tensor

    @property
    def moving(self) -> bool:
        return self.key[1]

    @property
    def pulled(self) -> bool:
        return self.key[2]


class LocalStack(Stack):
    """Simulators of one draw, whose clients advance together through all their local steps."""

    def __init__(self, simulators: Sequence[Simulator], wide: dict[int, Tensor] | None = None) -> None:
        super().__init__(simulators, wide)
        self._graphable = not self.pooled or all(group.together for group in self.groups)
        self._models = self.W.new_empty(0)
        self._velocities = self.W.new_empty(0)
        self._plan: Plan | None = None
        self._next: tuple[int, LocalBatches] | None = None

    def _compute(self, t: int) -> tuple[Tensor, Tensor]:
        steps, known = self._batches(t), self._plan
        plan = self._planned(steps, t)
        self._present = Present(
            sizes=plan.sizes,
            ids=plan.ids,
            host_sizes=torch.from_numpy(steps.sizes.astype(np.float64)),
            host_ids=torch.from_numpy(self._clients),
        )
        if self._graph is not None and plan is not known:  # its memory is needed, and lengths may differ ever again
            self._graph, self._graphable = None, False
        if self._graph is not None or (self._stream and self._graphable and plan is known and self._captured()):
            self._graph.replay()
            self._look_ahead(t + 1)
            self._last = self._present
            assert self._record is not None
            return self._record
        self._gradients = None  # of the round before, whose memory this one needs
        return self._whole_round()

    def _captured(self) -> bool:
        self._gradients = None
        return self._capture(self._whole_round)

    def _whole_round(self) -> tuple[Tensor, Tensor]:
        """Training and the rules of all runs; (losses, weights), runs × clients. All of it happens on the device."""
        losses, gradients = self._train()
        if not self.pooled:
            return losses, self._decide(losses, gradients, self._present)
        weights = self._coefficients(losses, self._present)
        gradients.masked_fill_((weights == 0)[..., None], 0)  # whatever became of a client that is out
        self._descend(torch.bmm(weights.to(self.dtype)[:, None], gradients)[:, 0], weights)
        return losses, weights

    def _inputs(self) -> Tensor:
        return self.W.new_empty(0)  # a step gathers its own

    def _memory(self, group: Group, present: Present) -> State:
        return {key: value[:, present.ids] for key, value in group.memory.items()}

    def _batches(self, t: int) -> LocalBatches:
        """The batches of round t, which may have been drawn while the round before was computed."""
        if self._next is not None and self._next[0] == t:
            return self._next[1]
        return self.simulators[0].local_batches(t, self._clients)

    def _look_ahead(self, t: int) -> None:
        """Shuffle for round t while the device is busy. Who takes part depends on the round alone in a stack."""
        if t < self.training.rounds:
            with torch.cuda.stream(torch.cuda.default_stream(self.device)):  # where nothing has to be waited for
                steps = self.simulators[0].local_batches(t, self.simulators[0].participants(t))
                assert steps.rows
            self._next = t, steps

    # -- what a round is about ----------------------------------------------------------------------------------------

    def _planned(self, steps: LocalBatches, t: int) -> Plan:
        """The plan of round t, with its samples and clients: the last one where batches are as long as they were."""
        local = [simulator.training.local_step(t) for simulator in self.simulators]
        lengths = np.array([[len(rows) for rows in step] for step in steps.rows])
        moving = any(step.momentum for step in local)
        key = (lengths.tobytes(), moving, any(step.decay or step.proximal for step in local))
        plan = self._plan
        if plan is None or plan.key != key:
            plan = self._plan = self._made(key, lengths, steps)
        each = [rows[k] for rows, step in zip(steps.rows, plan.steps, strict=True) for k in plan.order[step.first :]]
        plan.samples.copy_(torch.from_numpy(np.concatenate(each)))
        plan.ids.copy_(torch.from_numpy(self._clients))
        plan.sizes.copy_(torch.from_numpy(steps.sizes))
        numbers = [[getattr(step, name) for step in local] for name in ("lr", "momentum", "decay", "proximal")]
        plan.numbers.copy_(torch.tensor(numbers, dtype=torch.float64)[..., None])
        return plan

    def _made(self, key: tuple[bytes, bool, bool], lengths: Index, steps: LocalBatches) -> Plan:
        """A plan for batches of these lengths (steps × clients)."""
        order, counts = np.argsort(steps.counts, kind="stable"), np.sort(steps.counts)
        total, planned = 0, []
        for step, own in enumerate(lengths[:, order]):
            first = int(np.searchsorted(counts, step, side="right"))  # the first client that still has steps to do
            planned.append(self._planned_step(first, order[first:], own[first:], total))
            total = planned[-1].samples.stop
        sorted_already = (order == np.arange(len(order))).all()
        return Plan(
            key=key,
            order=order,
            back=None if sorted_already else self._there(np.argsort(order)),
            steps=planned,
            samples=self._there(np.zeros(total, np.int64)),
            ids=self._there(np.zeros(len(order), np.int64)),
            sizes=self._there(np.zeros(len(order))),
            numbers=self.W.new_zeros(4, len(self.W), 1),
        )

    def _planned_step(self, first: int, clients: Index, lengths: Index, start: int) -> Planned:
        """A step of these clients, whose samples begin at ``start``."""
        filled, offsets = padding(lengths), np.concatenate([[0], np.cumsum(lengths)])
        nothing, places = self.W.new_empty(0), self._there(clients)
        batch = Batch(
            clients=clients,
            offsets=offsets,
            lengths=self._there(lengths),
            sizes=nothing,
            ids=places,
            x=nothing,
            y=nothing,
            rows=nothing,
            dynamic=None,
            key=0,
            bounds=np.array([0, len(clients)]),
        )
        return Planned(
            first=first,
            clients=places,
            samples=slice(start, start + int(offsets[-1])),
            longest=int(lengths.max()),
            table=None if filled is None else self._there(filled.table),
            real=None if filled is None else self._there(filled.real),
            rows=Rows.of(batch, nothing, nothing, None, self.dtype, on_host=False),
        )

    def _there(self, values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    # -- local steps --------------------------------------------------------------------------------------------------

    def _train(self) -> tuple[Tensor, Tensor]:
        """Losses at w (runs × clients) and pseudo-gradients (runs × clients × d); groups get what was measured."""
        plan = self._plan
        assert plan is not None
        R, d = self.W.shape
        n = len(plan.order)
        P = self._models = _room(self._models, n * R, d)
        P.view(n, R, d).copy_(self.W)
        lr, momentum, decay, proximal = plan.numbers
        V = None
        if plan.moving:
            V = self._velocities = _room(self._velocities, n * R, d)
            V.zero_()
        losses = None
        with torch.no_grad(), matmul_tf32(self.precision.tf32):
            for step in plan.steps:
                models = P[step.first * R :]
                rows, inputs = self._samples(plan, step)
                parameters = layers_of(self._net.layers, models)
                x = inputs[:, None].expand(-1, R, -1, -1).flatten(0, 1)
                hidden, logits = forward(parameters, x)
                delta, found = self._slopes(logits, rows, step, measure=losses is None)
                losses = found if losses is None else losses
                slopes = _backward(parameters, hidden, delta)
                each = models.view(-1, R, d)
                if V is None:
                    if plan.pulled:
                        each.mul_(1 - lr * (decay + proximal)).add_(lr * proximal * self.W)
                    self._add_products(parameters, slopes, [x, *hidden], -lr[:, 0])
                    continue
                moves = V[step.first * R :].view(-1, R, d)
                moves.mul_(momentum)
                if plan.pulled:
                    moves.addcmul_(each, decay + proximal).sub_(proximal * self.W)
                velocities = layers_of(self._net.layers, V[step.first * R :])
                self._add_products(velocities, slopes, [x, *hidden], torch.ones_like(lr[:, 0]))
                each.addcmul_(moves, lr, value=-1)
        assert losses is not None
        moved = P.view(n, R, d).transpose(0, 1)
        if plan.back is not None:
            losses, moved = losses[:, plan.back], moved[:, plan.back]
            for group in self.groups:
                group.means = {key: value[:, plan.back] for key, value in group.means.items()}
        return losses, (self.W[:, None] - moved).div_(lr[..., None])

    def _add_products(self, into: Layers, slopes: list[Tensor], below: list[Tensor], scale: Tensor) -> None:
        """Add s δᵀh to every layer's weights, and s Σ δ to its biases, with the scale of each run."""
        for (weight, bias), slope, h in zip(into, slopes, below, strict=True):
            add_products(weight, bias, slope, h, scale, self.precision)

    def _samples(self, plan: Plan, step: Planned) -> tuple[Rows, Tensor]:
        """What the clients of a step compute on, and their inputs as a table (clients × longest × features)."""
        at = plan.samples[step.samples]
        x = self.simulators[0].federation.inputs(at).flatten(1)
        dynamic = None if self._dynamic is None else self._dynamic[:, at]
        sizes, ids = plan.sizes[step.clients], plan.ids[step.clients]
        rows = replace(step.rows, sizes=sizes, ids=ids, x=x, y=self._y[:, at], dynamic=dynamic)
        return rows, (x if step.table is None else x[step.table]).view(len(step.clients), step.longest, -1)

    def _slopes(self, logits: Tensor, rows: Rows, step: Planned, measure: bool) -> tuple[Tensor, Tensor]:
        """The gradients of the clients' losses at their logits (client-runs × longest × outputs), and those losses."""
        R, n, longest = len(self.W), len(step.clients), step.longest
        outputs = logits.shape[-1]
        table = logits.view(n, R, longest, outputs).transpose(0, 1).reshape(R, n * longest, outputs)
        losses, share, delta = self._losses(table if step.real is None else table[:, step.real], rows, measure)
        delta = delta * share[..., None]
        if step.real is not None:
            delta = torch.zeros_like(table).index_copy_(1, step.real, delta)
        return delta.view(R, n, longest, outputs).transpose(0, 1).reshape(n * R, longest, outputs), losses


def _backward(parameters: Layers, hidden: list[Tensor], delta: Tensor) -> list[Tensor]:
    """δ of every layer: δ_l = (δ_{l+1} W_{l+1}) ⊙ 1[h_l > 0]."""
    slopes = [delta]
    for (weight, _), below in zip(reversed(parameters[1:]), reversed(hidden), strict=True):
        slopes.append(torch.ops.aten.threshold_backward(torch.bmm(slopes[-1], weight), below, 0))
    return slopes[::-1]


def _room(known: Tensor, rows: int, d: int) -> Tensor:
    """A matrix of this size, in the memory of the last one if it is large enough; products want rows that are aligned.

    A row begins at a multiple of sixteen numbers.
    """
    if known.dim() < 2 or len(known) < rows:
        known = known.new_empty(rows, -(-d // 16) * 16)[:, :d]
    return known[:rows]
