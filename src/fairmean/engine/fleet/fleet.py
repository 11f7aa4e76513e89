"""Several simulators that advance together, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from fairmean.engine.fleet.cuda_graph import Graphed
from fairmean.engine.fleet.local_stack import LocalStack
from fairmean.engine.fleet.mlp_shape import linear_layers
from fairmean.engine.fleet.stack import Stack
from fairmean.engine.participation import Presence
from fairmean.engine.scoring import Figures
from fairmean.engine.simulator import Simulator, Step, memory
from fairmean.rules.round import Rung, State

Accuracy = tuple[Figures, Figures]
_FEW = 32
LOCAL_ON = ("cuda",)
"""The devices on which runs with local training are stacked."""


class Part(Protocol):
    """Simulators that are computed as one: ``launch`` queues a round, ``finish`` waits for it."""

    def launch(self, t: int) -> None: ...
    def finish(self) -> list[Step]: ...
    def evaluate(self) -> list[Accuracy]: ...


class Alone:
    """One simulator, as it is."""

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator

    def launch(self, t: int) -> None:
        self._step = self._simulator.step(t)

    def finish(self) -> list[Step]:
        clients, losses, weights, measured = self._step
        return [Step(clients, _host(losses), None if weights is None else _host(weights), measured)]

    def evaluate(self) -> list[Accuracy]:
        return [self._simulator.evaluate()]


def _host(values: Any) -> Any:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else values


class Done(NamedTuple):
    """Round t of every simulator; where they were due, the accuracies before it and what clients could tell then."""

    t: int
    steps: list[Step]
    accuracies: list[Accuracy] | None
    shown: list[State]


class Fleet:
    """Runs of one draw are stacked where the model allows it; other runs on a GPU replay graphs on their own streams.

    While the host finishes one part (a rule that needs a solver, a table), the GPU works on the others.
    """

    def __init__(self, simulators: Sequence[Simulator]) -> None:
        groups: dict[Any, list[int]] = {}
        for place, simulator in enumerate(simulators):
            groups.setdefault(stack_key(simulator) or ("alone", place), []).append(place)
        for key in list(groups):  # with few clients, one wider stack costs less than two
            if key[0] == "losses" and simulators[groups[key][0]].federation.clients <= _FEW:
                other = ("gradients", *key[1:])
                if other in groups:
                    groups[other] += groups.pop(key)
        self.parts: list[tuple[Part, list[int]]] = []
        wide: dict[int, torch.Tensor] = {}
        for key, places in groups.items():
            members = [simulators[place] for place in places]
            self.parts.append((_part(members, key, wide), places))
        self._simulators, self._total = simulators, len(simulators)
        self._cuda = any(simulator.w.is_cuda for simulator in simulators)

    def rounds(self, start: int, stop: int, due: Callable[[int], bool], rest: Callable[[int], bool]) -> Iterator[Done]:
        """Rounds ``start`` … ``stop − 1``, evaluated before those that are ``due``.

        When a round is handed out, later ones may be under way, unless ``rest`` of it was true: then every simulator is
        exactly after it.
        """
        if start >= stop:
            return
        ahead = [self._begin(part, places, start, due) for part, places in self.parts]
        for t in range(start, stop):
            pause = rest(t) or t + 1 == stop
            steps: list[Any] = [None] * self._total
            accuracies: list[Any] = [None] * self._total
            shown: list[State] = [{}] * self._total
            for i, (part, places) in enumerate(self.parts):
                for place, step in zip(places, part.finish(), strict=True):
                    steps[place] = step
                for place, (accuracy, told) in zip(places, ahead[i], strict=False):
                    accuracies[place], shown[place] = accuracy, told
                if not pause:
                    ahead[i] = self._begin(part, places, t + 1, due)
            if pause and self._cuda:
                torch.cuda.synchronize()
            yield Done(t, steps, accuracies if due(t) else None, shown)
            if pause and t + 1 < stop:
                ahead = [self._begin(part, places, t + 1, due) for part, places in self.parts]

    def evaluate(self) -> list[Accuracy]:
        """Accuracies of every simulator, as ``Simulator.evaluate`` gives them."""
        accuracies: list[Any] = [None] * self._total
        for part, places in self.parts:
            for place, accuracy in zip(places, part.evaluate(), strict=True):
                accuracies[place] = accuracy
        return accuracies

    def _begin(self, part: Part, places: list[int], t: int, due: Callable[[int], bool]) -> list[tuple[Accuracy, State]]:
        """Begin round t; where it is due, each run's accuracies before it, and what its clients could tell."""
        before: list[tuple[Accuracy, State]] = []
        if due(t):
            shown = [self._simulators[place].shown() for place in places]
            before = list(zip(part.evaluate(), shown, strict=True))
        part.launch(t)
        return before


def stack_key(simulator: Simulator) -> Any:
    """What simulators must share to be stacked; None: this one cannot be."""
    training = simulator.training
    fed, method, local = simulator.federation, simulator.method, not training.one_gradient
    plain = simulator.engine == "fast" and not simulator.bounded and simulator.evaluates_all
    plain &= training.presence == Presence()  # the others go round by round, each for itself
    plain &= _local_fits(simulator) if local else fed.places is None
    if not plain or linear_layers(simulator.net.model) is None:
        return None
    shapes = tuple(tuple(p.shape) for p in simulator.net.model.parameters())
    kind = "losses" if method.rung <= Rung.LOSSES else "gradients"
    if local:  # with somebody who may be out there must be weights that say who
        kind = "local, out" if method.may_be_out else "local"
    clients_do = (training.batch, training.local_steps, training.local_epochs, training.participation)
    same = (*clients_do, training.rounds, simulator.seed, simulator.precision)
    borders = (fed.offsets.tobytes(), fed.test_offsets.tobytes())
    places = None if fed.places is None else fed.places.data_ptr()
    return (kind, fed.x.data_ptr(), places, fed.test_x.data_ptr(), *borders, shapes, *same)


def _local_fits(simulator: Simulator) -> bool:
    """Whether runs with local training are stacked: on a GPU (a CPU's cache is too small), if there is ample room."""
    device = simulator.w.device
    out = simulator.method.may_be_out and simulator.method.rung > Rung.LOSSES  # a rule would see who is out
    small = bytes_needed(simulator) < 0.1 * memory(device)
    return device.type in LOCAL_ON and small and not out and not simulator.precision.mixed


def bytes_needed(simulator: Simulator) -> int:
    """About what a run takes on its device while it advances with others, shared inputs left out."""
    w, lengths = simulator.w, simulator.feed.batches.lengths
    rows = int(lengths.sum() * simulator.present.most / len(lengths))
    layers = linear_layers(simulator.net.model)
    if layers is not None:
        passes = 4 * rows * sum(layer.wide_outputs for layer in layers) * simulator.precision.storage.itemsize
    else:
        passes = 3 * min(rows, simulator.chunk) * simulator.row_bytes
    local = not simulator.training.one_gradient and layers is not None
    copies = 2 if simulator.method.rung > Rung.LOSSES else 0
    if local:  # models, velocities, pseudo-gradients, both in another order, and what a sum of them takes
        copies += 5 + bool(simulator.training.client_momentum)
    matrix = copies * simulator.present.most * len(w) * w.element_size()
    matrix = min(matrix, simulator.bounded) if simulator.bounded else matrix
    return passes + matrix + 8 * len(w) * w.element_size()


def _part(members: list[Simulator], key: Any, wide: dict[int, torch.Tensor]) -> Part:
    if key[0] != "alone":
        return (LocalStack if key[0].startswith("local") else Stack)(members, wide)
    first = members[0]
    return Graphed(first) if first.w.is_cuda and Graphed.takes(first) else Alone(first)
