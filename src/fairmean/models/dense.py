"""Models of inputs as plain vectors: images and rows of tables, flattened."""

from __future__ import annotations

from math import prod

from torch import nn


def mlp(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """784-200-200-10 with ReLU on Fashion-MNIST: 199,210 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, outputs),
    )


def linear(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """One linear layer: softmax regression, which is convex; logistic or linear regression where there is one output.

    For softmax regression the theory's constants are known in closed form.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), outputs))
