"""The theory's constants at one point of the parameters: curvatures, gradients, Jacobians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from fairmean.data.federation import Federation
from fairmean.engine.net import Net
from fairmean.errors import UserError
from fairmean.randomness import generator
from fairmean.theory import bounds
from fairmean.theory.measure.curvature import Curves, power_iteration, random_start
from fairmean.theory.measure.jacobian import largest_jacobian, probes


@dataclass(frozen=True)
class Estimate:
    """At one point: L, G and H over the clients, Γ over a few samples, and the curvature of Φ itself.

    ``samples``: how many of a client's were used at most; ``settled``: whether the power iterations had.
    """

    L: float
    steepest: int
    G: float
    H: float
    gamma: float
    curvature: float
    kappa: float
    tau: float
    samples: int
    settled: bool

    @property
    def safe_step(self) -> float:
        """1/L_Φ, which Theorem 2 asks for."""
        return self.step(self.kappa, self.tau)

    @property
    def edge(self) -> float:
        """2/λ_max(∇²Φ): beyond it, gradient descent on Φ moves away from here in the steepest direction."""
        return 2 / self.curvature if self.curvature else float("inf")

    def step(self, kappa: float, tau: float) -> float:
        """1/L_Φ for other κ and τ."""
        smooth = bounds.smoothness(kappa, tau, self.L, self.G)
        return 1 / smooth if smooth else float("inf")

    def radius(self, delta: float, kappa: float) -> float:
        """ε(δ,κ) here, if every label of a fraction δ of the clients, whichever they are, may be changed.

        H is to the mean of all clients; to that of the regular ones it is at most H/(1−δ).
        """
        A = bounds.poisoning_bound(self.H / (1 - delta), 1.0, self.gamma)
        return bounds.attack_radius(delta, kappa, A, self.G)


def curves(
    start: Callable[[], nn.Module],
    federation: Federation,
    samples: int,
    seed: int,
    device: torch.device | str,
    w: torch.Tensor | None = None,
) -> Curves:
    """The clients' losses on at most so many of their samples each, at the start point or at ``w``.

    ``start`` makes the model with its first parameters.
    """
    model = start().to(device)
    if w is not None:
        shape = Net(start())
        for parameter, view in zip(model.parameters(), shape.views(w), strict=True):
            parameter.data = view.clone()
    clients = []
    for i in range(federation.clients):
        a, b = federation.offsets[i : i + 2].tolist()
        rows = np.arange(a, b)
        if len(rows) > samples:
            rows = np.sort(generator(seed, "samples for curvature", i).choice(rows, samples, replace=False))
        index = torch.from_numpy(rows).to(federation.x.device)
        x = federation.x[index].to(device)
        if x.is_floating_point():  # tokens stay whole numbers
            x = x.to(torch.float32 if w is None else w.dtype)
        clients.append((x, federation.y[index].to(device)))
    return Curves(model, clients)


def estimate(
    curves: Curves, kappa: float, tau: float, samples: int, tell: Callable[[str], None] | None = None, most: int = 50
) -> Estimate:
    """L and ∇²Φ by power iteration, G and H from gradients, Γ from the samples with the largest inputs."""
    n = len(curves.clients)
    pairs = [curves.gradient(i) for i in range(n)]
    losses, gradients = torch.stack([f for f, _ in pairs]), torch.stack([g for _, g in pairs])
    if not losses.isfinite().all():
        raise UserError("the losses at this point are not finite; nothing can be estimated here")
    start, values = random_start(gradients[0]), []
    for i in range(n):
        if tell:
            tell(f"curvature of client {i + 1} of {n}: {100 * i // (n + 1)} %")
        values.append(power_iteration(partial(curves.product, i), start, most))
    if tell:
        tell(f"curvature of the objective: {100 * n // (n + 1)} %")
    whole = power_iteration(lambda v: curves.fair_product(v, kappa, tau, losses, gradients), start, most)
    steepest = max(range(n), key=lambda i: values[i].value)
    x = torch.cat([x for x, _ in curves.clients])
    far = (gradients - gradients.mean(0)).norm(dim=1).max().item()
    return Estimate(
        L=values[steepest].value,
        steepest=steepest,
        G=gradients.norm(dim=1).max().item(),
        H=far,
        gamma=largest_jacobian(curves.model, curves.model, x[probes(x)]),
        curvature=whole.value,
        kappa=kappa,
        tau=tau,
        samples=samples,
        settled=all(v.settled for v in values) and whole.settled,
    )
