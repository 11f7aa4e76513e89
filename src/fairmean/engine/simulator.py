"""The simulator: rounds of a federation, by the cheapest path that gives a rule what it needs."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fairmean.aggregators import Rung, State
from fairmean.engine.batch import Batch, Feeder
from fairmean.engine.capture import Capture
from fairmean.engine.clientwise import broadcast_statistics, client_gradients, local_round
from fairmean.engine.evaluation import Evaluator
from fairmean.engine.fused import fused_round
from fairmean.engine.net import Net
from fairmean.engine.precision import Precision
from fairmean.engine.reach import Reach
from fairmean.engine.reference import reference_round
from fairmean.errors import UserError
from fairmean.federation import Federation
from fairmean.randomness import generator
from fairmean.rounds import Method, Outcome


@dataclass(frozen=True)
class Training:
    """How clients train. ``batch`` 0 is the full local gradient; ``local_lr`` None is the round's own step size."""

    lr: float = 0.1
    lr_decay: float = 1.0
    schedule: Literal["exponential", "cosine"] = "exponential"
    rounds: int = 100
    batch: int = 0
    local_steps: int = 1
    local_lr: float | None = None
    participation: float = 1.0

    def step_size(self, t: int) -> float:
        """lr·decay^t, or lr·(1 + cos(πt/T))/2."""
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * t / self.rounds))
        return self.lr * self.lr_decay**t


class Step(NamedTuple):
    """What a round leaves to be recorded: who took part, their losses before it, the weight of each gradient."""

    clients: NDArray[np.int64]
    losses: Tensor | NDArray[np.float64]
    weights: Tensor | NDArray[np.float64] | None


def memory(device: torch.device) -> int:
    """Bytes in all."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Simulator:
    """A federation in training. ``step(t)`` is round t; a round depends on (w, state, t) and the seed alone."""

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        method: Method,
        training: Training,
        *,
        seed: int = 1,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        precision: Precision | None = None,
        engine: Literal["fast", "reference"] = "fast",
        chunk: int | None = None,
        memory: float = 2.0,
    ) -> None:
        self.precision = precision or Precision(dtype, dtype)
        dtype = self.precision.dtype
        self.federation = federation.to(device, dtype)
        self.method, self.training, self.seed, self.engine = method, training, seed, engine
        self.net = Net(model, device, dtype, self.precision)
        self.state: State = method.aggregator.init(federation.clients)
        laid_out = {name: self.net.layout(getattr(self.federation, name)) for name in ("x", "test_x")}
        self.federation = replace(self.federation, **laid_out)
        self._feed = Feeder(self.federation, training.batch, seed, keyed=self.net.random)
        self._everyone = np.arange(federation.clients)
        auto = self.net.chunk_rows(self.federation.x)
        self._chunk, self.row_bytes = chunk or auto.rows, auto.bytes_per_row
        self._keep = max(self._chunk, int(memory * 2**30 / auto.bytes_per_row))
        self._reach = Reach(self.net, self.federation, self._chunk, method.scale.tilt)
        self._access = self._reach.access()
        method.check(len(self.participants(0)), self._access)
        self._gradients, self._capture = self._matrix()
        self._evaluate = Evaluator(self.federation, self.net, self._chunk)

    @property
    def w(self) -> Tensor:
        """The model, as one flat vector."""
        return self.net.flat

    def participants(self, t: int) -> NDArray[np.int64]:
        """The clients of round t, in order of id."""
        n = self.federation.clients
        count = max(1, round(self.training.participation * n))
        if count == n:
            return self._everyone
        return np.sort(generator(self.seed, "participation", t).permutation(n)[:count])

    def step(self, t: int) -> Step:
        """Round t: clients compute, the server aggregates, w ← w − lr·d."""
        clients, lr = self.participants(t), self.training.step_size(t)
        k = self.training.local_steps
        steps = [self._feed(t * k + j, clients) for j in range(k)]
        self._reach.batch = steps[0]
        losses, outcome = self._round(steps, lr)
        if outcome.direction is None:
            self.net.descend(lr)
        else:
            self.net.flat.add_(outcome.direction, alpha=-lr)
        self.state = outcome.state
        return Step(clients, losses, outcome.weights)

    def _round(self, steps: list[Batch], lr: float) -> tuple[Tensor, Outcome]:
        method, local_lr = self.method, self.training.local_lr or lr
        if self.engine == "reference":
            return reference_round(self.net, steps, method, lr, local_lr, self.state, self._access)
        if len(steps) > 1:
            return local_round(self.net, steps, method, lr, local_lr, self.state, self._chunk, self._access)
        if method.rung <= Rung.LOSSES:
            with self.net.passes():
                return fused_round(self.net, steps[0], method, lr, self.state, self._chunk, self._keep)
        assert self._gradients is not None
        with self.net.passes():
            losses, entropies = client_gradients(
                self.net, steps[0], self._chunk, method.scale.tilt, self._capture, self._gradients
            )
        known: dict[str, Any] = {"clients": steps[0].ids, "lr": lr, "state": self.state, "access": self._access}
        return losses, method.combine(self._gradients, losses, steps[0].sizes, entropies, owned=True, **known)

    def _matrix(self) -> tuple[Tensor | None, Capture | None]:
        """Room for the n×d gradients, kept for the whole run, where the method looks at them; and how to get them."""
        if self.method.rung <= Rung.LOSSES:
            return None, None
        own_rows = self.engine == "reference" or self.training.local_steps > 1  # those paths make their own
        n, d = len(self.participants(0)), len(self.w)
        need, have = n * d * self.w.element_size(), memory(self.w.device)
        if need > 0.7 * have:
            raise UserError(
                f"{self.method.name} looks at every client's gradient: {n:,} × {d:,} numbers are "
                f"{need / 2**30:.0f} GiB of {have / 2**30:.0f}; use fewer clients per round (train.participation)"
            )
        if own_rows:
            return None, None
        capture = Capture(self.net)
        return self.w.new_empty(n, d), capture if capture.fits(self.federation.x) else None

    def losses(self, t: int) -> Tensor:
        """The losses of the clients of round t at the current model, without a step."""
        batch = self._feed(t * self.training.local_steps, self.participants(t))
        return broadcast_statistics(self.net, batch, self._chunk, self.method.scale.tilt)[0]

    def evaluate(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Per client, in percent: accuracy on clean test labels, and on the labels as the client itself sees them."""
        return self._evaluate()
