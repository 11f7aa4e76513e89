"""What travels between server and clients: the names of records, and how a model lies in them.

To a client: ``arrays`` (the model), ``config`` (whatever the user's own training function reads), ``fairmean`` (the
order: method, round, ticket …), ``broadcast`` (what the scale sends along, if anything).

Back: ``fairmean`` (round, ticket, who it is), ``message`` (unless the client is out of the round), ``side`` (what the
scale adds up), ``statistics`` (numbers of this client, as far as they may leave it).
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from torch import Tensor

from fairmean.errors import UserError
from fairmean.rules.round import State

ARRAYS, CONFIG, ORDER, BROADCAST = "arrays", "config", "fairmean", "broadcast"
ANSWER, MESSAGE, SIDE, STATISTICS = "fairmean", "message", "side", "statistics"
SUMS, CLIENTS = "sums", "clients"
SHOWN = "shown/"
"""Before the names of what a client tells about itself, such as its excess."""
REFUSED = 400
"""The code of an error reply whose reason is a sentence for the people who run the federation."""
UNKNOWN = -2
"""In place of the last round in which a message was accepted, where the server does not know yet whom it writes to."""


@dataclass(frozen=True)
class Order:
    """What the server asks a client to do in a round; everything that the client's side of a method depends on.

    ``run`` names the federation's run for the client's memory. ``ticket`` is new in every message, and the answer must
    carry it. ``scaled``: the client multiplies its gradient by s_i itself, as on rung 0. ``report`` 'sums': no loss,
    weight or accuracy leaves the client. ``sizes`` and ``scales``: the rule needs the sample count, or Σ s_i. ``train``
    False: the client only measures. ``clip`` 0: the message is not clipped. ``roster`` has a digest for every client,
    in which a client that is known by a name finds its number, and nobody else's name; empty where names are numbers.
    """

    method: str
    run: str
    ticket: str
    round: int
    rounds: int
    task: str
    classes: int
    report: str
    scaled: bool
    sizes: bool
    scales: bool
    train: bool
    evaluate: bool
    local_lr: float
    local_steps: int
    local_epochs: int
    momentum: float
    decay: float
    proximal: float
    batch: int
    seed: int
    last_sent: int
    clip: float
    roster: list[str]

    def record(self) -> ConfigRecord:
        """As it travels."""
        return ConfigRecord(asdict(self))

    @classmethod
    def read(cls, record: ConfigRecord) -> Order:
        """As it arrived."""
        missing = [field.name for field in fields(cls) if field.name not in record]
        if missing:
            raise UserError(
                f"the server's order lacks '{missing[0]}'; install the same version of fairmean on server and clients"
            )
        values: dict[str, Any] = {field.name: record[field.name] for field in fields(cls)}
        return cls(**values)


class Layout:
    """How the arrays of a model lie in one flat vector w. Arrays that are not of floats are carried along unchanged."""

    def __init__(self, arrays: ArrayRecord) -> None:
        numbers = {name: array.numpy() for name, array in arrays.items()}
        moving = {name: values for name, values in numbers.items() if values.dtype.kind == "f"}
        if not moving:
            raise UserError("initial_arrays: holds no array of floats; pass ArrayRecord(model.state_dict())")
        self.order = tuple(numbers)
        self.fixed = {name: values for name, values in numbers.items() if name not in moving}
        self.names = tuple(moving)
        self.shapes = {name: values.shape for name, values in moving.items()}
        self.dtypes = {name: values.dtype for name, values in moving.items()}
        self.dtype = torch.from_numpy(np.empty(0, np.result_type(*self.dtypes.values()))).dtype
        ends = np.cumsum([0, *(values.size for values in moving.values())]).tolist()
        self.slices = {name: slice(a, b) for name, (a, b) in zip(self.names, pairwise(ends), strict=True)}
        self.length = ends[-1]

    @property
    def outputs(self) -> int:
        """How many numbers the model returns for a sample, if its last array belongs to its output layer."""
        shape = self.shapes[self.names[-1]]
        return int(shape[0]) if shape else 1

    @property
    def owners(self) -> list[str]:
        """The module to which each array belongs."""
        return [name.rpartition(".")[0] for name in self.names]

    @property
    def layers(self) -> tuple[slice, ...]:
        """The columns of each module that owns arrays."""
        spans: dict[str, list[slice]] = {}
        for owner, part in zip(self.owners, self.slices.values(), strict=True):
            spans.setdefault(owner, []).append(part)
        return tuple(slice(parts[0].start, parts[-1].stop) for parts in spans.values())

    def output_rows(self, messages: Tensor) -> Tensor:
        """The output layer's part of messages n×d, one row for each class with its bias: n×K×p."""
        last = [name for name, owner in zip(self.names, self.owners, strict=True) if owner == self.owners[-1]]
        parts = [messages[:, self.slices[name]].reshape(len(messages), self.shapes[name][0], -1) for name in last]
        return torch.cat(parts, 2)

    def kept(self) -> State:
        """What a checkpoint says of the arrays: their names and forms, and those that stay as they are, whole."""
        forms = {
            name: torch.from_numpy(np.zeros((), self.dtypes[name])).expand(self.shapes[name]) for name in self.names
        }
        fixed = {name: torch.from_numpy(np.array(values)) for name, values in self.fixed.items()}
        return {name: (forms | fixed)[name] for name in self.order}

    def flat(self, arrays: ArrayRecord) -> Tensor:
        """The arrays as one vector."""
        return self.joined({name: torch.from_numpy(np.array(arrays[name].numpy())) for name in self.names})

    def joined(self, tensors: State) -> Tensor:
        """Tensors by name as one vector."""
        return torch.cat([tensors[name].detach().cpu().reshape(-1).to(self.dtype) for name in self.names])

    def parts(self, flat: Tensor) -> State:
        """A vector as tensors by name."""
        return {name: flat[part].view(self.shapes[name]) for name, part in self.slices.items()}

    def message(self, flat: Tensor) -> ArrayRecord:
        """A vector as a record of the moving arrays."""
        return ArrayRecord(
            {name: Array(part.numpy().astype(self.dtypes[name])) for name, part in self.parts(flat).items()}
        )

    def arrays(self, flat: Tensor) -> ArrayRecord:
        """A model as a record of all its arrays, in the order in which it came."""
        moving = self.message(flat)
        return ArrayRecord({name: moving[name] if name in moving else Array(self.fixed[name]) for name in self.order})


def roster_entry(run: str, client: str) -> str:
    """A client in the roster of a run."""
    return hashlib.sha256(f"{run}/{client}".encode()).hexdigest()[:16]


def to_arrays(state: State) -> ArrayRecord:
    """Tensors by name as a record."""
    return ArrayRecord({name: Array(value.detach().cpu().numpy()) for name, value in state.items()})


def from_arrays(record: ArrayRecord) -> State:
    """A record as tensors by name."""
    return {name: torch.from_numpy(np.array(array.numpy())) for name, array in record.items()}
