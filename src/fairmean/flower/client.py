"""A client's side of a round: what it measures at the model that the server sent, and the message it makes of it.

    statistics at w (loss, entropy, whatever the objective measures)  →  memory, scale s_i, side   (``Method.report``)
    g_i: the full gradient at w, or (w − w_k)/local_lr after local steps, the user's own ones included
    message: s_i g_i on rung 0; g_i and s_i on the rungs above, where the rule may see both

Everything comes from the same objective, scale and passes as in the simulator. A client whose scale is 0 is out of the
round: it is measured, and then neither trains nor sends.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, MetricRecordValues, RecordDict
from flwr.app import Context as NodeContext
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fairmean.data.tasks import task
from fairmean.engine.batch import Batch
from fairmean.engine.descent import descend
from fairmean.engine.net import Net
from fairmean.engine.paths.per_client import broadcast_statistics, one_by_one
from fairmean.engine.scoring import figures, scores
from fairmean.errors import UserError
from fairmean.flower.node_memory import NodeMemory
from fairmean.flower.wire import (
    ANSWER,
    ARRAYS,
    BROADCAST,
    CLIENTS,
    MESSAGE,
    ORDER,
    REFUSED,
    SHOWN,
    SIDE,
    STATISTICS,
    UNKNOWN,
    Layout,
    Order,
    from_arrays,
    roster_entry,
    to_arrays,
)
from fairmean.randomness import derive, generator
from fairmean.rules.context import LAST_SENT, Context
from fairmean.rules.method import Method
from fairmean.rules.named import parse_method
from fairmean.rules.round import State

ModelMaker = Callable[[], nn.Module]
DataLoader = Callable[[NodeContext], Any]
Training = Callable[[Message, NodeContext], Message]
_MEMORY = "FAIRMEAN_MEMORY"


def client_app(model: ModelMaker, data: DataLoader, *, memory: str | Path | None = None) -> ClientApp:
    """A whole ClientApp: full gradients, local steps or local epochs, as the server's strategy says.

    ``model()`` makes the model, whose ``state_dict`` has the names of the server's arrays. ``data(context)`` returns
    the node's samples, as ``(x, y, test_x, test_y)`` or as two loaders of batches. ``memory`` is the folder for what
    clients remember (else that of the environment variable FAIRMEAN_MEMORY, else ``.fairmean`` where the node runs).
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: NodeContext) -> Message:
        return answer(message, context, model, data, memory)

    return app


def fair(model: ModelMaker, data: DataLoader, *, memory: str | Path | None = None) -> Callable[[Training], Training]:
    """A decorator for a training function of yours, to stand below ``@app.train()``; the arguments are client_app's.

    Your function gets the message as ever: the model in ``message.content["arrays"]``, and in its ``"config"`` the
    round (``server-round``) and the step size (``lr``). It returns a message with one ArrayRecord, the trained model.
    """

    def decorate(training: Training) -> Training:
        @functools.wraps(training)
        def train(message: Message, context: NodeContext) -> Message:
            return answer(message, context, model, data, memory, training)

        return train

    return decorate


def identity(context: NodeContext) -> str:
    """Who this node is: what its node config calls it, which outlives restarts."""
    config = context.node_config
    name = config.get("client", config.get("name", config.get("partition-id")))
    if name is None:
        raise UserError(
            'this node has no name; start it with --node-config "partition-id=0" or --node-config "client=\'mercy\'"'
        )
    return str(name)


class Samples(NamedTuple):
    """A node's data; there may be no test samples."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def answer(
    message: Message,
    context: NodeContext,
    model: ModelMaker,
    data: DataLoader,
    memory: str | Path | None = None,
    training: Training | None = None,
) -> Message:
    """The reply to a message; a mistake that people can mend is an error reply that says which."""
    try:
        if ORDER not in message.content.config_records:
            raise UserError("the message is not from fairmean's strategy; use fairmean.flower.FairStrategy as a server")
        order = Order.read(message.content.config_records[ORDER])
        name = identity(context)
        client = _Client(order, message, name, model, _samples(data(context)), _memory_folder(memory))
        content = client.reply(None if training is None else functools.partial(training, message, context))
        return Message(content, reply_to=message)
    except UserError as error:
        return Message(Error(REFUSED, str(error)), reply_to=message)


class _Client:
    """One client in one round."""

    def __init__(
        self, order: Order, message: Message, name: str, model: ModelMaker, samples: Samples, folder: Path
    ) -> None:
        self.order, self.samples = order, samples
        self.name, self.number = name, _number(order, name)
        self.method: Method = parse_method(order.method)
        self.layout = Layout(message.content.array_records[ARRAYS])
        self.net = _net(model(), message.content.array_records[ARRAYS], self.layout)
        self.memory = NodeMemory(folder, order.run, self.name)
        broadcast = message.content.array_records.get(BROADCAST)
        self.context = Context(
            t=torch.tensor(float(order.round), dtype=torch.float64),
            rounds=order.rounds,
            clients=torch.tensor([self.number]),
            sizes=torch.tensor([float(len(samples.x))], dtype=torch.float64),
            memory=self._remembered(),
            broadcast={} if broadcast is None else from_arrays(broadcast),
        )

    def _remembered(self) -> State:
        """What the client knows from earlier rounds; the server knows which of its messages was accepted last."""
        if not self.method.remembers:
            return {}
        stored = self.memory.before(self.order.round)
        first = self.method.memory(1, self.order.classes)
        known = first if stored is None or stored.keys() != first.keys() else stored
        if self.order.last_sent != UNKNOWN:
            known = known | {LAST_SENT: torch.full((1,), float(self.order.last_sent), dtype=torch.float64)}
        return known

    def reply(self, training: Callable[[], Message] | None) -> RecordDict:
        """What the client sends back."""
        order, method = self.order, self.method
        batch = self._batch(np.arange(len(self.samples.x)))
        with self.net.evaluating():
            losses, means = broadcast_statistics(self.net, batch, self._chunk, method, self.context)
            accuracy = self._accuracy() if order.evaluate and order.report == CLIENTS else None
        numbers: dict[str, MetricRecordValues] = {}
        if order.report == CLIENTS:
            numbers["loss"] = losses.item()
            if accuracy is not None and np.isfinite(accuracy):
                numbers["accuracy"] = accuracy
            if order.evaluate:
                shown = method.shown(self.context.memory, self.context.broadcast)
                numbers |= {SHOWN + name: float(value[0]) for name, value in shown.items() if value.isfinite()}
        content = RecordDict({STATISTICS: MetricRecord(numbers)})
        told = ConfigRecord({"round": order.round, "ticket": order.ticket, "client": self.name, "sent": False})
        content[ANSWER] = told
        if not order.train:
            return content
        report = method.report(losses, means, self.context)
        scale = float(report.scales[0])
        if order.sizes:
            numbers["size"] = len(self.samples.x)
        if order.scales:
            numbers["scale"] = scale
        if report.side:
            content[SIDE] = to_arrays({name: value[0] for name, value in report.side.items()})
        if scale != 0 or not method.may_be_out:
            gradient = self._gradient(batch) if training is None else self._pseudo_gradient(training())
            vector = gradient * scale if order.scaled else gradient
            if order.clip > 0:
                norm = float(vector.double().norm())
                numbers["inside"] = float(norm <= order.clip)
                vector = vector * min(1.0, order.clip / max(norm, 1e-300))
            content[MESSAGE] = self.layout.message(vector)
            told["sent"] = True
        content[STATISTICS] = MetricRecord(numbers)
        if method.remembers:
            self.memory.keep(order.round, report.memory)
        return content

    @property
    def _chunk(self) -> int:
        return self.net.chunk_rows(self.samples.x).rows

    def _batch(self, rows: Any, key: int = 0) -> Batch:
        """Some of the client's samples, as the engine's passes take them."""
        places = torch.from_numpy(rows)
        whole, m = len(rows) == len(self.samples.x), len(rows)
        return Batch(
            clients=np.array([self.number]),
            offsets=np.array([0, m]),
            lengths=torch.tensor([m]),
            sizes=self.context.sizes,
            ids=self.context.clients,
            x=self.samples.x if whole else self.samples.x[places],
            y=self.samples.y if whole else self.samples.y[places],
            rows=places,
            dynamic=None,
            key=key,
            bounds=np.array([0, 1]),
        )

    def _gradient(self, batch: Batch) -> Tensor:
        """The full gradient at w, or (w − w_k)/local_lr after local steps."""
        order, net = self.order, self.net
        w, batches = net.flat.clone(), self._batches(batch)
        gradient, velocity = torch.zeros(1, len(w), dtype=w.dtype), torch.zeros_like(w)
        one = len(batches) == 1 and order.decay == 0
        for number, step in enumerate(batches):
            key = derive(order.seed, "dropout", order.round, number) & 0xFFFFFFFF  # masks are new in every step
            step = replace(step, key=key, _spans={})
            one_by_one(net, step, step.span(0, 1, self._chunk), self.method, self.context, gradient, measure=False)
            if not one:  # v ← βv + g + a·w_k + μ(w_k − w)
                pull = order.decay * net.flat + order.proximal * (net.flat - w)
                velocity = order.momentum * velocity + gradient[0] + pull
                descend(net.flat, net.held(velocity), order.local_lr)
        flat = gradient[0] if one else (w - net.flat) / order.local_lr
        views = dict(zip(net.model.parameters(), net.views(flat), strict=True))
        every = net.model.named_parameters(remove_duplicate=False)  # a shared parameter has several names
        found = {name: views[parameter] for name, parameter in every}
        zeros = {name: torch.zeros(self.layout.shapes[name]) for name in self.layout.names if name not in found}
        return self.layout.joined(found | zeros)

    def _batches(self, batch: Batch) -> list[Batch]:
        """The samples of every local step; each epoch goes once through all of them, in an order of its own."""
        order, m = self.order, len(self.samples.x)
        if not order.batch or order.batch >= m:
            return [batch] * (order.local_epochs or order.local_steps)
        per_epoch = -(-m // order.batch)
        count = order.local_epochs * per_epoch or order.local_steps
        shuffled = generator(order.seed, "flower-batches", self.name, order.round)
        chosen: list[Batch] = []
        while len(chosen) < count:
            rows = shuffled.permutation(m)
            starts = range(0, m, order.batch)
            chosen += [self._batch(rows[a : a + order.batch]) for a in starts]
        return chosen[:count]

    def _pseudo_gradient(self, reply: Message) -> Tensor:
        """(w − w_k)/local_lr of what the user's own function trained."""
        if reply.has_error():
            raise UserError(f"the training function replied with an error: {reply.error.reason}")
        records = list(reply.content.array_records.values())
        if len(records) != 1 or set(records[0]) != set(self.layout.order):
            raise UserError(
                "the training function must return one ArrayRecord with the names of the one that it was given"
            )
        trained = self.layout.flat(ArrayRecord({name: records[0][name] for name in self.layout.order}))
        before = self.layout.joined({name: self._before[name] for name in self.layout.names})
        return (before - trained) / self.order.local_lr

    @functools.cached_property
    def _before(self) -> State:
        return {name: value.detach() for name, value in self.net.model.state_dict().items()}

    def _accuracy(self) -> float:
        """The task's figure on the node's test samples; NaN if there are none."""
        kind, x, y = task(self.order.task), self.samples.test_x, self.samples.test_y
        parts = []
        with torch.no_grad():
            for start in range(0, len(x), self._chunk):
                part = slice(start, start + self._chunk)
                rows = torch.arange(len(x))[part]
                parts.append(scores(kind, self.net.logits(x[part], rows, 0, exact=True), y[part]))
        values = torch.cat(parts).numpy() if parts else np.zeros(0)
        return float(figures(kind, values, np.array([0, len(x)]), 1.0)[0])


def _net(model: nn.Module, arrays: ArrayRecord, layout: Layout) -> Net:
    """The model with the server's parameters."""
    own, sent = dict(model.state_dict()), arrays.to_torch_state_dict()
    if own.keys() != sent.keys() or any(own[name].shape != sent[name].shape for name in own):
        odd = next((name for name in [*own, *sent] if name not in own or name not in sent), None)
        odd = odd or next(name for name in own if own[name].shape != sent[name].shape)
        raise UserError(f"the server's model and this node's differ in '{odd}'; use the same model on both")
    model.load_state_dict(sent)
    return Net(model, "cpu", layout.dtype)


def _number(order: Order, name: str) -> int:
    """The number of the client of that name."""
    if order.roster:
        entry = roster_entry(order.run, name)
        if entry in order.roster:
            return order.roster.index(entry)
    elif name.isdecimal():
        return int(name)
    raise UserError(f"this node is called '{name}', and the server knows no such client; see clients= of its strategy")


def _memory_folder(folder: str | Path | None) -> Path:
    return Path(folder if folder is not None else os.environ.get(_MEMORY, ".fairmean"))


def _samples(given: Any) -> Samples:
    """What the user's data function returned, as tensors."""
    if isinstance(given, tuple | list) and len(given) == 4:
        x, y, test_x, test_y = (torch.as_tensor(part) for part in given)
    elif isinstance(given, tuple | list) and len(given) == 2:
        (x, y), (test_x, test_y) = _collected(given[0]), _collected(given[1])
    else:
        raise UserError("data: must return (x, y, test_x, test_y), or a loader for training and one for testing")
    if not len(x) or len(x) != len(y) or len(test_x) != len(test_y):
        raise UserError(
            f"data: returned {len(x)} inputs with {len(y)} labels; each sample needs one, and there must be some"
        )
    return Samples(x, y, test_x, test_y)


def _collected(batches: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """All batches of a loader, one after the other."""
    pairs = [tuple(batch.values()) if isinstance(batch, dict) else tuple(batch) for batch in batches]
    if any(len(pair) != 2 for pair in pairs):
        raise UserError("data: a loader must give pairs of inputs and labels")
    if not pairs:
        return torch.zeros(0), torch.zeros(0)
    return torch.cat([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])
