"""Local training of several steps: what every way to compute it shares, and the way that works for any model."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmean.engine.batch import Batch, Index, LocalBatches
from fairmean.engine.cohort import Cohort, Reporting, Sums, added
from fairmean.engine.descent import Direction, descend, move
from fairmean.engine.local_step import LocalStep
from fairmean.engine.losses import Samples, client_losses, client_means, sample_losses
from fairmean.engine.net import Net
from fairmean.engine.paths.per_client import broadcast_statistics, one_by_one
from fairmean.rules.context import Context, Means
from fairmean.rules.method import Method
from fairmean.rules.products import pull
from fairmean.rules.round import Access, Rung, State


class LocalTraining(Cohort):
    """Clients that take several steps from w; a client's message is the pseudo-gradient (w − w_k)/lr.

    The loss that decides scales and weights is the one at the broadcast w, on the batch of the first step: it comes
    with that step's forward pass. On rung 0 a group of clients is trained and added up before the next one begins; on
    rung 1 the first forward pass of all comes before. So no n×d matrix is kept, unless the rule looks at messages:
    then ``out`` holds them. A client that is out does not train.

    A way to compute gives ``_groups``, ``_begin`` and ``_finish``.
    """

    owned = True

    def __init__(
        self,
        net: Net,
        steps: LocalBatches,
        method: Method,
        context: Context,
        step: LocalStep,
        chunk: int,
        access: Access,
        out: Tensor | None,
    ) -> None:
        self._net, self._steps, self._method, self.context, self.access = net, steps, method, context, access
        self._step, self._chunk, self._out = step, chunk, out
        self._clients = len(steps.counts)
        self._trained = False

    def _groups(self) -> list[Index]:
        """Places of clients that are trained together; every client is in one group."""
        raise NotImplementedError

    def _begin(self, group: Index, context: Context) -> tuple[Tensor, Means, Any]:
        """Losses and means of a group at w, and what its training goes on from."""
        raise NotImplementedError

    def _finish(self, group: Index, context: Context, begun: Any, chosen: Index | None) -> Tensor:
        """w − w_k of the group's clients, or of those at some places in it: good until the next call."""
        raise NotImplementedError

    def sums(self, weights: Tensor, report: Reporting) -> Sums:
        direction = torch.zeros_like(self._net.flat)
        told, scaled, order = [], [], []
        for group in self._groups():
            places, context = self._of(group)
            losses, means, begun = self._begin(group, context)
            one = report(losses, means, context)
            c = weights[places] * one.scales
            self._add(direction, group, context, begun, c)
            told.append(one)
            scaled.append(c)
            order.append(group)
        back = torch.from_numpy(np.argsort(np.concatenate(order))).to(direction.device)
        side, memory = (_rows([getattr(one, name) for one in told], back) for name in ("side", "memory"))
        losses = torch.cat([one.losses for one in told])[back]
        return Sums(torch.cat(scaled)[back], added(side), losses, memory, direction)

    def statistics(self) -> tuple[Tensor, Means]:
        """By a forward pass alone, or from the first step of training that needs to wait for nothing."""
        if self._method.rung <= Rung.LOSSES or self._method.may_be_out:
            first = self._steps[0]
            return broadcast_statistics(self._net, first, self._chunk, self._method, self.context)
        assert self._out is not None
        groups = self._groups()
        known = []
        for group in groups:
            places, context = self._of(group)
            losses, means, begun = self._begin(group, context)
            self._out[places] = self._finish(group, context, begun, None).div_(self._step.lr)
            known.append((losses, means))
        self._trained = True
        back = torch.from_numpy(np.argsort(np.concatenate(groups))).to(self._out.device)
        return torch.cat([losses for losses, _ in known])[back], _rows([dict(means) for _, means in known], back)

    def weighted_sum(self, coefficients: Tensor) -> Direction:
        if self._trained:
            assert self._out is not None
            return pull(self._out, coefficients)
        direction = torch.zeros_like(self._net.flat)
        for group in self._groups():
            places, context = self._of(group)
            self._add(direction, group, context, None, coefficients[places])
        return direction

    def rows(self, senders: Tensor | None) -> Tensor:
        assert self._out is not None
        if not self._trained:
            chosen = np.arange(self._clients) if senders is None else senders.cpu().numpy()
            if len(chosen) < self._clients:
                self._out.zero_()
            for group in self._groups():
                inside = np.flatnonzero(np.isin(group, chosen))
                if len(inside):
                    places, context = self._of(group)
                    mine = places[torch.from_numpy(inside).to(places.device)]
                    self._out[mine] = self._finish(group, context, None, inside).div_(self._step.lr)
            self._trained = True
        return self._out if senders is None else self._out[senders]

    def _add(self, direction: Tensor, group: Index, context: Context, begun: Any, c: Tensor) -> None:
        """Train a group, but for those who are out, and add Σ c_k (w − w_k)/lr to the direction."""
        chosen = None
        if self._method.may_be_out:
            chosen = c.nonzero()[:, 0].cpu().numpy()
            if not len(chosen):
                return
            if len(chosen) < len(group):
                c = c[torch.from_numpy(chosen).to(c.device)]
            else:
                chosen = None
        differences = self._finish(group, context, begun, chosen)
        direction.addmv_(differences.T, (c / self._step.lr).to(differences.dtype))

    def _of(self, group: Index) -> tuple[Tensor, Context]:
        """The group's places on the device, and what its clients know."""
        places = torch.from_numpy(group).to(self._net.flat.device)
        return places, self.context.only(places)


class LocalSteps(LocalTraining):
    """One client after the other, by autograd; in plain steps no gradient is copied or flattened."""

    def _groups(self) -> list[Index]:
        return [np.array([k]) for k in range(self._clients)]

    def _begin(self, group: Index, context: Context) -> tuple[Tensor, Means, Any]:
        net, method, batch = self._net, self._method, self._steps.of_client(int(group[0]), 0)
        span = batch.span(0, 1, self._chunk)
        if len(span.parts) > 1:
            return *broadcast_statistics(net, batch, self._chunk, method, context), None
        with net.passes():
            samples = sample_losses(net, batch, span.parts[0], method, context)
        losses, share = client_losses(samples.losses, samples.weights, span, method.objective.tilt)
        return losses, client_means(samples.measured, span), (samples, share)

    def _finish(self, group: Index, context: Context, begun: Any, chosen: Index | None) -> Tensor:
        net, w, k = self._net, self._w, int(group[0])
        net.forget()
        gradient, velocity = (None, None) if self._step.plain else (torch.empty_like(w), torch.zeros_like(w))
        for step in range(int(self._steps.counts[k])):
            samples, share = begun if begun is not None and step == 0 else (None, None)
            batch = None if samples is not None else self._steps.of_client(k, step)
            if gradient is None and (batch is None or len(batch.x) <= self._chunk):
                self._plain_step(batch, context, samples, share)
                continue
            aimed = torch.empty_like(w) if gradient is None else gradient
            with net.passes():
                if batch is None:
                    assert samples is not None
                    net.aim(aimed.zero_())
                    self._backward(samples, share)
                    net.forget()
                else:
                    one_by_one(
                        net, batch, batch.span(0, 1, self._chunk), self._method, context, aimed[None], measure=False
                    )
            descend(net.flat, net.held(self._velocity(aimed, velocity)), self._step.lr)
        difference = net.scratch("difference", 1)
        torch.sub(w, net.flat, out=difference[0])
        net.flat.copy_(w)
        return difference

    @cached_property
    def _w(self) -> Tensor:
        """The broadcast model, as a copy, since the net's own parameters move."""
        return self._net.flat.clone()

    def _plain_step(self, batch: Batch | None, context: Context, samples: Samples | None, share: Tensor | None) -> None:
        """Forward, backward, and w_k ← w_k − lr·g where the gradient's tensors lie."""
        net, method = self._net, self._method
        with net.passes():
            if samples is None:
                assert batch is not None
                samples = sample_losses(net, batch, slice(0, len(batch.x)), method, context, measure=False)
                if method.objective.tilt != 0 or samples.weights is not None:
                    span = batch.span(0, 1, self._chunk)
                    share = client_losses(samples.losses, samples.weights, span, method.objective.tilt)[1]
            self._backward(samples, share)
        move(*net.with_gradients(), self._step.lr)
        net.forget()

    def _backward(self, samples: Samples, share: Tensor | None) -> None:
        """Add the gradient of the client's loss to what is there."""
        losses = samples.losses
        if share is None:
            self._net.accumulate(losses, torch.full_like(losses, 1 / len(losses)))
        else:
            self._net.accumulate(losses, share.to(losses.dtype))

    def _velocity(self, gradient: Tensor, velocity: Tensor | None) -> Tensor:
        """v ← βv + g + a·w_k + μ(w_k − w)."""
        step, w_k = self._step, self._net.flat
        if velocity is None:
            return gradient
        if step.decay:
            gradient.add_(w_k, alpha=step.decay)
        if step.proximal:
            gradient.add_(w_k, alpha=step.proximal).sub_(self._w, alpha=step.proximal)
        return velocity.mul_(step.momentum).add_(gradient)


def _rows(tables: list[State], back: Tensor) -> State:
    return {key: torch.cat([table[key] for table in tables])[back] for key in tables[0]}
