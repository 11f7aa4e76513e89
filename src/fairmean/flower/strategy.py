"""The server of a federation: a Flower strategy that asks the same ``Server`` as the simulator what to do.

A round: orders go out, replies come back, ``checking`` refuses those that are not what they must be, the others are a
cohort (``replies``), the server makes the step of it, and model, state and table are on disk before the next round.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, MetricRecordValues, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fairmean.checks import at_least
from fairmean.data.tasks import task as task_named
from fairmean.engine.descent import descend, flattened
from fairmean.engine.server import Server, ServerState
from fairmean.engine.simulator import Training
from fairmean.errors import UserError, unknown
from fairmean.experiments.config import parse
from fairmean.experiments.events import Listener, unwrapping
from fairmean.experiments.folder import RunFolder
from fairmean.experiments.identity import folder_of, of_parts
from fairmean.experiments.sections import Config
from fairmean.experiments.study import spec
from fairmean.flower.checking import Accepted, Bounds, Form, NotFinite, Refused, claimed, examine, in_words, printable
from fairmean.flower.privacy import Guard, Privacy, check_method
from fairmean.flower.replies import Replies, as_received
from fairmean.flower.run_record import RunRecord
from fairmean.flower.wire import (
    ARRAYS,
    BROADCAST,
    CLIENTS,
    CONFIG,
    ORDER,
    SUMS,
    UNKNOWN,
    Layout,
    Order,
    roster_entry,
    to_arrays,
)
from fairmean.randomness import generator
from fairmean.rules.context import LAST_SENT, Context
from fairmean.rules.method import is_ours
from fairmean.rules.named import USUAL
from fairmean.rules.round import Access, Rung

log = logging.getLogger(__name__)
_POLL = 0.5  # seconds between two looks at who is connected


class FairStrategy(Strategy):
    """A method of rungs 0 to 3 on Flower's message API.

    ``method``: as everywhere, "fairmean:kappa=4" or "median"; methods of your own must be imported on both sides.
    ``clients``: how many there are, called "0", "1" … by their ``partition-id``, or a list of the names that their
    nodes are started with. Steps are as in the simulator: ``lr`` with ``lr_decay`` and ``schedule``, ``local_steps`` or
    ``local_epochs`` of ``batch`` samples (0: all) at ``local_lr`` with ``client_momentum``, ``weight_decay`` and
    ``proximal``, ``optimiser`` and ``server_lr`` of the server.

    ``report``: what leaves a client beside its message. "sums" (usual on rung 0): nothing but what is added up.
    "clients" (needed on the rungs above): also its loss, its weight and its accuracy, which the run folder then holds.
    ``min_clients``: with fewer usable replies a round is repeated, at most ``max_repeats`` times, ``pause`` seconds
    apart. ``max_norm`` and ``max_size``: a message or a sample count beyond is refused. ``startup``: how many seconds
    the first round waits for all clients. ``privacy``: see ``Privacy``.

    The run folder is ``dir``/``name``/hash; one that is unfinished is gone on with, and a finished one is not made
    again.
    """

    def __init__(
        self,
        method: str = "fairmean",
        *,
        clients: int | Sequence[str],
        lr: float = 0.1,
        lr_decay: float = 1.0,
        schedule: str = "exponential",
        local_steps: int = 1,
        local_epochs: int = 0,
        batch: int = 0,
        local_lr: float | None = None,
        client_momentum: float = 0.0,
        weight_decay: float = 0.0,
        proximal: float = 0.0,
        optimiser: str = "plain",
        server_lr: float | None = None,
        participation: float = 1.0,
        report: str | None = None,
        min_clients: int | None = None,
        max_repeats: int = 3,
        pause: float = 5.0,
        max_norm: float | None = None,
        max_size: int | None = None,
        startup: float = 60.0,
        privacy: Privacy | None = None,
        task: str = "classification",
        classes: int | None = None,
        seed: int = 1,
        name: str = "flower",
        dir: str | Path = "runs",
        eval_every: int = 0,
        listeners: Iterable[Listener] = (),
    ) -> None:
        self.names = _names(clients)
        n = len(self.names)
        self._text = _with_objective(method, task)
        self._tree = {
            "seed": seed,
            "data": {"name": "federation", "task": task_named(task).name, "scale": "none"},
            "partition": {"name": "given", "clients": n, "seed": seed},
            "attack": {"name": "none"},
            "model": {"name": "federation"},
            "method": spec(self._text, "method")["method"],
            "train": {
                "lr": lr, "lr_decay": lr_decay, "schedule": schedule, "batch": batch, "local_steps": local_steps,
                "local_lr": local_lr, "participation": participation, "device": "cpu", "local_epochs": local_epochs,
                "client_momentum": client_momentum, "weight_decay": weight_decay, "proximal": proximal,
            },
            "server": {**spec(optimiser, "server")["server"], "lr": server_lr},
            "run": {"name": name, "dir": str(dir), "eval_every": eval_every},
        }  # fmt: skip
        config = parse(self._tree)
        self.method = config.method.build()
        self._check_rung()
        self.report = self._reported(report, privacy)
        self.server = Server(as_received(self.method), config.server.build())
        present = max(1, round(config.train.participation * n))
        self.min_clients = present // 2 + 1 if min_clients is None else min_clients
        at_least("min_clients", self.min_clients, 1)
        at_least("max_repeats", max_repeats, 0)
        if self.min_clients > n:
            raise UserError(f"min_clients = {self.min_clients}: there are {n} clients")
        if self.min_clients > present:
            raise UserError(f"min_clients = {self.min_clients}: only {present} of {n} clients take part in a round")
        if privacy is not None:
            check_method(self.method)
        self.max_repeats, self.pause, self.startup = max_repeats, pause, startup
        self.bounds, self.privacy, self.classes = Bounds(max_norm, max_size), privacy, classes
        self.task, self.seed = task, seed
        self._listeners = tuple(listeners)
        self._orders: dict[int, Order] = {}
        self._attempt, self._diverged = 0, False
        self._connected: set[int] = set()
        self.accepted: list[Accepted] = []

    def _check_rung(self) -> None:
        if self.method.rung >= Rung.EXTRA:
            raise UserError(
                f"{self.method.name}: its server tries out models on clients or on data of its own within a round, and "
                "a federation gives it one message from each client; use a method of rungs 0 to 3"
            )

    def _reported(self, report: str | None, privacy: Privacy | None) -> str:
        """What leaves a client, if that fits the method."""
        if report not in (None, SUMS, CLIENTS):
            raise unknown("report", report, (SUMS, CLIENTS))
        if self.method.rung > Rung.SUM and report == SUMS:
            raise UserError(
                f"report = 'sums': the server of {self.method.name} sees {self.method.rung.sees} of each client, so "
                "losses must leave the clients; use report='clients', or a method on rung 0"
            )
        if privacy is not None and report == CLIENTS:
            raise UserError("report = 'clients': losses and accuracies would leave without noise; use report='sums'")
        return report or (SUMS if self.method.rung == Rung.SUM else CLIENTS)

    def begin(self, initial_arrays: ArrayRecord, num_rounds: int, train_config: ConfigRecord | None = None) -> None:
        """Before the first round: the state of the server, for this model and so many rounds."""
        self.layout = Layout(initial_arrays)
        self.config = self._resolved(num_rounds)
        self.w = self.layout.flat(initial_arrays)
        self._user_config = train_config or ConfigRecord()
        train = self.config.train
        self.training = Training(
            lr=train.lr, lr_decay=train.lr_decay, schedule=train.schedule, rounds=num_rounds,  # type: ignore[arg-type]
            batch=train.batch, local_steps=train.local_steps, local_lr=train.local_lr,
            participation=train.participation, server_lr=self.config.server.lr, local_epochs=train.local_epochs,
            client_momentum=train.client_momentum, weight_decay=train.weight_decay, proximal=train.proximal,
        )  # fmt: skip
        outputs = self.classes or self.layout.outputs
        self._classes = 2 if self.task == "binary" and self.classes is None else outputs
        n = len(self.names)
        self.state = self.server.init(n, self.layout.length, self._classes, dtype=self.layout.dtype)
        _, rehearsed = self.method.rehearsal(self._classes)
        side = {name: value.shape[1:] for name, value in rehearsed.side.items()}
        shown = list(self.method.shown(self.method.memory(1, self._classes), self.state.broadcast))
        scale = self.method.scale
        self._form = Form(
            {name: i for i, name in enumerate(self.names)}, self.layout, side, scale.side_bounds(), shown,
            self.method.may_be_out, scale.largest, self.bounds,
        )  # fmt: skip
        self.access = Access(layers=self.layout.layers, output=self.layout.output_rows)
        self.method.check(self._present, self.access)
        self.method.check_cohort(self._present)
        self.last_sent = torch.full((n,), -1.0, dtype=torch.float64)
        self.nodes: dict[int, int] = {}
        self.guard = None if self.privacy is None else Guard(self.privacy, self._present)
        self.key = secrets.token_hex(8)
        self.record: RunRecord | None = None

    def _resolved(self, rounds: int) -> Config:
        """The run's config; what else decides its results is in the digests."""
        train = {key: value for key, value in self._tree["train"].items() if value is not None}
        server = {key: value for key, value in self._tree["server"].items() if value is not None}
        config = parse({**self._tree, "train": {**train, "rounds": rounds}, "server": server})
        layout = {name: [list(shape), str(self.layout.dtypes[name])] for name, shape in self.layout.shapes.items()}
        private = None if self.privacy is None else asdict(self.privacy)
        decided = [self.names, self.report, private, asdict(self.bounds)]
        return replace(
            config,
            data=replace(config.data, sha256=_digest(decided)),
            model=replace(config.model, sha256=_digest(layout)),
            method=replace(config.method, sha256=of_parts(self.method.parts)),
            server=replace(config.server, sha256=of_parts([self.server.optimiser])),
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """The whole run, from its checkpoint if there is one. ``evaluate_fn`` is called as by Flower's own strategies;
        clients are evaluated in the round's own message, so ``evaluate_config`` is not used.
        """
        self.begin(initial_arrays, num_rounds, train_config)
        result = Result()
        path = folder_of(self.config)
        with RunFolder(path) as folder:
            ended = folder.summary()
            if ended is not None:
                log.warning("The run %s has ended already; remove it or choose another name= to make it again.", path)
                checkpoint = folder.load("cpu", self.layout.length)
                if checkpoint is not None:
                    result.arrays = self.layout.arrays(checkpoint["w"])
                return result
            self.record = RunRecord(folder, self.config, self.names, self.report == CLIENTS, self._listeners)
            unwrapping(lambda: self._run(grid, result, timeout, evaluate_fn))
        return result

    def _run(
        self,
        grid: Grid,
        result: Result,
        timeout: float,
        evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> None:
        record, rounds = self.record, self.training.rounds
        assert record is not None
        first, stopped = self._resume(record), ""
        self._await(grid, len(self.names), self.startup, timeout)
        if evaluate is not None and first == 0:
            _note(result.evaluate_metrics_serverapp, 0, evaluate(0, self.layout.arrays(self.w)))
        t = first
        while t < rounds:
            if self.guard is not None and self.guard.exceeds(self._present):
                stopped = f"the next round would pass max_epsilon = {self.privacy and self.privacy.max_epsilon:g}"
                break
            metrics = self._whole_round(grid, t, timeout)
            if self._diverged or not self.w.isfinite().all():
                record.diverged(t)
                log.warning("Run %s diverged in round %d; use a smaller step size.", record.recorder.run.folder, t)
                return
            t += 1
            record.checkpoint(t, self._snapshot())
            result.arrays = self.layout.arrays(self.w)
            _note(result.train_metrics_clientapp, t, metrics)
            if evaluate is not None:
                _note(result.evaluate_metrics_serverapp, t, evaluate(t, result.arrays))
        result.arrays = self.layout.arrays(self.w)
        last = self._measure(grid, t, timeout) if self.report == CLIENTS else []
        record.ended(t, last, self._more(stopped))

    def _more(self, stopped: str) -> dict[str, Any]:
        """What the summary of a federation says beside the figures."""
        more: dict[str, Any] = {"report": self.report}
        if self.guard is not None:
            more |= {"epsilon": self.guard.spent, "delta": self.guard.privacy.delta, "clip": self.guard.clip}
        return more | ({"stopped": stopped} if stopped else {})

    def _resume(self, record: RunRecord) -> int:
        """Set up the folder, or be as when its checkpoint was written; the round that comes next."""
        checkpoint = record.resume(self.layout.length)
        t = 0
        if checkpoint is not None:
            t = int(checkpoint["round"])
            self.w = checkpoint["w"]
            self.state = ServerState(checkpoint["state"], checkpoint["optimiser"], checkpoint["broadcast"])
            self.key = str(checkpoint["key"])
            if self.method.remembers:
                self.last_sent = checkpoint["last_sent"]
            if self.guard is not None:
                self.guard.load(checkpoint["privacy"])
            log.info("Run %s goes on with round %d of %d.", record.recorder.run.folder, t, self.training.rounds)
        facts = {"classes": self._classes, "client_names": self.names, "federation": {"report": self.report}}
        record.started(t, checkpoint is not None, facts)
        if checkpoint is None:
            record.checkpoint(0, self._snapshot())
        return t

    def _snapshot(self) -> dict[str, Any]:
        """What a run needs to go on: tensors, texts and numbers."""
        kept: dict[str, Any] = {
            "w": self.w.clone(),
            "state": dict(self.state.rule),
            "optimiser": dict(self.state.optimiser),
            "broadcast": dict(self.state.broadcast),
            "last_sent": self.last_sent.clone() if self.method.remembers else torch.zeros(0),
            "key": self.key,
            "arrays": self.layout.kept(),
        }
        return kept if self.guard is None else {**kept, "privacy": self.guard.state()}

    def _await(self, grid: Grid, wanted: int, patience: float, timeout: float) -> None:
        """Until all clients are connected, or for a while; and for at least ``min_clients``, until the timeout."""
        began = time.monotonic()
        while True:
            there, waited = len(list(grid.get_node_ids())), time.monotonic() - began
            if there >= wanted or (there >= self.min_clients and waited >= patience):
                return
            if waited >= timeout:
                raise UserError(
                    f"only {there} nodes are connected after {waited:.0f} s, and a round needs {self.min_clients}; "
                    "start more SuperNodes, or lower min_clients"
                )
            time.sleep(_POLL)

    def _whole_round(self, grid: Grid, t: int, timeout: float) -> MetricRecord | None:
        """Round t, again and again until enough clients are there; never with fewer."""
        for attempt in range(self.max_repeats + 1):
            if attempt:
                log.warning("Round %d is repeated: only %d usable replies.", t, len(self.accepted))
                time.sleep(self.pause)
            self._attempt = attempt
            self._await(grid, self.min_clients, 0.0, timeout)
            orders = list(self.configure_train(t + 1, self.layout.arrays(self.w), self._user_config, grid))
            arrays, metrics = self.aggregate_train(t + 1, self._exchange(grid, orders, timeout))
            if arrays is not None or (self._diverged and attempt >= min(1, self.max_repeats)):
                return metrics
        raise UserError(
            f"round {t}: {len(self.accepted)} usable replies in the last of {self.max_repeats + 1} attempts, where "
            f"{self.min_clients} are needed; rejected.csv in {folder_of(self.config)} says why, and the same command "
            "goes on from here"
        )

    @staticmethod
    def _exchange(grid: Grid, orders: Sequence[Message], timeout: float) -> Iterable[Message]:
        """The replies; none, if Flower cannot read what a node has sent, so that the round is repeated."""
        try:
            return list(grid.send_and_receive(orders, timeout=timeout))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            log.warning("The replies cannot be read: %s (%s).", type(error).__name__, printable(str(error)))
            return []

    def _measure(self, grid: Grid, t: int, timeout: float) -> list[Accepted]:
        """The clients' losses and accuracies at the last model, without a step."""
        self._attempt = 0
        orders = list(self._orders_for(grid, t, self._everybody(grid), train=False))
        return self._sift(t, self._exchange(grid, orders, timeout))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The round's orders, one for each node that takes part."""
        t = server_round - 1
        nodes, n = self._everybody(grid), len(self.names)
        count = self._present
        if count < n and count < len(nodes):
            if all(self.nodes.get(client) in self._connected for client in range(n)):
                nodes = nodes[:n]  # everybody is known: the same clients as in the simulator, and nobody else
            again = [self._attempt] if self._attempt else []  # others, where these did not answer as they should
            drawn = generator(self.seed, "participation", t, *again).permutation(len(nodes))[:count]
            nodes = [nodes[i] for i in sorted(drawn)]
        return self._orders_for(grid, t, nodes, train=True, arrays=arrays, config=config)

    @property
    def _present(self) -> int:
        """How many clients take part in a round."""
        return max(1, round(self.training.participation * len(self.names)))

    def _everybody(self, grid: Grid) -> list[int]:
        """Who is connected: known clients in order of their numbers, then the others."""
        self._connected = set(grid.get_node_ids())
        known = {node: client for client, node in self.nodes.items()}
        return sorted(self._connected, key=lambda node: (known.get(node, len(self.names)), node))

    def _orders_for(
        self,
        grid: Grid,
        t: int,
        nodes: Sequence[int],
        train: bool,
        arrays: ArrayRecord | None = None,
        config: ConfigRecord | None = None,
    ) -> list[Message]:
        known = {node: client for client, node in self.nodes.items()}
        arrays = arrays or self.layout.arrays(self.w)
        local, method = self.training.local_step(t), self.method
        clip = 0.0 if self.guard is None else self.guard.clip
        due = 1 if self.record is None else self.record.due
        self._orders = {}
        messages = []
        for node in nodes:
            client = known.get(node)
            order = Order(
                method=self._text, run=self.key, ticket=secrets.token_hex(8), round=t, rounds=self.training.rounds,
                task=self.task, classes=self._classes, report=self.report, scaled=method.rung == Rung.SUM,
                sizes=self._wants_sizes, scales=self._wants_scales, train=train, evaluate=not train or t % due == 0,
                local_lr=local.lr, local_steps=self.training.local_steps, local_epochs=self.training.local_epochs,
                momentum=local.momentum, decay=local.decay, proximal=local.proximal,
                batch=self.training.batch, seed=self.seed,
                last_sent=UNKNOWN if client is None else int(self.last_sent[client]), clip=clip,
                roster=self._roster,
            )  # fmt: skip
            self._orders[node] = order
            own = {**dict(config or self._user_config), "server-round": t + 1, "lr": local.lr}
            content = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(own), ORDER: order.record()})
            if self.state.broadcast:
                content[BROADCAST] = to_arrays(self.state.broadcast)
            messages.append(Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=str(t)))
        return messages

    @property
    def _roster(self) -> list[str]:
        """Where clients that have names find their numbers."""
        if all(name == str(i) for i, name in enumerate(self.names)):
            return []
        return [roster_entry(self.key, name) for name in self.names]

    @property
    def _wants_sizes(self) -> bool:
        """Whether sample counts travel: where the rule looks at them, or may."""
        rule = self.method.aggregator
        return self.method.rung > Rung.SUM or rule.needs_sizes or not is_ours(rule)

    @property
    def _wants_scales(self) -> bool:
        """Whether the scales travel: where the server divides by their sum, or may see each client's."""
        return self.report == CLIENTS or self.method.scale.normalised

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The step from usable replies; (None, None), and nothing changes, if they are too few."""
        t = server_round - 1
        self.accepted = accepted = self._sift(t, replies)
        if not self._enough(accepted):
            return None, None
        if self.guard is not None:
            accepted = [replace(one, message=self._clipped(one.message)) for one in accepted]
        clients = torch.tensor([one.client for one in accepted])
        context = Context(
            t=torch.tensor(float(t), dtype=torch.float64),
            rounds=self.training.rounds,
            clients=clients,
            sizes=torch.tensor([one.size for one in accepted], dtype=torch.float64),
            memory={LAST_SENT: self.last_sent[clients]},
            broadcast=self.state.broadcast,
            weights=None if self.guard is None else torch.full((len(accepted),), 1 / self._present).double(),
        )
        noise = None if self.guard is None else self.guard.noisy
        cohort = Replies(accepted, self.layout.length, self.layout.dtype, context, self.access, noise)
        lr = self.training.step_size(t)
        update = self.server.update(cohort, self.state, lr)
        w = self.w.clone()
        descend(w, flattened(update.direction), lr)
        self.w, self.state = w, update.state
        for one in accepted:
            if one.message is not None:
                self.last_sent[one.client] = t
        if self.guard is not None:
            self.guard.spend([one.inside for one in accepted if one.message is not None])
        told = self.report == CLIENTS
        if self.record is not None:
            self.record.round(t, accepted, update.weights if told else None, t % self.record.due == 0)
        return self.layout.arrays(w), self._metrics(accepted)

    def _clipped(self, message: Tensor | None) -> Tensor | None:
        assert self.guard is not None
        return None if message is None else self.guard.clipped(message)

    def _metrics(self, accepted: Sequence[Accepted]) -> MetricRecord:
        """For Flower's own record of the round."""
        numbers: dict[str, MetricRecordValues] = {} if self.guard else {"clients": len(accepted)}
        losses = [one.loss for one in accepted if math.isfinite(one.loss)]
        if losses:
            numbers["loss"] = sum(losses) / len(losses)
        if self.guard is not None:
            numbers["epsilon"] = self.guard.spent
        return MetricRecord(numbers)

    def _enough(self, accepted: Sequence[Accepted]) -> bool:
        """Whether the round may go on: enough clients, and enough for the rule."""
        if len(accepted) < self.min_clients:
            return False
        senders = sum(one.message is not None for one in accepted)
        try:
            if senders:
                self.method.check(senders, self.access)
        except UserError:
            return False
        return True

    def _sift(self, t: int, replies: Iterable[Message]) -> list[Accepted]:
        """The usable replies, in order of the clients' numbers; each of the others is kept in rejected.csv."""
        good: dict[int, list[Accepted]] = {}
        heard: set[int] = set()
        spoiled = 0
        lost = "no reply before the timeout"
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in self._orders:  # Flower's own notice of a node that is gone bears another id
                if reply.has_error():
                    lost = f"no reply (code {reply.error.code}: {printable(reply.error.reason or '')})"
                else:
                    self._refuse(t, node, "reply from a node that was not asked")
                continue
            if node in heard:
                self._refuse(t, node, "second reply of the same node")
                continue
            heard.add(node)
            try:
                one = examine(reply, self._orders[node], self._form)
            except Refused as refused:
                spoiled += isinstance(refused, NotFinite)
                self._refuse(t, node, in_words(refused, self.report), claimed(reply))
            else:
                good.setdefault(one.client, []).append(one)
        for node in sorted(self._orders.keys() - heard):
            self._refuse(t, node, lost)
        self._diverged = spoiled >= self.min_clients and spoiled == len(heard) == len(self._orders)
        return sorted(filter(None, (self._settled(t, claims) for claims in good.values())), key=lambda one: one.client)

    def _settled(self, t: int, claims: list[Accepted]) -> Accepted | None:
        """Who a client is, where several nodes claim to be it: the one that was it before, if it is still there."""
        client, bound = claims[0].client, self.nodes.get(claims[0].client)
        name = self.names[client]
        chosen: Accepted | None = None
        if bound is not None and bound in self._connected:
            chosen = next((one for one in claims if one.node == bound), None)
            why = f"claims to be client '{name}', which node {bound} is"
        elif len(claims) == 1:
            chosen, why = claims[0], ""
        else:
            why = f"{len(claims)} nodes claim to be client '{name}'"
        known = {node for other, node in self.nodes.items() if other != client and node in self._connected}
        if chosen is not None and chosen.node in known:
            chosen, why = None, f"claims to be client '{name}', and was another one before"
        for one in claims:
            if one is not chosen:
                self._refuse(t, one.node, why, name)
        if chosen is not None:
            self.nodes[client] = chosen.node
        return chosen

    def _refuse(self, t: int, node: int, reason: str, claims: str = "") -> None:
        client = next((self.names[client] for client, known in self.nodes.items() if known == node), "")
        reason, claims = printable(reason), printable(claims)
        log.warning("Round %d: the reply of node %d ('%s') is not used: %s.", t, node, client or claims, reason)
        if self.record is not None:
            self.record.rejected(t, self._attempt, client, node, claims, reason)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: clients are evaluated in the round's own message."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing."""
        return None

    def summary(self) -> None:
        """Log what the strategy does."""
        log.info("%s on rung %d, report %s, %d clients", self._text, self.method.rung, self.report, len(self.names))


def _names(clients: int | Sequence[str]) -> list[str]:
    """The clients' names; a number of clients is called by the numbers of their partitions."""
    if isinstance(clients, int):
        at_least("clients", clients, 1)
        return [str(i) for i in range(clients)]
    names = [str(name) for name in clients]
    if not names or len(set(names)) < len(names):
        raise UserError(f"clients = {names!r}: each client needs a name of its own")
    return names


def _with_objective(method: str, task: str) -> str:
    """The method's text with the objective of the task, where that is not the usual one."""
    config = parse({"method": spec(method, "method")["method"]}).method
    objective = task_named(task).objective
    if config.objective is None and config.has_usual_objective and objective != USUAL:
        return f"{method}:objective={objective}"
    return method


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _note(records: dict[int, MetricRecord], t: int, metrics: MetricRecord | None) -> None:
    if metrics is not None:
        records[t] = metrics
