"""How good predictions are, client by client: the figure of a task, further ones when a run ends, how sure they are.

Outputs are what a model returns for samples (rows × outputs, or rows × tokens × vocabulary), targets lie in rows beside
them. More axes in front are runs that are evaluated together.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fairmean.data.poisoning import ADAPTIVE, FURTHEST
from fairmean.data.tasks import Task

Figures = NDArray[np.float64]


def scores(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """One number for each sample, of which the task's figure is made: whether it is right, or its squared error."""
    if task.name == "classification":
        return (outputs.argmax(-1) == y).double()
    if task.name == "binary":
        return ((outputs[..., 0] > 0) == (y > 0)).double()
    if task.name == "regression":
        return (outputs[..., 0].double() - y).square()
    return (outputs.argmax(-1) == y).double().mean(-1)


def figures(task: Task, values: Figures, offsets: NDArray[np.int64], spread: float) -> Figures:
    """The task's figure of every client from its samples' scores; ``spread``: of the target, in its own unit."""
    sums, counts = _sums(values, offsets), np.diff(offsets)
    with np.errstate(invalid="ignore"):  # a client without samples has none
        return _figure(task, sums / counts, spread) if task.name == "regression" else np.asarray(100.0 * sums / counts)


def _figure(task: Task, means: Figures, spread: float) -> Figures:
    return spread * np.sqrt(means) if task.name == "regression" else 100.0 * means


def _sums(values: Figures, offsets: NDArray[np.int64]) -> Figures:
    """Sums over each client's samples along the last axis."""
    sums = np.zeros((*values.shape[:-1], len(offsets) - 1))
    there = np.flatnonzero(np.diff(offsets))
    if len(there):  # each client by itself: a running sum would drown the small errors behind a large one
        sums[..., there] = np.add.reduceat(values[..., : offsets[-1]], offsets[there], axis=-1)
    return sums


def per_client(values: Figures, offsets: NDArray[np.int64]) -> Figures:
    """Means over each client's samples along the last axis; NaN for a client that has none."""
    with np.errstate(invalid="ignore"):
        return _sums(values, offsets) / np.diff(offsets)


def interval(task: Task, values: Figures, offsets: NDArray[np.int64], spread: float) -> tuple[Figures, Figures]:
    """The 95 % interval of each client's figure, as far as the number of its test samples decides it.

    Of a share of right predictions it is Wilson's; of a root mean squared error, a normal one of the mean square.
    """
    counts = np.diff(offsets).astype(np.float64)
    means = per_client(values, offsets)
    z = 1.959964
    with np.errstate(invalid="ignore", divide="ignore"):
        if task.name == "regression":
            variance = per_client(values**2, offsets) - means**2
            half = z * np.sqrt(np.maximum(variance, 0) / counts)
            low, high = np.maximum(means - half, 0), means + half
            low, high = np.where(counts < 2, 0, low), np.where(counts < 2, np.inf, high)
        else:
            middle = (means + z**2 / (2 * counts)) / (1 + z**2 / counts)
            half = z / (1 + z**2 / counts) * np.sqrt(means * (1 - means) / counts + z**2 / (4 * counts**2))
            low = np.where(means == 0, 0.0, np.clip(middle - half, 0, 1))
            high = np.where(means == 1, 1.0, np.clip(middle + half, 0, 1))
    none = counts == 0
    low[none], high[none] = math.nan, math.nan
    return _figure(task, low, spread), _figure(task, high, spread)


def details(
    task: Task, outputs: Tensor, y: Tensor, offsets: NDArray[np.int64], classes: int, spread: float
) -> dict[str, Figures]:
    """The further figures of a task by name, one for each client; ``low`` and ``high`` are the first figure's interval.

    Where there are few classes, ``recall_0``, ``recall_1`` … are the shares of each class that are predicted right.
    """
    values = scores(task, outputs, y).cpu().numpy()
    low, high = interval(task, values, offsets, spread)
    found: dict[str, Figures] = {"low": low, "high": high}
    if task.name == "regression":
        errors, targets = (outputs[..., 0].double() - y).cpu().numpy(), y.double().cpu().numpy()
        found["mae"] = spread * per_client(np.abs(errors), offsets)
        centred = targets - np.repeat(per_client(targets, offsets), np.diff(offsets))
        around = per_client(np.where(np.abs(centred) <= 1e-12 * np.abs(targets), 0.0, centred) ** 2, offsets)
        with np.errstate(invalid="ignore", divide="ignore"):
            found["r2"] = np.where(around > 0, 1 - per_client(errors**2, offsets) / around, np.nan)
    elif task.name == "next-token":
        losses = F.cross_entropy(outputs.flatten(0, -2).double(), y.flatten(), reduction="none").view(y.shape).mean(-1)
        found["perplexity"] = np.exp(per_client(losses.cpu().numpy(), offsets))
    elif classes <= _FEW:
        found |= _of_classes(task, outputs, values, y.cpu().numpy(), offsets, classes)
    return found


_FEW = 100  # classes of which each has a figure of its own


def _of_classes(
    task: Task, outputs: Tensor, right: Figures, y: NDArray[np.int64], offsets: NDArray[np.int64], classes: int
) -> dict[str, Figures]:
    recalls = []
    for label in range(classes):
        there = (y == label).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            recalls.append(100.0 * per_client(right * there, offsets) / per_client(there, offsets))
    every = np.stack(recalls)
    known = ~np.isnan(every)
    with np.errstate(invalid="ignore"):
        balanced = np.where(known, every, 0).sum(0) / known.sum(0)
    found = {"balanced_accuracy": balanced}
    if task.name == "binary":
        z = outputs[..., 0].double().cpu().numpy()
        found |= {"sensitivity": every[1], "specificity": every[0], "auroc": 100.0 * _auroc(z, y, offsets)}
    return found | {f"recall_{label}": recall for label, recall in enumerate(recalls)}


def _auroc(z: Figures, y: NDArray[np.int64], offsets: NDArray[np.int64]) -> Figures:
    """How often a positive sample of a client is ranked above a negative one, ties counted half; NaN without both."""
    areas = np.full(len(offsets) - 1, np.nan)
    for client, (a, b) in enumerate(itertools.pairwise(offsets)):
        positive = y[a:b] > 0
        m, n = int(positive.sum()), int((~positive).sum())
        if m and n:
            _, places, counts = np.unique(z[a:b], return_inverse=True, return_counts=True)
            ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
            areas[client] = (ranks[positive].sum() - m * (m + 1) / 2) / (m * n)
    return areas


def relabelled(how: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
    """Labels, some of which a poisoned client sets anew by what the model says of the samples.

    Where ``how`` is 1, it is the class that the model finds least likely; where it is 2, the wrong class that the model
    finds most likely, y being the right one; where it is 0, y stays.
    """
    furthest = outputs.argmin(-1)
    adaptive = outputs.scatter(-1, y[..., None], -torch.inf).argmax(-1)
    return torch.where(how == FURTHEST, furthest, torch.where(how == ADAPTIVE, adaptive, y))
