"""Rows into training and test data, client by client, and all of it into a data set."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairmean.data.column import Column, named
from fairmean.data.dataset import Dataset
from fairmean.data.targets import Target
from fairmean.errors import UserError, nearest

Index = NDArray[np.int64]
_WHOLE = re.compile(r"-?\d+\.0")
_SEED = 1  # never another one: a table is always divided in the same way, whatever a run's seed is


class Owners(NamedTuple):
    """Whose a row is, and what clients are called."""

    ids: Index
    names: tuple[str, ...]


def owners(name: str, column: Column) -> Owners:
    """The clients that a column names."""
    if column.absent.any():
        raise UserError(f"data '{name}': the client {column.trouble}")
    ids, names = named(column)
    if all(_WHOLE.fullmatch(called) for called in names) and len({called[:-2] for called in names}) == len(names):
        names = tuple(called[:-2] for called in names)  # 1.0 is how some programs write client 1
    if len(names) == len(ids) > 1:
        raise UserError(
            f"data '{name}': the client column '{column.name}' names another client in every row: name another column "
            "with data.client, or leave it out"
        )
    return Owners(ids, names)


def marked(name: str, column: Column) -> NDArray[np.bool_]:
    """The rows that a column calls 'test'; the others must be called 'train'."""
    if column.absent.any():
        raise UserError(f"data '{name}': the split {column.trouble}")
    ids, names = named(column)
    for i, value in enumerate(names):
        if value.lower() not in ("train", "test"):
            near = nearest(value.lower(), ("train", "test"))
            hint = f"write '{near}'" if near else "its values must be 'train' and 'test'"
            row = int((ids == i).argmax()) + 1
            raise UserError(f"data '{name}': the split column '{column.name}' has '{value}' in row {row:,}: {hint}")
    return np.array([value.lower() == "test" for value in names])[ids]


def division(kinds: NDArray[Any], ids: Index | None, fraction: float, classes: bool) -> NDArray[np.bool_]:
    """The rows for testing: of each client, ``fraction`` of its rows, at least one where it has two, never all.

    A client's rows are sorted by what they hold (``kinds``: classes or numbers) and taken at equal distances from a
    random first one, so that the test rows are a picture of the others. Every class stays in the training data.
    """
    rows = len(kinds)
    ids = np.zeros(rows, np.int64) if ids is None else ids
    draw = np.random.default_rng(_SEED)
    order = np.lexsort((draw.random(rows), kinds, ids))
    bounds = np.concatenate([[0], np.cumsum(np.bincount(ids))])
    test = np.zeros(rows, bool)
    for first, last in pairwise(bounds.tolist()):
        size = last - first
        count = min(max(1, round(fraction * size)), size - 1)
        if count > 0:
            steps = (np.arange(count) + draw.random()) * (size / count)
            test[order[first + steps.astype(np.int64)]] = True
    if classes:
        _keep_classes(test, kinds.astype(np.int64), ids, np.diff(bounds))
    return test


def _keep_classes(test: NDArray[np.bool_], kinds: Index, ids: Index, sizes: Index) -> None:
    """A class that has test rows alone gets one back, for which the same client gives another where it can."""
    for kind in np.setdiff1d(np.unique(kinds), np.unique(kinds[~test])):
        candidates = np.flatnonzero(kinds == kind)
        row = candidates[sizes[ids[candidates]].argmax()]
        trained = np.bincount(kinds[~test], minlength=int(kinds.max()) + 1)
        others = np.flatnonzero((ids == ids[row]) & ~test & (trained[kinds] > 1))
        test[row] = False
        test[others[:1]] = True


def dataset_of(
    name: str,
    x: NDArray[Any],
    target: Target,
    owned: Owners | None = None,
    test: NDArray[np.bool_] | None = None,
    fraction: float = 0.2,
    table: bool = False,
) -> Dataset:
    """A data set of rows; ``test`` says which of them are for testing, and without it each client's are divided."""
    y, ids = target.values, owned.ids if owned else None
    if len(y) < 2:
        raise UserError(f"data '{name}' has {len(y)} rows: it needs at least two, one to train and one to test")
    classes = target.names is not None
    if test is None:
        kinds = np.zeros(len(y)) if y.ndim > 1 else y
        test = division(kinds, ids, fraction, classes)
        if not test.any():
            raise UserError(f"data '{name}': every client has a single row, so that none is left for testing")
    else:
        _check(name, target, owned, test)
    train = ~test
    return Dataset(
        name=name,
        train_x=np.ascontiguousarray(x[train]),
        train_y=y[train],
        test_x=np.ascontiguousarray(x[test]),
        test_y=y[test],
        classes=target.classes,
        train_clients=ids[train] if ids is not None else None,
        test_clients=ids[test] if ids is not None else None,
        task=target.task,
        client_names=owned.names if owned else None,
        class_names=target.names,
        table=table,
        table_rows=(np.flatnonzero(train), np.flatnonzero(test)),
    )


def _check(name: str, target: Target, owned: Owners | None, test: NDArray[np.bool_]) -> None:
    """A division that came with the data: nothing is tested that nobody could learn."""
    if test.all() or not test.any():
        lacking = "training" if test.all() else "testing"
        raise UserError(f"data '{name}' has no rows for {lacking}: mark some, or leave the division to fairmean")
    if target.names is not None:
        untaught = np.setdiff1d(target.values[test], target.values[~test])
        if len(untaught):
            unseen = ", ".join(f"'{target.names[int(i)]}'" for i in untaught[:3])
            more = f" and {len(untaught) - 3} more" if len(untaught) > 3 else ""
            raise UserError(
                f"data '{name}': no row for training has the class {unseen}{more}, which rows for testing have: it "
                "cannot be learned; move some of its rows to the training data, or leave them out"
            )
    if owned is not None:
        idle = np.setdiff1d(owned.ids, owned.ids[~test])
        if len(idle):
            raise UserError(
                f"data '{name}': client '{owned.names[int(idle[0])]}' has no rows for training"
                f"{f', nor have {len(idle) - 1} others' if len(idle) > 1 else ''}: give it some, or leave it out"
            )
