"""Which labels of a client are contradicted, into which they seem to have gone, and by which samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.experiments.audit_evidence import Evidence
from fairmean.experiments.audit_samples import Index, Samples

_LEAST, _SHARE = 2, 0.15
MOST_SAMPLES = 10


def moves(samples: Samples, evidence: Evidence, trusted: NDArray[np.bool_]) -> list[list[dict[str, Any]]]:
    """For every client: labels that the others would have given another name, more often than is usual.

    What is usual is how often the other clients' samples with the same label look like that, as far as these clients
    are ``trusted``.
    """
    if not samples.task.has_classes:
        return [[] for _ in range(samples.clients)]
    k = samples.classes
    places = (samples.client * k + samples.y.numpy()) * k + evidence.seems.astype(np.int64)
    counts = np.bincount(places, minlength=samples.clients * k * k).reshape(samples.clients, k, k)
    result = []
    total = counts[trusted].sum(0)
    for client in range(samples.clients):
        elsewhere = total - counts[client] if trusted[client] else total
        usual = elsewhere / np.maximum(elsewhere.sum(1, keepdims=True), 1)
        own = counts[client]
        given = own.sum(1, keepdims=True)
        unusual = own - given * usual
        unusual[elsewhere.sum(1) == 0] = 0  # a label that nobody else has is no evidence
        np.fill_diagonal(unusual, 0)
        pairs = [divmod(int(place), k) for place in np.argsort(-unusual, axis=None, kind="stable")[:5]]
        result.append(
            [
                {
                    "label": samples.class_names[label],
                    "seems": samples.class_names[seems],
                    "count": int(own[label, seems]),
                    "given": int(given[label, 0]),
                }
                for label, seems in pairs
                if unusual[label, seems] >= max(_LEAST, _SHARE * given[label, 0])
            ]
        )
    return result


def most_contradicted(samples: Samples, evidence: Evidence) -> list[list[dict[str, Any]]]:
    """For every client: its samples whose labels fit worst."""
    order = np.argsort(samples.client, kind="stable")
    ends = np.cumsum(np.bincount(samples.client, minlength=samples.clients))
    return [_worst(samples, evidence, rows) for rows in np.split(order, ends[:-1])]


def _worst(samples: Samples, evidence: Evidence, rows: Index) -> list[dict[str, Any]]:
    """What these samples are called, their label, and what the others would say."""
    worst = rows[np.argsort(-evidence.excess[rows], kind="stable")[:MOST_SAMPLES]]
    return [
        {
            "sample": samples.ids[i],
            "label": _told(samples, float(samples.y[i])),
            "seems": _told(samples, float(evidence.seems[i])),
            "excess": round(float(evidence.excess[i]), 4),
        }
        for i in worst
        if evidence.excess[i] > 0 and (not samples.task.has_classes or evidence.error[i])
    ]


def _told(samples: Samples, value: float) -> Any:
    if samples.task.has_classes:
        return samples.class_names[int(value)]
    return round(value * samples.target_spread + samples.target_middle, 6)
