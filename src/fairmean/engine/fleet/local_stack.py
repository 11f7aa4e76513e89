"""Many runs at once whose clients take several steps, for networks of Linear layers and ReLUs.

The models of all clients of all runs are the rows of one matrix P, client after client and, within a client, run after
run. A local step is a few batched products over P, as in ``paths/stacked_steps.py``. Clients are sorted by the number
of their steps, so that those that have done theirs leave P from above. Then G = (w − P)/lr holds the pseudo-gradients,
and everything after that is as in a stack of runs with one gradient a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairmean.engine.batch import Batch, Index, LocalBatches
from fairmean.engine.fleet.stack import Group, Stack
from fairmean.engine.fleet.stack_samples import Rows
from fairmean.engine.paths.stacked_steps import Layers, forward, layers_of, padding
from fairmean.engine.precision import matmul_tf32
from fairmean.engine.simulator import Simulator
from fairmean.rules.round import State


@dataclass(frozen=True)
class LocalRows:
    """The samples of one local step: inputs (clients × longest × features), and where the real rows are among all."""

    x: Tensor
    rows: Rows
    real: Tensor | None


class LocalStack(Stack):
    """Simulators of one draw, whose clients advance together through all their local steps."""

    def __init__(self, simulators: Sequence[Simulator], wide: dict[int, Tensor] | None = None) -> None:
        super().__init__(simulators, wide)
        self._graphable = False  # how many rows a step has differs from round to round
        self._models = self.W.new_empty(0)
        self._velocities = self.W.new_empty(0)

    def _compute(self, t: int) -> tuple[Tensor, Tensor]:
        self._gradients = None  # of the round before, whose memory this one needs
        steps = self.simulators[0].local_batches(t, self._clients)
        losses, gradients = self._train(steps, np.argsort(steps.counts, kind="stable"), t)
        rows = self._rows(steps[0])
        if not self.pooled:
            return losses, self._decide(losses, gradients, rows)
        weights = self._coefficients(losses, rows)
        gradients.masked_fill_((weights == 0)[..., None], 0)  # whatever became of a client that is out
        self._descend(torch.bmm(weights.to(self.dtype)[:, None], gradients)[:, 0], weights)
        return losses, weights

    def _rows(self, batch: Batch) -> Rows:
        """What rules know of the round's clients; their samples are looked at step by step."""
        return Rows.of(batch, batch.x, self._y[:, batch.rows], None, self.dtype)

    def _inputs(self) -> Tensor:
        return self.W.new_empty(0)  # a step gathers its own

    def _memory(self, group: Group, rows: Rows) -> State:
        return {key: value[:, rows.ids] for key, value in group.memory.items()}

    def _train(self, steps: LocalBatches, order: Index, t: int) -> tuple[Tensor, Tensor]:
        """Losses at w (runs × clients) and pseudo-gradients (runs × clients × d); groups get what was measured.

        Clients are trained in this order, and the answer is in the order of the batch.
        """
        R, d = self.W.shape
        n, counts = len(order), steps.counts[order]
        P = self._models = _room(self._models, n * R, d)
        P.view(n, R, d).copy_(self.W)
        local = [simulator.training.local_step(t) for simulator in self.simulators]
        lr, momentum, decay, proximal = (
            self.W.new_tensor([getattr(step, name) for step in local])[:, None]
            for name in ("lr", "momentum", "decay", "proximal")
        )
        pulled = any(step.decay or step.proximal for step in local)
        V = None
        if any(step.momentum for step in local):
            V = self._velocities = _room(self._velocities, n * R, d)
            V.zero_()
        losses = None
        with torch.no_grad(), matmul_tf32(self.precision.tf32):
            for step in range(int(counts.max())):
                alive = int(np.searchsorted(counts, step, side="right"))  # the first client that still has steps to do
                mine = self._local_rows(steps, order[alive:], step)
                models = P[alive * R :]
                parameters = layers_of(self._net.layers, models)
                x = mine.x[:, None].expand(-1, R, -1, -1).flatten(0, 1)
                hidden, logits = forward(parameters, x)
                delta, found = self._slopes(logits, mine, first=step == 0)
                losses = found if losses is None else losses
                slopes = _backward(parameters, hidden, delta)
                each = models.view(-1, R, d)
                if V is None:
                    if pulled:
                        each.mul_(1 - lr * (decay + proximal)).add_(lr * proximal * self.W)
                    down = -lr.repeat(len(each), 1)[..., None]
                    _add_products(parameters, [slope * down for slope in slopes], [x, *hidden])
                    continue
                moves = V[alive * R :].view(-1, R, d)
                moves.mul_(momentum)
                if pulled:
                    moves.addcmul_(each, decay + proximal).sub_(proximal * self.W)
                _add_products(layers_of(self._net.layers, V[alive * R :]), slopes, [x, *hidden])
                each.addcmul_(moves, lr, value=-1)
        assert losses is not None
        moved = P.view(n, R, d).transpose(0, 1)
        if (order != np.arange(n)).any():
            back = torch.from_numpy(np.argsort(order)).to(self.device)
            losses, moved = losses[:, back], moved[:, back]
            for group in self.groups:
                group.means = {key: value[:, back] for key, value in group.means.items()}
        return losses, (self.W[:, None] - moved).div_(lr[..., None])

    def _slopes(self, logits: Tensor, mine: LocalRows, first: bool) -> tuple[Tensor, Tensor]:
        """The gradients of the clients' losses at their logits (client-runs × longest × outputs), and those losses."""
        R, (n, longest) = len(self.W), mine.x.shape[:2]
        outputs = logits.shape[-1]
        table = logits.view(n, R, longest, outputs).transpose(0, 1).reshape(R, n * longest, outputs)
        losses, share, delta = self._losses(table if mine.real is None else table[:, mine.real], mine.rows, first)
        delta = delta * share[..., None]
        if mine.real is not None:
            delta = torch.zeros_like(table).index_copy_(1, mine.real, delta)
        return delta.view(R, n, longest, outputs).transpose(0, 1).reshape(n * R, longest, outputs), losses

    def _local_rows(self, steps: LocalBatches, part: Index, step: int) -> LocalRows:
        """What these clients compute on in one local step."""
        chosen = [steps.rows[step][k] for k in part]
        lengths = np.array([len(rows) for rows in chosen])
        samples = steps.samples(np.concatenate(chosen))
        x, at = samples["x"].flatten(1), samples["rows"]
        filled = padding(lengths)
        if filled is not None:
            x = x[torch.from_numpy(filled.table).to(self.device)]
        places = torch.from_numpy(part).to(self.device)
        batch = Batch(
            clients=self._clients[part],
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            lengths=torch.from_numpy(lengths).to(self.device),
            sizes=steps.frame["sizes"][places],
            ids=steps.frame["ids"][places],
            x=x,
            y=samples["y"],
            rows=at,
            dynamic=None,
            key=0,
            bounds=np.array([0, len(part)]),
        )
        dynamic = None if self._dynamic is None else self._dynamic[:, at]
        rows = Rows.of(batch, x, self._y[:, at], dynamic, self.dtype, on_host=False)
        real = None if filled is None else torch.from_numpy(filled.real).to(self.device)
        return LocalRows(x.view(len(part), int(lengths.max()), -1), rows, real)


def _backward(parameters: Layers, hidden: list[Tensor], delta: Tensor) -> list[Tensor]:
    """δ of every layer: δ_l = (δ_{l+1} W_{l+1}) ⊙ 1[h_l > 0]."""
    slopes = [delta]
    for (weight, _), below in zip(reversed(parameters[1:]), reversed(hidden), strict=True):
        slopes.append(torch.ops.aten.threshold_backward(torch.bmm(slopes[-1], weight), below, 0))
    return slopes[::-1]


def _add_products(into: Layers, slopes: list[Tensor], below: list[Tensor]) -> None:
    """Add δᵀh to every layer's weights, and Σ δ to its biases."""
    for (weight, bias), slope, h in zip(into, slopes, below, strict=True):
        torch.baddbmm(weight, slope.transpose(1, 2), h, out=weight)
        if bias is not None:
            bias.add_(slope.sum(1))


def _room(known: Tensor, rows: int, d: int) -> Tensor:
    """A matrix of this size, in the memory of the last one if it is large enough."""
    return known.new_empty(rows, d) if known.dim() < 2 or len(known) < rows else known[:rows]
