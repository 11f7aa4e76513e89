"""The named methods: a scale paired with an aggregator. Any pair composes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairmean.aggregators import AGGREGATORS, REFERENCES, Aggregator, Round, Rung, State
from fairmean.errors import UserError, unknown
from fairmean.hyper import hyper_parameters, typed
from fairmean.scales import SCALES, Scale

Trial = Callable[[Tensor, float], Tensor]


class Outcome(NamedTuple):
    """A round's result: the direction d, the weight each g_i got in it (None when not a weighted sum), the state.

    The engine's fused pass leaves the direction in the model's gradients; it is None here then.
    """

    direction: Tensor | None
    weights: Tensor | None
    state: State


@dataclass(frozen=True)
class Method:
    """v_i = scale(stats_i) g_i;  d = aggregator(v_1 … v_n)."""

    name: str
    scale: Scale
    aggregator: Aggregator

    @property
    def rung(self) -> Rung:
        """What the server must see."""
        return self.aggregator.rung

    @property
    def needs_entropy(self) -> bool:
        """Whether clients must report their mean predictive entropy to themselves."""
        return self.scale.needs_entropy

    @property
    def hyper(self) -> dict[str, Any]:
        """All hyper-parameters, of scale and aggregator."""
        return hyper_parameters(self.scale) | hyper_parameters(self.aggregator)

    def coefficients(
        self,
        losses: Tensor,
        sizes: Tensor,
        entropies: Tensor | None = None,
        *,
        clients: Tensor,
        lr: float,
        state: State,
    ) -> tuple[Tensor, State]:
        """c with d = Σ c_i g_i, from losses and counts alone: for rules on the first two rungs."""
        scales = self.scale(losses, entropies)
        round = Round(sizes=sizes, clients=clients, lr=lr)
        if self.rung >= Rung.LOSSES:
            round.losses = losses
        weights, state = self.aggregator(round, state)
        return self._scaled(weights, scales), state

    def combine(
        self,
        gradients: Tensor,
        losses: Tensor,
        sizes: Tensor,
        entropies: Tensor | None = None,
        *,
        clients: Tensor,
        lr: float,
        state: State,
        layers: tuple[slice, ...] = (),
        trial: Trial | None = None,
    ) -> Outcome:
        """The direction from the n×d matrix of gradients, for a rule on any rung; inputs are left as they are."""
        if self.rung <= Rung.LOSSES:
            weights, state = self.coefficients(losses, sizes, entropies, clients=clients, lr=lr, state=state)
            return Outcome(_pull(gradients, weights), weights, state)
        scales = self.scale(losses, entropies)
        round = Round(
            sizes=sizes,
            clients=clients,
            lr=lr,
            losses=losses,
            layers=layers,
            lazy={
                "squared_norms": lambda: scales**2 * squared_norms(gradients),
                "gram": lambda: torch.outer(scales, scales) * gram(gradients),
            },
        )
        if self.rung >= Rung.COORDINATES:
            unit = bool((scales == 1).all())
            round.messages = gradients if unit else gradients * scales.to(gradients.dtype)[:, None]
        if self.rung >= Rung.EXTRA and trial is not None:
            round.trial = trial
        result, state = self.aggregator(round, state)
        if self.aggregator.linear:
            weights = self._scaled(result, scales)
            return Outcome(_pull(gradients, weights), weights, state)
        return Outcome(result / scales.mean() if self.scale.normalised else result, None, state)

    def _scaled(self, weights: Tensor, scales: Tensor) -> Tensor:
        """λ_i s_i; in the normalised form divided by the weighted mean of s, so that the rule's own step is kept."""
        scaled = weights * scales
        return scaled * (weights.sum() / scaled.sum()) if self.scale.normalised else scaled


def gram(gradients: Tensor) -> Tensor:
    """G Gᵀ: the products in the gradients' precision, the matrix in float64."""
    return (gradients @ gradients.T).double()


def squared_norms(gradients: Tensor) -> Tensor:
    """‖g_i‖²."""
    norms: Tensor = torch.linalg.vector_norm(gradients, dim=1).double()
    return norms.square()


def _pull(gradients: Tensor, weights: Tensor) -> Tensor:
    """Gᵀ λ."""
    return weights.to(gradients.dtype) @ gradients


@dataclass(frozen=True)
class Named:
    """A method of the registry: which scale, which aggregator, and where it comes from."""

    scale: str
    aggregator: str
    reference: str

    @property
    def hyper(self) -> dict[str, Any]:
        """Hyper-parameters with their defaults."""
        return hyper_parameters(SCALES[self.scale]) | hyper_parameters(AGGREGATORS[self.aggregator])

    @property
    def equation(self) -> str:
        """The first lines of the docstrings of its parts: the equation in words."""
        parts = [SCALES[self.scale]] if self.scale != "none" else []
        if self.aggregator != "mean" or not parts:
            parts.append(AGGREGATORS[self.aggregator])  # type: ignore[arg-type]
        return "; ".join((part.__doc__ or "").strip().splitlines()[0].rstrip(".") for part in parts)


_PAIRS = {
    "fairmean": Named("fairmean", "mean", "Zheng, Zhang & Liu, FairMean"),
    "fairmean-normalised": Named("fairmean-normalised", "mean", "this project"),
    "qffl": Named("qffl", "mean", "Li et al. 2020 (direct rule)"),
}


def named_methods() -> dict[str, Named]:
    """Every method by name: each aggregator on its own, and the named pairs."""
    own = {name: Named("none", name, REFERENCES[name]) for name in AGGREGATORS}
    return own | _PAIRS


def compose(scale: str = "none", aggregator: str = "mean", name: str | None = None, **hyper: Any) -> Method:
    """Any scale with any aggregator; hyper-parameters of both by name.

    >>> compose("fairmean", "fedavg", kappa=2.0).hyper
    {'kappa': 2.0, 'tau': 1.0}
    """
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if aggregator not in AGGREGATORS:
        raise unknown("aggregator", aggregator, AGGREGATORS)
    name = name or f"{scale}+{aggregator}"
    parts: list[dict[str, Any]] = [{}, {}]
    known = [hyper_parameters(SCALES[scale]), hyper_parameters(AGGREGATORS[aggregator])]
    for key, value in hyper.items():
        owners = [i for i in (0, 1) if key in known[i]]
        if not owners:
            every = [*known[0], *known[1]]
            if not every:
                raise UserError(f"unknown hyper-parameter '{key}' of {name}: it has none")
            raise unknown(f"hyper-parameter of {name}", key, every)
        for i in owners:
            parts[i][key] = typed(name, key, value, known[i][key])
    return Method(name, SCALES[scale](**parts[0]), AGGREGATORS[aggregator](**parts[1]))


def method(name: str, **hyper: Any) -> Method:
    """A method of the registry, by name.

    >>> method("fairmean", kappa=4).scale
    FairMean(kappa=4.0, tau=1.0)
    """
    known = named_methods()
    if name not in known:
        raise unknown("method", name, known)
    return compose(known[name].scale, known[name].aggregator, name, **hyper)


def aggregate(
    method: Method,
    gradients: Tensor,
    losses: Tensor,
    sizes: Tensor | None = None,
    entropies: Tensor | None = None,
    *,
    lr: float = 1.0,
) -> Tensor:
    """The direction of one round from bare tensors: gradients n×d, losses n; then w ← w − lr·direction.

    >>> gradients = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> aggregate(compose("fairmean", kappa=1.0), gradients, losses=torch.tensor([1.0, 0.0]))
    tensor([0.7500, 0.5000])
    """
    n = len(gradients) if gradients.dim() else 0
    if gradients.dim() != 2 or n == 0:
        raise UserError(
            f"gradients: expected n×d with n ≥ 1, got shape {tuple(gradients.shape)}; stack one row per client"
        )
    sizes = torch.ones(n, device=gradients.device) if sizes is None else sizes
    for name, values in (("losses", losses), ("sizes", sizes), ("entropies", entropies)):
        if values is not None and values.shape != (n,):
            raise UserError(f"{name}: expected one number per client, shape ({n},), got {tuple(values.shape)}")
    if method.needs_entropy and entropies is None:
        raise UserError(f"{method.name} needs each client's mean predictive entropy; pass entropies=")
    finite = gradients.isfinite().all(1) & losses.isfinite() & sizes.isfinite()
    if not finite.all():
        client = int((~finite).nonzero()[0])
        raise UserError(f"client {client} sent a NaN or infinite gradient, loss or size; drop it before aggregating")
    outcome = method.combine(
        gradients,
        losses.detach().double(),
        sizes.double(),
        None if entropies is None else entropies.detach().double(),
        clients=torch.arange(n, device=gradients.device),
        lr=lr,
        state=method.aggregator.init(n),
    )
    assert outcome.direction is not None
    return outcome.direction
