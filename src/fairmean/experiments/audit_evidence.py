"""Evidence about labels: how much worse the labels as given fit than the out-of-sample prediction itself expects.

With p̃ = softmax(z − log(ω + c)), where ω are the label shares of what the model was trained on, a sample with label y
has the excess ω_y/(ω_y + c') · (−log p̃_y − H(p̃)). Its mean is 0 if labels follow p̃. The factor in front says that a
label which nobody else has is no evidence.

For numbers, the analogue with a Gaussian of spread s around the prediction is (r²/s² − 1)/2, r being the residual and
s the usual residual of the median client; r² is cut at 25 s², so that a single sample cannot decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairmean.experiments.audit_folds import Floats, Predicted
from fairmean.experiments.audit_samples import Index, Samples

C, C_PRIME = 0.003, 0.01
_TEMPERATURES = np.exp(np.linspace(np.log(0.1), np.log(4.0), 38))
_CUT = 25.0
_FLOOR = 1e-12


@dataclass(frozen=True)
class Evidence:
    """What the others say of every sample.

    ``excess`` is the evidence against its label, ``loss`` how badly the label fits, ``entropy`` how unsure the
    prediction is, ``if_wrong`` the excess that it would have on average with another label. ``seems`` is the label, or
    for numbers the value, that the others would give; ``error`` whether (or by how much) that is another one.
    """

    excess: Floats
    loss: Floats
    entropy: Floats
    if_wrong: Floats
    seems: Floats
    error: Floats
    temperature: float
    model: str


def evidence(samples: Samples, predicted: Predicted) -> Evidence:
    """The evidence in out-of-sample predictions."""
    if samples.task.has_classes:
        return _of_classes(samples, predicted)
    return _of_numbers(samples, predicted)


def client_means(samples: Samples, values: Floats) -> Floats:
    """The mean of every client."""
    sums = np.bincount(samples.client, values, samples.clients)
    return np.asarray(sums / np.bincount(samples.client, minlength=samples.clients), dtype=np.float64)


def client_errors(samples: Samples, values: Floats) -> Floats:
    """The standard error of every client's mean, by its own samples; infinite with a single one."""
    counts = np.bincount(samples.client, minlength=samples.clients)
    deviations = values - client_means(samples, values)[samples.client]
    squares = np.bincount(samples.client, deviations**2, samples.clients)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(counts > 1, np.sqrt(squares / (counts * np.maximum(counts - 1, 1))), np.inf)


def _of_classes(samples: Samples, predicted: Predicted) -> Evidence:
    y = samples.y.numpy().astype(np.int64)
    scores = predicted.outputs
    if scores.shape[2] == 1:  # one output, of the second of two classes
        scores = np.concatenate([np.zeros_like(scores), scores], axis=2)
    adjusted = _log_softmax(scores - np.log(predicted.shares + C)).mean(0)
    known = predicted.shares.mean(0)
    weights = known / (known + C_PRIME)
    temperature = _temperature(samples, adjusted, y)
    logs = _log_softmax(adjusted / temperature)
    loss = -np.take_along_axis(logs, y[:, None], 1)[:, 0]
    entropy = -(np.exp(logs) * logs).sum(1)
    every = weights * (-logs - entropy[:, None])  # the excess with each of the labels
    excess = np.take_along_axis(every, y[:, None], 1)[:, 0]
    others = np.array(weights)
    np.put_along_axis(others, y[:, None], 0.0, 1)
    if_wrong = (others * every).sum(1) / np.maximum(others.sum(1), _FLOOR)
    seems = logs.argmax(1)
    return Evidence(
        excess, loss, entropy, if_wrong, seems.astype(np.float64), (seems != y).astype(np.float64), temperature,
        predicted.model,
    )  # fmt: skip


def _log_softmax(scores: Floats) -> Floats:
    shifted = scores - scores.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _temperature(samples: Samples, adjusted: Floats, y: Index) -> float:
    """The one by which the predictions suit the median client best: models are too sure, or not sure enough."""
    losses = []
    for temperature in _TEMPERATURES:
        logs = _log_softmax(adjusted / temperature)
        loss = -np.take_along_axis(logs, y[:, None], 1)[:, 0]
        losses.append(float(np.median(client_means(samples, loss))))
    return float(_TEMPERATURES[int(np.argmin(losses))])


def _of_numbers(samples: Samples, predicted: Predicted) -> Evidence:
    y = samples.y.numpy().astype(np.float64)
    seems = predicted.outputs[:, :, 0].mean(0)
    residual = y - seems
    spread = float(np.median(np.sqrt(client_means(samples, residual**2)))) or 1.0
    squares = np.minimum((residual / spread) ** 2, _CUT)
    excess = (squares - 1) / 2
    # a wrong number is another one of the data: its squared distance to the prediction, on average
    away = np.minimum((y.var() + (seems - y.mean()) ** 2) / spread**2, _CUT)
    flat = np.zeros_like(y)
    return Evidence(excess, squares / 2, flat, (away - 1) / 2, seems, residual, spread, predicted.model)
