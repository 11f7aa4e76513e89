"""Who owns which sample: partitions of the training set, and the test data that mirrors them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.errors import UserError

Index = NDArray[np.int64]

_TRIES = 1000


def check_alpha(alpha: float) -> None:
    """0 < α ≤ 10⁹; beyond that the shares are equal to nine digits, and larger numbers overflow."""
    if not 0 < alpha < float("inf"):
        raise UserError(
            f"partition.alpha = {alpha}: must be a finite number > 0 (small is heterogeneous, large is nearly iid)"
        )
    if alpha > 1e9:
        raise UserError(f"partition.alpha = {alpha:g}: must be at most 1e9; use partition.name=iid for equal shares")


def dirichlet(labels: Index, clients: int, seed: int, *, alpha: float = 0.5, min_size: int = 10) -> Index:
    """Class by class, split among clients in Dirichlet(α) shares; a client that already holds N/n samples gets none.

    Redrawn, a bounded number of times, until every client has ``min_size`` samples. The legacy NumPy generator and the
    order of its calls are those of the public code of this research line, so that seed 1 is the paper's draw.
    """
    check_alpha(alpha)
    if min_size * clients > len(labels):
        raise UserError(
            f"partition: {clients} clients × min_size {min_size} needs {min_size * clients} samples, "
            f"the data has {len(labels)}; use fewer clients or a smaller partition.min_size"
        )
    random = np.random.RandomState(seed % 2**32)
    for _ in range(_TRIES):
        owner = np.empty(len(labels), dtype=np.int64)
        held = np.zeros(clients, dtype=np.int64)
        for label in range(int(labels.max()) + 1):
            rows = np.flatnonzero(labels == label)
            random.shuffle(rows)
            share = random.dirichlet(np.repeat(alpha, clients)) * (held < len(labels) / clients)
            if not share.sum() > 0:  # a tiny α can put a whole class on clients that are full
                break
            cuts = (np.cumsum(share / share.sum()) * len(rows)).astype(int)[:-1]
            for client, part in enumerate(np.split(rows, cuts)):
                owner[part] = client
                held[client] += len(part)
        else:
            if held.min() >= min_size:
                return owner
    raise UserError(
        f"partition: no Dirichlet draw with alpha = {alpha} gave each of {clients} clients ≥ {min_size} samples in "
        f"{_TRIES} tries; use a larger partition.alpha, fewer clients or a smaller partition.min_size"
    )


def iid(labels: Index, clients: int, seed: int) -> Index:
    """A uniformly random split into parts of equal size (± 1)."""
    owner = np.arange(len(labels)) % clients
    return np.random.default_rng(seed).permutation(owner)


def shards(labels: Index, clients: int, seed: int, *, shards_per_client: int = 2) -> Index:
    """Sort by label, cut into n·k shards, give each client k of them: few classes per client."""
    if not 1 <= shards_per_client <= len(labels) // clients:
        raise UserError(
            f"partition.shards_per_client = {shards_per_client}: must be 1 … {len(labels) // clients} "
            f"for {len(labels)} samples and {clients} clients"
        )
    random = np.random.default_rng(seed)
    rows = random.permutation(len(labels))
    rows = rows[np.argsort(labels[rows], kind="stable")]
    owners = random.permutation(np.repeat(np.arange(clients), shards_per_client))
    owner = np.empty(len(labels), dtype=np.int64)
    for client, part in zip(owners, np.array_split(rows, len(owners)), strict=True):
        owner[part] = client
    return owner


PARTITIONS: dict[str, Callable[..., Index]] = {"dirichlet": dirichlet, "iid": iid, "shards": shards}
"""By name; ``given`` (ids that come with the data) is the federation's own case."""


def partition(name: str, labels: Index, clients: int, seed: int, **options: Any) -> Index:
    """The owner (0 … clients−1) of every sample; no client is empty."""
    if not 1 <= clients <= len(labels):
        raise UserError(f"partition.clients = {clients}: must be 1 … {len(labels)}, the number of samples")
    return PARTITIONS[name](labels, clients, seed, **options)


def mirror(owner: Index, labels: Index, test_labels: Index, clients: int) -> Index:
    """The owner of every test sample: each class split in proportion to the clients' training counts of it.

    Shares are rounded on their running sum, so each class is used up exactly. A sample of a class that no client
    trains on has owner −1.
    """
    test_owner = np.full(len(test_labels), -1, dtype=np.int64)
    for label in np.unique(test_labels):
        counts = np.bincount(owner[labels == label], minlength=clients)
        if counts.sum() == 0:
            continue
        rows = np.flatnonzero(test_labels == label)
        ends = np.rint(np.cumsum(counts) / counts.sum() * len(rows)).astype(int)
        test_owner[rows] = np.repeat(np.arange(clients), np.diff(ends, prepend=0))
    return test_owner
