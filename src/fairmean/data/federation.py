"""The clients' data: tensors sorted by client, who is regular, who is poisoned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean.data.dataset import Dataset
from fairmean.data.partitions import mirror, partition
from fairmean.data.poisoning import ATTACKS, Labels, choose
from fairmean.data.tasks import TASKS, Task, task
from fairmean.errors import UserError
from fairmean.randomness import generator

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Federation:
    """Samples sorted by client: client i owns rows ``offsets[i]:offsets[i+1]`` (and likewise for the test data).

    ``y`` holds the labels as each client sees them; ``dynamic`` marks rows whose label a poisoned client sets anew at
    every step (``FURTHEST`` or ``ADAPTIVE`` of ``poisoning``; 0: it does not). ``classes`` is the number of classes (of
    tokens, for next-token prediction), and ``vocabulary`` how many different tokens there are in the whole data set,
    None where inputs are no tokens. ``rows`` and ``test_rows`` are the samples' places in the data set. ``trust_x``,
    ``trust_y``: clean test samples that the server owns, in no client's test data. ``held_out_x`` and what goes with it
    are training samples on which the clients are evaluated while they train, where some were held out. ``split`` tells
    how the samples were divided. ``places``: where clients share samples, x holds each of them once, and row r of the
    clients has the input ``x[places[r]]``; else row r has ``x[r]``.
    """

    x: Tensor
    y: Tensor
    clean_y: Tensor
    offsets: Index
    regular: NDArray[np.bool_]
    test_x: Tensor
    test_y: Tensor
    test_own_y: Tensor
    test_offsets: Index
    classes: int
    rows: Index
    test_rows: Index
    dynamic: Tensor | None = None
    test_dynamic: Tensor | None = None
    trust_x: Tensor | None = None
    trust_y: Tensor | None = None
    split: tuple[Any, ...] = ()
    task: Task = TASKS["classification"]
    target_spread: float = 1.0
    target_middle: float = 0.0
    client_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    vocabulary: int | None = None
    held_out_x: Tensor | None = None
    held_out_y: Tensor | None = None
    held_out_rows: Index | None = None
    held_out_offsets: Index | None = None
    places: Tensor | None = None

    @property
    def clients(self) -> int:
        """n, the number of clients."""
        return len(self.offsets) - 1

    @property
    def outputs(self) -> int:
        """How many numbers a model returns for a sample."""
        return self.task.outputs(self.classes)

    @property
    def sizes(self) -> Index:
        """m_i, training samples per client."""
        return np.diff(self.offsets)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x.shape[1:])

    def inputs(self, rows: Tensor) -> Tensor:
        """The inputs of these rows of the clients."""
        chosen = rows if self.places is None else self.places[rows].long()
        if self.x.is_contiguous():
            return self.x.index_select(0, chosen)  # which copies whole rows, twice as fast as indexing
        if self.x.dim() == 4 and self.x.is_contiguous(memory_format=torch.channels_last):
            return self.x.permute(0, 2, 3, 1).index_select(0, chosen).permute(0, 3, 1, 2)
        return self.x[chosen]

    def on_validation(self) -> Federation | None:
        """The same with the samples that were held out from training in the place of the test samples."""
        if self.held_out_x is None:
            return None
        assert self.held_out_y is not None
        assert self.held_out_offsets is not None
        return replace(
            self,
            test_x=self.held_out_x,
            test_y=self.held_out_y,
            test_own_y=self.held_out_y,
            test_offsets=self.held_out_offsets,
            test_dynamic=None,
        )

    def tests_of(self, clients: Index) -> Federation:
        """The same with the test samples of these clients alone, in their order, as ``test_offsets`` then says."""
        starts, counts = self.test_offsets[clients], np.diff(self.test_offsets)[clients]
        ends = np.concatenate([[0], np.cumsum(counts)])
        rows = torch.from_numpy(np.arange(ends[-1]) + np.repeat(starts - ends[:-1], counts)).to(self.test_x.device)
        return replace(
            self,
            test_x=self.test_x[rows],
            test_y=self.test_y[rows],
            test_own_y=self.test_own_y[rows],
            test_dynamic=None if self.test_dynamic is None else self.test_dynamic[rows],
            test_offsets=ends,
        )

    def class_counts(self, labels: Tensor) -> Index:
        """How many training samples of each class every client has by these labels: clients × classes."""
        owner = np.repeat(np.arange(self.clients), self.sizes)
        places = owner * self.classes + labels.cpu().numpy()
        return np.bincount(places, minlength=self.clients * self.classes).reshape(self.clients, self.classes)

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Federation:
        """The same federation on a device, inputs in ``dtype``."""
        moved: dict[str, Any] = {
            name: value.to(device, dtype if value.is_floating_point() else None)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)


def poisoned_clients(n: int, clients: int | list[int], fraction: float | None, pick: str, seed: int) -> Index:
    """Ids of the poisoned clients: as listed; or so many (a count or a fraction), the last ones or drawn at random."""
    if isinstance(clients, list):
        if not all(0 <= client < n for client in clients):
            raise UserError(f"attack.clients = {clients}: ids must be 0 … {n - 1}")
        ids = np.array(sorted(set(clients)), dtype=np.int64)
    else:
        count = clients if fraction is None else round(fraction * n)
        if count < 0:
            raise UserError(f"attack.clients = {count}: must be ≥ 0, or a list of client ids")
        everyone = np.arange(n) if pick == "last" else generator(seed, "poisoned clients").permutation(n)
        ids = np.sort(everyone[max(0, n - count) :])
    if len(ids) >= n:
        raise UserError(f"attack: all {n} clients would be poisoned; leave at least one regular client")
    return ids


def inputs(x: NDArray[Any], mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """uint8 images to normalised float32, channels first; float arrays and tokens as they are."""
    if x.dtype == np.int64:
        return torch.from_numpy(np.ascontiguousarray(x))
    if x.dtype != np.uint8:
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    table = np.arange(256, dtype=np.float32) / 255  # one look-up per pixel: (x/255 − mean)/std
    if x.ndim == 4:
        planes = [
            ((table - m) / s)[x[..., c]] for c, (m, s) in enumerate(zip(_per(x, mean), _per(x, std), strict=True))
        ]
        return torch.from_numpy(np.stack(planes, axis=1, dtype=np.float32))
    return torch.from_numpy(((table - mean[0]) / std[0]).astype(np.float32)[x])


def _per(x: NDArray[Any], values: tuple[float, ...]) -> tuple[float, ...]:
    return values if len(values) == x.shape[-1] else values[:1] * x.shape[-1]


def build(
    data: Dataset,
    *,
    partition_name: str = "dirichlet",
    clients: int = 10,
    partition_seed: int = 1,
    partition_options: dict[str, Any] | None = None,
    attack: str = "none",
    poisoned: Index | None = None,
    rho: float = 1.0,
    source: int = 0,
    target: int = 1,
    seed: int = 1,
    trust: int = 0,
    validation: float = 0.0,
    like: Federation | None = None,
) -> Federation:
    """Partition the data, give each client test data that mirrors its training mix, poison labels.

    ``like``: a federation of the same data, whose inputs are shared where they are the same samples in the same order,
    and else rearranged where they lie.
    """
    options = partition_options or {}
    divided = (partition_name, clients, partition_seed, *sorted(options.items()))
    split = (*divided, trust, seed if trust else None, validation)
    trusted = np.sort(generator(seed, "trust").permutation(len(data.test_y))[:trust]) if trust else np.array([], int)
    held_out: dict[str, Any] = {}
    if like is not None and like.split == split:
        rows, offsets, test_rows, test_offsets = like.rows, like.offsets, like.test_rows, like.test_offsets
        held_out = {"held_out_rows": like.held_out_rows, "held_out_offsets": like.held_out_offsets}
    else:
        owner, test_owner = _owners(data, partition_name, clients, partition_seed, options)
        rows, test_rows = np.argsort(owner, kind="stable"), np.argsort(test_owner, kind="stable")
        test_rows = test_rows[(test_owner[test_rows] >= 0) & ~np.isin(test_rows, trusted)]
        offsets, test_offsets = (_offsets(whose, clients) for whose in (owner, test_owner[test_rows]))
        if validation:
            whose = owner[rows]
            chosen = choose(whose, np.arange(clients), validation, generator(partition_seed, "validation"), spare=1)
            held_out = {"held_out_rows": rows[chosen], "held_out_offsets": _offsets(whose[chosen], clients)}
            rows, offsets = rows[~chosen], _offsets(whose[~chosen], clients)
    owner, test_owner = (np.repeat(np.arange(clients), np.diff(at)) for at in (offsets, test_offsets))

    rule, what = ATTACKS[attack], task(data.task)
    if attack not in what.attacks:
        raise UserError(
            f"attack.name = '{attack}': is not for {what.name}, which '{data.name}' is; use {', '.join(what.attacks)}"
        )
    if attack != "none" and what.has_classes and data.classes < 2:
        raise UserError(f"attack.name = '{attack}': the data '{data.name}' has one class, there is no other label")
    poisoned = np.array([], dtype=np.int64) if attack == "none" or poisoned is None else poisoned
    regular = ~np.isin(np.arange(clients), poisoned)
    relabel = rule.make(_labels(data, source, target), generator(seed, "poisoning")) if rule.make else None
    labels, own = [], []
    for name, whose, clean, inputs_of in (
        ("train", owner, data.train_y[rows], lambda: data.train_x[rows]),
        ("test", test_owner, data.test_y[test_rows], lambda: data.test_x[test_rows]),
    ):
        chosen = choose(whose, poisoned, rho, generator(seed, "poisoned samples", name))
        wrong = relabel(clean, whose, inputs_of) if relabel else clean
        labels.append((clean, np.where(chosen.reshape(-1, *[1] * (clean.ndim - 1)), wrong, clean)))
        own.append(torch.from_numpy(chosen * np.int8(rule.dynamic)) if rule.dynamic else None)
    (clean_y, y), (test_y, test_own_y) = labels

    def samples(part: NDArray[Any], chosen: Index, known: str, known_rows: str) -> Tensor:
        if like is not None and getattr(like, known_rows) is not None:
            there: Index = getattr(like, known_rows)
            shared: Tensor = getattr(like, known)
            if there is chosen or np.array_equal(there, chosen):
                return shared
            place = np.full(len(part), -1)
            place[there] = np.arange(len(there))
            if (place[chosen] >= 0).all():
                return shared[torch.from_numpy(place[chosen]).to(shared.device)]
        return inputs(part[chosen], data.mean, data.std)

    if validation:
        held_out["held_out_x"] = samples(data.train_x, held_out["held_out_rows"], "held_out_x", "held_out_rows")
        held_out["held_out_y"] = torch.from_numpy(data.train_y[held_out["held_out_rows"]])
    return Federation(
        x=samples(data.train_x, rows, "x", "rows"),
        y=torch.from_numpy(y),
        clean_y=torch.from_numpy(clean_y),
        offsets=offsets,
        regular=regular,
        test_x=samples(data.test_x, test_rows, "test_x", "test_rows"),
        test_y=torch.from_numpy(test_y),
        test_own_y=torch.from_numpy(test_own_y),
        test_offsets=test_offsets,
        classes=data.classes,
        rows=rows,
        test_rows=test_rows,
        dynamic=own[0],
        test_dynamic=own[1],
        trust_x=inputs(data.test_x[trusted], data.mean, data.std) if trust else None,
        trust_y=torch.from_numpy(data.test_y[trusted]) if trust else None,
        split=split,
        task=what,
        target_spread=data.target_spread,
        target_middle=data.target_middle,
        client_names=data.client_names,
        class_names=data.class_names,
        vocabulary=_vocabulary(data),
        **held_out,
    )


def _owners(data: Dataset, name: str, clients: int, seed: int, options: dict[str, Any]) -> tuple[Index, Index]:
    if name != "given":
        train, test = _kinds(data)
        owner = partition(name, train, clients, seed, **options)
        return owner, mirror(owner, train, test, clients)
    if data.train_clients is None:
        raise UserError(f"partition.name = 'given': the data '{data.name}' brings no client ids (clients_train)")
    owner = data.train_clients
    if owner.max() >= len(owner):
        raise UserError(
            f"partition.name = 'given': clients_train names client {owner.max():,}, and there are {len(owner):,} "
            "samples; number the clients 0 … n−1"
        )
    counts = np.bincount(owner)
    if len(counts) != clients and counts.min() > 0:
        raise UserError(
            f"partition.name = 'given': the data has {len(counts)} clients, and partition.clients = {clients}; set "
            f"partition.clients={len(counts)}"
        )
    if counts.min() == 0:
        raise UserError(
            f"partition.name = 'given': the data has clients {owner.min()} … {owner.max()}, "
            f"{int((counts == 0).sum())} of them empty, but partition.clients = {clients}; "
            "number them 0 … n−1 and set partition.clients = n"
        )
    if data.test_clients is not None:
        if data.test_clients.max(initial=0) >= clients:
            raise UserError(
                f"data '{data.name}': clients_test names client {data.test_clients.max()}, there are {clients}"
            )
        return owner, data.test_clients
    return owner, mirror(owner, *_kinds(data), clients)


def _offsets(owner: Index, clients: int) -> Index:
    """Where each client's samples begin, when they are sorted by client."""
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=clients))])


def _kinds(data: Dataset) -> tuple[Index, Index]:
    """What a partition looks at: the class of every sample; the tenth in which a number lies; nothing of sequences."""
    if data.task == "regression":
        edges = np.quantile(data.train_y, np.linspace(0, 1, 11)[1:-1])
        return np.digitize(data.train_y, edges), np.digitize(data.test_y, edges)
    if data.train_y.ndim > 1:
        return np.zeros(len(data.train_y), np.int64), np.zeros(len(data.test_y), np.int64)
    return np.asarray(data.train_y, np.int64), np.asarray(data.test_y, np.int64)


def _vocabulary(data: Dataset) -> int | None:
    """How many different tokens the inputs may hold: 0 … the largest one, or as many as are predicted."""
    if data.train_x.dtype != np.int64:
        return None
    predicted = data.classes if data.task == "next-token" else 1
    return max(predicted, *(int(x.max(initial=0)) + 1 for x in (data.train_x, data.test_x)))


def _class_means(data: Dataset) -> NDArray[np.float64]:
    """The mean input of every class in the training data; infinite where a class has no sample."""
    if data.train_x.dtype == np.int64:
        raise UserError(
            f"attack.name: look-alike and confused compare inputs, and '{data.name}' has tokens; use another attack"
        )
    flat = data.train_x.reshape(len(data.train_x), -1)
    means = np.full((data.classes, flat.shape[1]), np.inf)
    for c in np.unique(data.train_y):
        means[c] = flat[data.train_y == c].mean(0, dtype=np.float64)
    return means


def _labels(data: Dataset, source: int, target: int) -> Labels:
    """What an attack may know of the labels."""
    if data.task != "regression":
        return Labels(data.classes, source, target, class_means=lambda: _class_means(data))
    y = data.train_y.astype(np.float64)
    return Labels(data.classes, source, target, float(y.mean()), float(y.std()))
