"""Out-of-sample predictions: every client's samples are predicted by models that never saw that client.

The clients are divided into groups at random; for each group a model is trained on all the other groups and asked about
this one. The whole is repeated over several such foldings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fairmean import models
from fairmean.errors import Diverged
from fairmean.experiments.audit_samples import Index, Samples
from fairmean.experiments.sections import ModelConfig
from fairmean.randomness import derive, generator, global_stream

Floats = NDArray[np.float64]
Tell = Callable[[str], None]
FOLDS = 5
REPEATS = 3
SMALL = ("linear", "small")
"""What 'auto' tries for plain inputs: whichever predicts the median client better out of sample is used."""
_HIDDEN = 64
_RATES = {"linear": 1e-2, "small": 3e-3}
_RATE = 1e-3  # of other models
_DECAY = 0.02
_BATCH, _EPOCHS, _LEAST, _MOST = 64, 12, 300, 3_000
_AT_ONCE = 2_048


@dataclass(frozen=True)
class Plan:
    """How often the clients are divided, into how many groups, and the seed of all draws."""

    repeats: int = REPEATS
    folds: int = FOLDS
    seed: int = 1

    def groups(self, clients: int, repeat: int) -> Index:
        """The group of every client in one folding; there are at most as many groups as clients."""
        order = generator(self.seed, "audit", "folds", repeat).permutation(clients)
        groups = np.empty(clients, dtype=np.int64)
        groups[order] = np.arange(clients) % min(self.folds, clients)
        return groups


@dataclass(frozen=True)
class Predicted:
    """``outputs``: repeats × samples × outputs of models that never saw the sample's client.

    ``shares``: repeats × samples × classes, the label shares ω of what these models were trained on.
    """

    outputs: Floats
    shares: Floats
    model: str


def small(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A model with one hidden layer of 64, which trains in a second."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, outputs))


def candidates(samples: Samples, model: ModelConfig) -> list[str]:
    """The models that are tried: the one that was asked for; where it was left open, small ones for plain inputs."""
    if model.name != "auto":
        return [model.name]
    usual = models.choice(samples.shape, samples.vocabulary)
    return list(SMALL) if usual == "mlp" else [usual]


def predict(
    samples: Samples, model: ModelConfig, name: str, plan: Plan, left_out: Sequence[int] = (), tell: Tell | None = None
) -> Predicted:
    """Predictions for all samples. Nobody trains on the clients that are ``left_out``, but they are predicted, too."""
    n = len(samples.client)
    outputs = samples.task.outputs(samples.classes)
    folds = min(plan.folds, samples.clients)
    every = np.empty((plan.repeats, n, outputs))
    shares = np.empty((plan.repeats, n, samples.classes))
    trusted = ~np.isin(samples.client, left_out)
    for repeat in range(plan.repeats):
        groups = plan.groups(samples.clients, repeat)[samples.client]
        for fold in range(folds):
            if tell is not None:
                tell(f"audit · {name} · folding {repeat + 1} of {plan.repeats} · {100 * fold // folds} %")
            asked = np.flatnonzero(groups == fold)
            used = np.flatnonzero((groups != fold) & trusted)
            used = used if len(used) else np.flatnonzero(groups != fold)  # of very few clients nobody can be left out
            seed = derive(plan.seed, "audit", name, repeat, fold)
            trained = _trained(samples, model, name, used, seed)
            every[repeat, asked] = _outputs(trained, samples.x[torch.from_numpy(asked)])
            shares[repeat, asked] = _shares(samples, used)
    if not np.isfinite(every).all():
        raise Diverged(f"audit: the model '{name}' gave values that are not finite; use another model.name")
    return Predicted(every, shares, name)


def _shares(samples: Samples, used: Index) -> Floats:
    if not samples.task.has_classes:
        return np.ones(samples.classes)
    counts = np.bincount(samples.y[torch.from_numpy(used)].numpy(), minlength=samples.classes)
    return np.asarray(counts / counts.sum(), dtype=np.float64)


def _built(samples: Samples, model: ModelConfig, name: str, seed: int) -> nn.Module:
    outputs = samples.task.outputs(samples.classes)
    if name == "small":
        with global_stream(seed, "initialisation"):
            return small(samples.shape, outputs)
    return models.build(
        name,
        samples.shape,
        outputs,
        seed,
        samples.x[:1],
        plain=True,
        task=samples.task.name,
        vocabulary=samples.vocabulary,
        weights=model.weights,
        weights_sha256=model.weights_sha256,
        frozen=model.patterns,
    )


def _trained(samples: Samples, model: ModelConfig, name: str, used: Index, seed: int) -> nn.Module:
    """AdamW with a cosine schedule: about twelve passes over the samples, and never very few steps."""
    net = _built(samples, model, name, seed)
    size = len(used)
    batch = min(_BATCH, max(8, size // 4), size)
    steps = int(np.clip(_EPOCHS * size / batch, _LEAST, _MOST))
    rate = _RATES.get(name, _RATE)
    free = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(free, lr=rate, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    random = generator(seed, "batches")
    order, at = random.permutation(size), 0
    net.train()
    with global_stream(seed, "dropout"):
        for _ in range(steps):
            if at + batch > size:
                order, at = random.permutation(size), 0
            rows = torch.from_numpy(used[order[at : at + batch]])
            at += batch
            loss = _loss(samples, net(samples.x[rows]), samples.y[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return net.eval()


def _loss(samples: Samples, outputs: Tensor, y: Tensor) -> Tensor:
    match samples.task.name:
        case "binary":
            return F.binary_cross_entropy_with_logits(outputs.reshape(len(y)), y.to(outputs.dtype))
        case "regression":
            return F.mse_loss(outputs.reshape(len(y)), y.to(outputs.dtype))
    return F.cross_entropy(outputs, y)


def _outputs(net: nn.Module, x: Tensor) -> Floats:
    with torch.no_grad():
        parts = [net(x[start : start + _AT_ONCE]) for start in range(0, len(x), _AT_ONCE)]
    whole = torch.cat(parts).double()
    return np.asarray(whole.reshape(len(x), -1).numpy())
