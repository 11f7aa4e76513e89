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
from fairmean.data.poisoning import ATTACKS, choose
from fairmean.errors import UserError
from fairmean.randomness import generator

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Federation:
    """Samples sorted by client: client i owns rows ``offsets[i]:offsets[i+1]`` (and likewise for the test data).

    ``y`` holds the labels as each client sees them; ``dynamic`` marks rows whose label a poisoned client sets anew at
    every step, to the class the current model finds least likely. ``rows`` and ``test_rows`` are the samples' places in
    the data set. ``trust_x``, ``trust_y``: clean test samples that the server owns, in no client's test data. ``split``
    tells how the samples were divided.
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

    @property
    def clients(self) -> int:
        """n."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Index:
        """m_i, training samples per client."""
        return np.diff(self.offsets)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.x.shape[1:])

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
    """uint8 images to normalised float32, channels first; float arrays as they are."""
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
    like: Federation | None = None,
) -> Federation:
    """Partition the data, give each client test data that mirrors its training mix, poison labels.

    ``like``: a federation of the same data, whose inputs are shared where they are the same samples in the same order,
    and else rearranged where they lie.
    """
    options = partition_options or {}
    split = (partition_name, clients, partition_seed, *sorted(options.items()), trust, seed if trust else None)
    trusted = np.sort(generator(seed, "trust").permutation(len(data.test_y))[:trust]) if trust else np.array([], int)
    if like is not None and like.split == split:
        rows, offsets, test_rows, test_offsets = like.rows, like.offsets, like.test_rows, like.test_offsets
    else:
        owner, test_owner = _owners(data, partition_name, clients, partition_seed, options)
        rows, test_rows = np.argsort(owner, kind="stable"), np.argsort(test_owner, kind="stable")
        test_rows = test_rows[(test_owner[test_rows] >= 0) & ~np.isin(test_rows, trusted)]
        offsets, test_offsets = (
            np.concatenate([[0], np.cumsum(np.bincount(whose, minlength=clients))])
            for whose in (owner, test_owner[test_rows])
        )
    owner, test_owner = (np.repeat(np.arange(clients), np.diff(at)) for at in (offsets, test_offsets))

    rule = ATTACKS[attack]
    if attack != "none" and data.classes < 2:
        raise UserError(f"attack.name = '{attack}': the data '{data.name}' has one class, there is no other label")
    poisoned = np.array([], dtype=np.int64) if attack == "none" or poisoned is None else poisoned
    regular = ~np.isin(np.arange(clients), poisoned)
    relabel = rule.make(data.classes, generator(seed, "poisoning"), source, target) if rule.make else None
    labels, own = [], []
    for name, whose, clean in (
        ("train", owner, data.train_y[rows]),
        ("test", test_owner, data.test_y[test_rows]),
    ):
        chosen = choose(whose, poisoned, rho, generator(seed, "poisoned samples", name))
        labels.append((clean, np.where(chosen, relabel(clean), clean) if relabel else clean))
        own.append(torch.from_numpy(chosen) if rule.dynamic else None)
    (clean_y, y), (test_y, test_own_y) = labels

    def samples(part: NDArray[Any], chosen: Index, known: str, known_rows: str) -> Tensor:
        if like is not None:
            there: Index = getattr(like, known_rows)
            shared: Tensor = getattr(like, known)
            if there is chosen or np.array_equal(there, chosen):
                return shared
            place = np.full(len(part), -1)
            place[there] = np.arange(len(there))
            if (place[chosen] >= 0).all():
                return shared[torch.from_numpy(place[chosen]).to(shared.device)]
        return inputs(part[chosen], data.mean, data.std)

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
    )


def _owners(data: Dataset, name: str, clients: int, seed: int, options: dict[str, Any]) -> tuple[Index, Index]:
    if name != "given":
        owner = partition(name, data.train_y, clients, seed, **options)
        return owner, mirror(owner, data.train_y, data.test_y, clients)
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
    return owner, mirror(owner, data.train_y, data.test_y, clients)
