"""The simulator: rounds of a federation, by the cheapest path that gives a rule what it needs."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fairmean.data.federation import Federation
from fairmean.engine.batch import Batch, Feeder, LocalBatches
from fairmean.engine.cohort import Cohort, Gathered
from fairmean.engine.descent import descend, held
from fairmean.engine.evaluation import Evaluator
from fairmean.engine.heap import keep_freed_memory
from fairmean.engine.layers.hooks import Capture
from fairmean.engine.local_step import LocalStep
from fairmean.engine.net import Net
from fairmean.engine.participation import Presence, participation
from fairmean.engine.paths.all_ranks import AllRanks, Nobody
from fairmean.engine.paths.in_parts import InParts, fits
from fairmean.engine.paths.local_steps import LocalSteps
from fairmean.engine.paths.one_pass import OnePass
from fairmean.engine.paths.per_client import PerClient
from fairmean.engine.paths.reference import reference_cohort
from fairmean.engine.paths.stacked_steps import StackedSteps
from fairmean.engine.precision import Precision
from fairmean.engine.ranks import ALONE, World, borders
from fairmean.engine.server import Server, ServerState, Update
from fairmean.engine.server_probe import Reach, losses_now
from fairmean.errors import UserError
from fairmean.randomness import drawn, generator
from fairmean.rules.context import Context, Means
from fairmean.rules.method import Method
from fairmean.rules.optimisers import Optimiser
from fairmean.rules.round import Round, Rung, State


@dataclass(frozen=True)
class Training:
    """How clients train, and how long steps are.

    ``batch`` 0 is the full local gradient. ``server_lr`` None: the server's step is lr, too. ``local_lr`` None: that of
    a client's several local steps is lr, in the round's schedule. ``local_epochs`` > 0: a client goes over all its
    samples so often before it sends, in the place of ``local_steps``. ``client_momentum``, ``weight_decay`` and
    ``proximal`` are those of a client's local steps.
    """

    lr: float = 0.1
    lr_decay: float = 1.0
    schedule: Literal["exponential", "cosine"] = "exponential"
    rounds: int = 100
    batch: int = 0
    local_steps: int = 1
    local_lr: float | None = None
    participation: float = 1.0
    server_lr: float | None = None
    local_epochs: int = 0
    client_momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    presence: Presence = Presence()  # noqa: RUF009 - it cannot change

    def step_size(self, t: int) -> float:
        """The server's: lr·decay^t, or lr·(1 + cos(πt/T))/2."""
        return self._scheduled(self.server_lr or self.lr, t)

    def local_step_size(self, t: int) -> float:
        """A client's, where it takes several steps."""
        return self.local_lr or self._scheduled(self.lr, t)

    def local_step(self, t: int) -> LocalStep:
        """How a client moves in round t."""
        return LocalStep(self.local_step_size(t), self.client_momentum, self.weight_decay, self.proximal)

    @property
    def one_gradient(self) -> bool:
        """Whether a client sends one gradient, at the model that the server sent."""
        return self.local_steps == 1 and self.local_epochs == 0 and self.weight_decay == 0

    def _scheduled(self, lr: float, t: int) -> float:
        if self.schedule == "cosine":
            return lr * 0.5 * (1 + math.cos(math.pi * t / self.rounds))
        return lr * self.lr_decay**t


class Observer(Protocol):
    """Sees every client's gradient in every round, and measures what it shows. ``before`` is kept in checkpoints."""

    before: Any
    running: Tensor

    def gradients(self, batch: Batch, context: Context) -> tuple[Tensor, Tensor, Means]:
        """Every client's gradient, loss, and what it measured."""

    def observe(
        self, t: int, batch: Batch, gradients: Tensor, losses: Tensor, update: Update | None, lr: float
    ) -> Tensor:
        """What a round shows; no update: no step was taken."""

    def recall(self, w: Tensor, running: Tensor, batch: Batch, context: Context) -> None:
        """Be as after observing the iterate w."""


class Step(NamedTuple):
    """What a round leaves to be recorded: who took part, their losses before it, the weight of each gradient."""

    clients: NDArray[np.int64]
    losses: Tensor | NDArray[np.float64]
    weights: Tensor | NDArray[np.float64] | None
    measured: Tensor | None = None  # the monitor's figures


def memory(device: torch.device) -> int:
    """Bytes in all."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Simulator:
    """A federation in training. ``step(t)`` is round t; a round depends on (w, state, t) and the seed alone.

    In a ``world`` of several ranks each computes on its own clients, and has only their inputs in memory.
    ``evaluated``: the model is evaluated at so many clients, drawn once, and the others' figures are NaN; None: at all.
    """

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
        room: float | None = None,
        world: World = ALONE,
        optimiser: Optimiser | None = None,
        evaluated: int | None = None,
    ) -> None:
        if world.size > 1 and engine == "reference":
            raise UserError("train.engine = 'reference': is for one process; use train.engine=fast with several ranks")
        keep_freed_memory()
        self.precision = precision or Precision(dtype, dtype)
        dtype = self.precision.dtype
        self.world, self._borders = world, borders(federation.sizes, world.size)
        self.federation = _own(federation, self._borders, world).to(device, dtype)
        self.method, self.training, self.seed, self.engine = method, training, seed, engine
        self.net = Net(model, device, dtype, self.precision, swap=engine == "fast")
        self.server = Server(method, optimiser)
        self.measured = method.rehearse(max(1, federation.classes), federation.outputs)
        self.state = self.server.init(federation.clients, len(self.w), federation.classes, device, dtype)
        remembered = method.memory(federation.clients, federation.classes)
        self.memory: State = {key: value.to(device) for key, value in remembered.items()}
        self._t = torch.zeros((), dtype=torch.float64, device=device)
        x, test_x = self.net.layout(self.federation.x), self.net.layout(self.federation.test_x)
        self.federation = replace(self.federation, x=x, test_x=test_x)
        self.feed = Feeder(
            self.federation,
            training.batch,
            seed,
            keyed=self.net.random,
            borders=self._borders,
            rank=world.rank,
            epochs=training.local_epochs,
        )
        self._local_steps = self.feed.batches.per_round or training.local_steps
        self._everyone = np.arange(federation.clients)
        auto = self.net.chunk_rows(self.federation.x)
        self.chunk, self.row_bytes = chunk or auto.rows, auto.bytes_per_row
        self.keep = max(self.chunk, int(memory * 2**30 / auto.bytes_per_row))
        self.reach = Reach(self.net, self.federation, self.chunk, method, world)
        self.access = self.reach.access()
        self.present = participation(training.presence, training.participation, federation.sizes, seed)
        method.check(self.present.most, self.access)
        method.check_cohort(self.present.most)
        self._inverse = self._inverse_weights()
        self.bounded = self._bound(room)
        self.monitor: Observer | None = None
        n, random = federation.clients, generator(seed, "evaluated clients")
        chosen = drawn(random, n, min(n, evaluated)) if evaluated else None
        self.evaluates_all = chosen is None
        self._test = Evaluator(_tests(self.federation, self._borders, world), self.net, self.chunk, chosen)
        held_out = self.federation.on_validation()
        if chosen is not None and world.size > 1:
            raise UserError("run.eval_clients: evaluates some clients in one process; run it without torchrun")
        if held_out is not None and world.size > 1:
            raise UserError("data.validation: samples are held out in one process; run it without torchrun")
        self._validate = None if held_out is None else Evaluator(held_out, self.net, self.chunk, chosen)

    @property
    def w(self) -> Tensor:
        """The model, as one flat vector."""
        return self.net.flat

    def participants(self, t: int) -> NDArray[np.int64]:
        """The clients of round t, in order of id; nobody, where fewer are there than the method can work with."""

        def losses(candidates: NDArray[np.int64]) -> NDArray[np.float64]:
            return self._losses_of(t, candidates).cpu().numpy()

        clients = self.present(t, losses)
        return clients if len(clients) >= self.fewest else clients[:0]

    @cached_property
    def fewest(self) -> int:
        """The smallest number of clients that the method can work with, where fewer than usual may be there."""
        for n in range(1, self.present.most if self.present.varies else 1):
            with contextlib.suppress(UserError):
                self.method.check(n, self.access)
                return n
        return self.present.most if self.present.varies else 1

    def idle_rounds(self, rounds: int) -> int:
        """In how many of the first rounds too few clients were there, so that there was no step."""
        return self.present.idle(rounds, self.fewest)

    def _inverse_weights(self) -> Tensor | None:
        """λ_i/π_i of every client, where λ are the weights with all clients and π the probabilities of taking part.

        So E Σ λ_i/π_i s_i g_i, over who takes part, is the direction with all clients (Horvitz and Thompson 1952).
        """
        if not self.training.presence.unbiased:
            return None
        method, name = self.method, self.training.presence.name
        if self.present.inclusion is None:
            raise UserError(
                f"train.unbiased = true: who takes part by train.presence = '{name}' depends on losses, so that no "
                "probabilities are known; leave train.unbiased out"
            )
        ratio = method.scale.normalised or method.may_be_out or method.aggregator.remembers
        if method.rung > Rung.SUM or ratio:
            raise UserError(
                f"train.unbiased = true: is for methods whose direction is a plain sum over clients, such as mean, "
                f"fedavg, fairmean and qffl, and {method.name} is not; leave train.unbiased out"
            )
        sizes = torch.from_numpy(self.federation.sizes).double()
        weights, _ = method.decide(Round(sizes=sizes, clients=torch.arange(len(sizes)), lr=self.training.lr), {})
        return (weights / torch.from_numpy(self.present.inclusion)).to(self.w.device)

    def step(self, t: int) -> Step:
        """Round t: clients compute, the server aggregates, w ← w − lr·d."""
        clients, lr = self.participants(t), self.training.step_size(t)
        if not len(clients):
            nothing = torch.empty(0, dtype=torch.float64)
            return Step(clients, nothing, nothing if self.method.aggregator.linear else None)
        steps = self.local_batches(t, clients)
        first = steps[0]
        context = self.context(t, first)
        self.reach.batch, self.reach.context = first, context
        measured = None
        if self.monitor is not None:
            update, measured = self._watched(t, first, context, lr)
        else:
            update = self.server.update(self._cohort(t, steps, first, context), self.state, lr)
        if self.method.rung > Rung.LOSSES and isinstance(update.direction, Tensor):
            self.world.lead(update.direction)  # machines of another kind may round differently
        descend(self.net.flat, held(self.net, update.direction), lr)
        self.state = update.state
        self.remember(first.ids, update.memory)
        return Step(clients, update.losses, update.weights, measured)

    def local_batches(self, t: int, clients: NDArray[np.int64]) -> LocalBatches:
        """The samples of the local steps of round t; a round without any has one step."""
        return LocalBatches(self.feed, t * self._local_steps, self._local_steps, clients)

    def context(self, t: int, batch: Batch) -> Context:
        """What the clients of round t know, all of those of the batch."""
        self._t.fill_(t)
        memory = self.memory
        if memory and len(batch.ids) < self.federation.clients:
            memory = {key: value[batch.ids] for key, value in memory.items()}
        weights = None if self._inverse is None else self._inverse[batch.ids]
        known = (batch.ids, batch.sizes, memory, self.state.broadcast)
        return Context(self._t, self.training.rounds, *known, weights=weights, looks=self._t.device.type == "cpu")

    def remember(self, clients: Tensor, memory: State) -> None:
        """Keep what these clients remember from now on, in place."""
        for key, value in memory.items():
            if value is not self.memory[key]:
                self.memory[key].index_copy_(0, clients, value)

    def shown(self) -> State:
        """What every client can tell about itself now, by name, for the record."""
        return {key: value.clone() for key, value in self.method.shown(self.memory, self.state.broadcast).items()}

    def snapshot(self) -> dict[str, Any]:
        """What a run needs to go on from here, as tensors of its own: the model and every memory."""
        kept: dict[str, Any] = {"w": self.w.clone(), "state": _copied(self.state.rule)}
        others = {"optimiser": self.state.optimiser, "broadcast": self.state.broadcast, "memory": self.memory}
        kept |= {name: _copied(values) for name, values in others.items() if values}
        if self.monitor is not None and self.monitor.before is not None:
            kept["before"], kept["running"] = self.monitor.before.w.clone(), self.monitor.running.clone()
        return kept

    def restore(self, snapshot: Mapping[str, Any], t: int) -> None:
        """Be as when the snapshot was made, before round t."""
        self.w.copy_(snapshot["w"])
        self.state = ServerState(*(snapshot.get(name, {}) for name in ("state", "optimiser", "broadcast")))
        self.memory = snapshot.get("memory", {})
        if "before" in snapshot:
            self.recall(snapshot["before"], snapshot["running"], t)

    def takes(self, snapshot: Mapping[str, Any]) -> bool:
        """Whether a snapshot is of a run like this one: the same tensors, but for a rule's state, which may grow."""
        known = {"optimiser": self.state.optimiser, "broadcast": self.state.broadcast, "memory": self.memory}
        return all(_shapes(snapshot.get(name, {})) == _shapes(values) for name, values in known.items())

    @property
    def unsteady(self) -> str:
        """Why the clients' losses are other functions in every round; '' if they are the same."""
        reasons = []
        if self.training.batch:
            reasons.append(f"train.batch = {self.training.batch}")
        if self.present.partial:
            reasons.append(f"train.participation = {self.training.participation:g}")
        if self.net.random:
            reasons.append("the model has dropout")
        return ", ".join(reasons)

    def watch(self, observer: Callable[..., Observer], every: int) -> None:
        """From now on, let an observer of this kind see every round; it does what is costly every so many rounds."""
        training = self.training
        if not training.one_gradient:
            neutral = {"local_epochs": 0, "local_steps": 1, "weight_decay": 0}
            name = next(name for name, value in neutral.items() if getattr(training, name) != value)
            raise UserError(
                f"theory = true: is about one gradient a round, not train.{name} = {getattr(training, name)}"
            )
        if not self.server.optimiser.plain:
            raise UserError("theory = true: is about plain steps along the direction; use server.name=plain")
        if self.world.size > 1 or self.engine == "reference" or self.bounded:
            raise UserError("theory = true: needs one process, train.engine=fast and room for all clients' gradients")
        if training.presence.name != "uniform":
            raise UserError(
                f"theory = true: is about clients drawn uniformly, not by train.presence = '{training.presence.name}'"
            )
        need = 3 * self.present.most * len(self.w) * self.w.element_size()
        if need > 0.7 * memory(self.w.device):
            raise UserError(f"theory = true: keeps every client's gradient, {need / 2**30:.2g} GiB; use fewer clients")
        self.monitor = observer(self.net, self.federation, self.method, self.chunk, not self.unsteady, every)

    def look(self, t: int) -> Tensor | None:
        """The monitor's figures at the current model, without a step."""
        if self.monitor is None:
            return None
        batch = self.feed(t, self.participants(t))
        gradients, losses, _ = self.monitor.gradients(batch, self.context(t, batch))
        return self.monitor.observe(t, batch, gradients, losses, None, math.nan)

    def recall(self, w: Tensor, running: Tensor, t: int) -> None:
        """Before going on with round t: w is the iterate of the round before, ``running`` what was summed up there."""
        if self.monitor is not None:
            batch = self.feed(t - 1, self.participants(t - 1))
            self.monitor.recall(w, running, batch, self.context(t - 1, batch))

    def _watched(self, t: int, batch: Batch, context: Context, lr: float) -> tuple[Update, Tensor]:
        """A round from every client's gradient, and what it shows."""
        assert self.monitor is not None
        gradients, losses, means = self.monitor.gradients(batch, context)
        update = self.server.update(Gathered(gradients, losses, means, context, self.access), self.state, lr)
        return update, self.monitor.observe(t, batch, gradients, losses, update, lr)

    def _cohort(self, t: int, steps: LocalBatches, batch: Batch, context: Context) -> Cohort:
        """The round's clients, by the cheapest path that gives the rule what it may see."""
        local = self.training.local_step(t)
        if self.engine == "reference":
            return reference_cohort(self.net, steps, self.method, context, local, self.access)
        if self.world.size == 1:
            return self._own_cohort(steps, batch, context, local)
        mine = context.only(batch.mine)
        if not len(batch.clients):
            own: Cohort = Nobody(self.w, mine, self.measured)
        else:
            own = self._own_cohort(steps, batch, mine, local)
        room = self.gradients[: len(batch.ids)] if self.method.rung > Rung.LOSSES else None
        return AllRanks(own, self.world, context, batch.bounds, self.access, room)

    def _own_cohort(self, steps: LocalBatches, batch: Batch, context: Context, local: LocalStep) -> Cohort:
        """The clients of this process."""
        net, method, access = self.net, self.method, self.access
        if len(steps) > 1 or local.decay:
            out = self.gradients[batch.mine] if method.rung > Rung.LOSSES else None
            kind = StackedSteps if StackedSteps.takes(net) else LocalSteps
            return kind(net, steps, method, context, local, self.chunk, access, out)
        if method.rung <= Rung.LOSSES:
            return OnePass(net, batch, method, context, self.chunk, self.keep)
        if self.bounded:
            return InParts(net, batch, method, context, self.chunk, self.keep, self.capture, self.bounded)
        return PerClient(net, batch, method, context, self.chunk, self.capture, self.gradients[batch.mine], self.access)

    def _bound(self, room: float | None) -> int:
        """0, or the bytes that per-client gradients may take where all n×d of them do not fit."""
        if self.method.rung <= Rung.LOSSES:
            return 0
        n, d = self.present.most, len(self.w)
        need, have = n * d * self.w.element_size(), int(0.7 * memory(self.w.device))
        have = min(have, int(room * 2**30)) if room else have
        if need <= have:
            return 0
        simple = self.world.size == 1 and self.engine == "fast" and self.training.one_gradient
        if not (simple and fits(self.method)):
            raise UserError(
                f"{self.method.name} looks at every client's gradient: {n:,} × {d:,} numbers, {need / 2**30:.2g} GiB, "
                f"and there is room for {have / 2**30:.2g}; use fewer clients per round (train.participation)"
            )
        return have

    @cached_property
    def gradients(self) -> Tensor:
        """Room for the n×d gradients, kept for the whole run."""
        return self.w.new_empty(self.present.most, len(self.w))

    @cached_property
    def capture(self) -> Capture | None:
        """How to get them from one pass, where the model allows it."""
        capture = Capture(self.net)
        return capture if capture.fits(self.federation.x) else None

    def losses(self, t: int) -> Tensor:
        """The losses of the clients of round t at the current model, without a step."""
        return self._losses_of(t, self.participants(t))

    def _losses_of(self, t: int, clients: NDArray[np.int64]) -> Tensor:
        batch = self.feed(t * self._local_steps, clients)
        return losses_now(self.net, batch, self.chunk, self.method, self.context(t, batch), self.world)

    def training_losses(self, last: Tensor) -> Tensor:
        """The loss of every client at the current model: on all its samples, as it sees their labels, without dropout.

        ``last``: what ``losses`` gave here, which is the same where clients, samples and model are whole every round.
        """
        if not self.unsteady:
            return last.cpu()
        batch = self._everything()
        context = self.context(self.training.rounds, batch)
        with self.net.evaluating():
            return losses_now(self.net, batch, self.chunk, self.method, context, self.world).cpu()

    def _everything(self) -> Batch:
        """All samples of all clients, of which this rank has its own."""
        feed = Feeder(self.federation, 0, self.seed, keyed=False, borders=self._borders, rank=self.world.rank)
        return feed(0, self._everyone)

    def evaluate(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Per client, the task's figure on clean labels, and on the labels as the client itself sees them.

        It is of the samples that were held out from training where there are some, else of the test samples.
        """
        return self.test() if self._validate is None else self._validate()

    def test(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The same of the test samples."""
        if self.world.size == 1:
            return self._test()
        mine = self._test()
        clean, own = self.world.join(self._borders, *(torch.from_numpy(values).to(self.w.device) for values in mine))
        return clean.cpu().numpy(), own.cpu().numpy()

    def details(self) -> dict[str, NDArray[np.float64]]:
        """Further figures of every client on clean labels, by name; the first ranks' clients come first."""
        mine = self._test.details()
        if self.world.size == 1:
            return mine
        names = self.world.first(list(mine))
        n = int(self._borders[self.world.rank + 1] - self._borders[self.world.rank])
        columns = [torch.from_numpy(mine.get(name, np.full(n, np.nan))).to(self.w.device) for name in names]
        joined = self.world.join(self._borders, *columns)
        return {name: values.cpu().numpy() for name, values in zip(names, joined, strict=True)}

    def agree(self, t: int) -> int:
        """Every rank takes the first one's model and state, and the round that it goes on with."""
        if self.world.size == 1:
            return t
        state = tuple(on(part, "cpu") for part in self.state)
        t, w, state, memory = self.world.first((t, self.w.cpu(), state, on(self.memory, "cpu")))
        self.w.copy_(w)
        self.state = ServerState(*(on(part, self.w.device) for part in state))
        self.memory = on(memory, self.w.device)
        return t


def _copied(state: State) -> State:
    return {key: value.clone() for key, value in state.items()}


def _shapes(state: Any) -> Any:
    return {key: value.shape for key, value in state.items()} if isinstance(state, dict) else None


def on(state: Means, device: torch.device | str) -> State:
    """The same with its tensors on a device."""
    return {key: value.to(device) for key, value in state.items()}


def _own(federation: Federation, borders: NDArray[np.int64], world: World) -> Federation:
    """The federation, with the inputs of this rank's clients alone; a rank without any keeps one, to know the shape."""
    if world.size == 1:
        return federation
    mine = borders[world.rank : world.rank + 2]
    (a, b), (c, d) = federation.offsets[mine].tolist(), federation.test_offsets[mine].tolist()
    a = min(a, len(federation.x) - 1)
    test_x = federation.test_x[c:d].clone()
    if federation.places is not None:  # any client may have any sample
        return replace(federation, test_x=test_x)
    return replace(federation, x=federation.x[a : max(b, a + 1)].clone(), test_x=test_x)


def _tests(federation: Federation, borders: NDArray[np.int64], world: World) -> Federation:
    """As evaluation sees it: the test data of this rank's clients."""
    if world.size == 1:
        return federation
    ends = federation.test_offsets[borders[world.rank] : borders[world.rank + 1] + 1]
    mine, dynamic = slice(int(ends[0]), int(ends[-1])), federation.test_dynamic
    return replace(
        federation,
        test_y=federation.test_y[mine],
        test_own_y=federation.test_own_y[mine],
        test_dynamic=None if dynamic is None else dynamic[mine],
        test_offsets=ends - ends[0],
    )
