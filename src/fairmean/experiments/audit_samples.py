"""The samples that an audit looks at: every client's, from training and from test data, with the labels as given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean.data.dataset import Dataset
from fairmean.data.federation import Federation
from fairmean.data.tasks import Task
from fairmean.errors import UserError
from fairmean.randomness import generator

Index = NDArray[np.int64]
FEWEST_CLIENTS = 3
MOST_SAMPLES = 2_000
"""So many samples of a client are looked at unless somebody asks for more."""


@dataclass(frozen=True)
class Samples:
    """Inputs, labels as given, whose each sample is, and what it is called where it came from.

    ``client_names`` are what the clients are called, and ``class_names`` what the classes are. ``total`` says how many
    samples every client has; of a client with very many, only some are here.
    """

    x: Tensor
    y: Tensor
    client: Index
    ids: Sequence[str]
    client_names: tuple[str, ...]
    class_names: tuple[str, ...]
    classes: int
    task: Task
    total: Index
    vocabulary: int | None = None
    target_spread: float = 1.0
    target_middle: float = 0.0

    @property
    def clients(self) -> int:
        """n, the number of clients."""
        return len(self.client_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x.shape[1:])


def samples_of(clients: Federation, dataset: Dataset | None = None, most: int = MOST_SAMPLES, seed: int = 1) -> Samples:
    """What the clients of a federation have, by the labels that they use themselves; ``most`` samples of each.

    ``dataset`` says, where it knows, in which row of a table a sample stood.
    """
    check(clients)
    names = clients.client_names or tuple(str(i) for i in range(clients.clients))
    sizes, test_sizes = clients.sizes, np.diff(clients.test_offsets)
    if dataset is not None and dataset.train_clients is not None and dataset.test_clients is None:
        test_sizes = np.zeros_like(test_sizes)  # nobody said whose they are: they were handed out by their classes
    owner = np.concatenate([np.repeat(np.arange(clients.clients), count) for count in (sizes, test_sizes)])
    chosen = _chosen(owner, clients.clients, most, seed)
    split = int(clients.offsets[-1])
    first, second = (torch.from_numpy(part) for part in (chosen[chosen < split], chosen[chosen >= split] - split))
    labels = clients.class_names or tuple(str(k) for k in range(clients.classes))
    return Samples(
        x=torch.cat([clients.x[first], clients.test_x[second]]),
        y=torch.cat([clients.y[first], clients.test_own_y[second]]),
        client=owner[chosen],
        ids=_ids(clients, dataset, first.numpy(), second.numpy()),
        client_names=tuple(map(str, names)),
        class_names=tuple(map(str, labels)),
        classes=clients.classes,
        task=clients.task,
        total=np.bincount(owner, minlength=clients.clients),
        vocabulary=clients.vocabulary,
        target_spread=clients.target_spread,
        target_middle=clients.target_middle,
    )


def check(clients: Federation) -> None:
    """Raise a UserError if there is nothing to audit here."""
    if clients.task.name == "next-token":
        raise UserError(
            "audit: knows classes and numbers, and data.task = 'next-token' has tokens; audit a data set with one "
            "label for each sample"
        )
    if clients.clients < FEWEST_CLIENTS:
        raise UserError(
            f"audit: a client is judged by the others, and there {'is' if clients.clients == 1 else 'are'} "
            f"{clients.clients}; it needs at least {FEWEST_CLIENTS} clients"
        )
    if clients.dynamic is not None:
        raise UserError(
            "audit: this attack has no labels of its own, it changes them at every step; only what a run of "
            "fairmean-recess recorded can be audited then"
        )


def _chosen(owner: Index, clients: int, most: int, seed: int) -> Index:
    """All samples, or so many of a client that has more."""
    random = generator(seed, "audit", "samples")
    order = np.lexsort((random.random(len(owner)), owner))
    counts = np.bincount(owner, minlength=clients)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)  # within the client's samples
    return np.sort(order[place < most])


def _ids(clients: Federation, dataset: Dataset | None, first: Index, second: Index) -> list[str]:
    """What samples are called: rows of a table, counted from 1, files of a folder, or places in arrays, from 0."""
    train, test = clients.rows[first], clients.test_rows[second]
    if dataset is not None and dataset.table_rows is not None:
        in_train, in_test = dataset.table_rows
        rows, names = np.concatenate([in_train[train], in_test[test]]), dataset.row_names
        return [f"row {row + 1}" if names is None else names[row] for row in rows]
    return [f"x_train[{row}]" for row in train] + [f"x_test[{row}]" for row in test]
