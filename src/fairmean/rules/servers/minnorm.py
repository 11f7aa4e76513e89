"""Common descent directions: points of small norm in the hull of the messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairmean.checks import at_least, within
from fairmean.rules.aggregator import CoordinateRule, GramRule, register
from fairmean.rules.round import Round, Rung, State
from fairmean.rules.search_space import Search
from fairmean.rules.servers.qp import min_norm

_TINY = 1e-12


def inverse(norms: Tensor) -> Tensor:
    """1/norm, and 0 for a zero norm: a zero message stays zero."""
    return torch.where(norms > 0, 1 / norms, 0.0)


@register(
    "fedmgda+",
    reference="Hu et al. 2022",
    when="When no step should make a client worse. Messages count by their directions only.",
)
@dataclass(frozen=True)
class FedMGDAPlus(GramRule):
    """d = Σ λ_i u_i, u_i = v_i/‖v_i‖: the shortest one with Σλ = 1, λ ≥ 0, |λ_i − m_i/Σm| ≤ ε."""

    epsilon: float = 0.1
    search: ClassVar[Search] = {"epsilon": (0.05, 0.1, 0.25, 0.5, 1.0)}

    def __post_init__(self) -> None:
        within("epsilon", self.epsilon, 0, 1, "0: FedAvg's weights, 1: free")

    @property
    def needs_sizes(self) -> bool:
        return True

    def weights(self, round: Round) -> Tensor:
        scale = inverse(round.squared_norms.sqrt())
        start = round.sizes / round.sizes.sum()
        lower, upper = (start - self.epsilon).clamp(min=0), (start + self.epsilon).clamp(max=1)
        if self.epsilon == 0:
            return start * scale
        return min_norm(round.gram * torch.outer(scale, scale), lower, upper) * scale


@register(
    "adafed",
    reference="Hamidi & Yang 2024",
    when="When losses should fall in proportion to their size. It needs a larger step size of its own.",
)
@dataclass(frozen=True)
class AdaFed(GramRule):
    """d = Vᵀ M⁻¹ φ / (φᵀ M⁻¹ φ), φ_i = |f_i|^γ: descends faster where the loss is larger, d·v_i ∝ φ_i.

    This is the closed form of the sequential orthogonalisation. A ridge of 1e-8 tr(M)/n keeps it finite for dependent
    messages; a few refinement steps take its effect out again where M is regular.
    """

    gamma: float = 1.0
    normalise: bool = False
    search: ClassVar[Search] = {"gamma": (0.25, 0.5, 1.0, 2.0), "normalise": (False, True)}

    def __post_init__(self) -> None:
        at_least("gamma", self.gamma, 0)

    def weights(self, round: Round) -> Tensor:
        M, unit = round.gram, torch.ones_like(round.losses)
        if self.normalise:
            unit = inverse(round.squared_norms.sqrt())
            M = M * torch.outer(unit, unit)
        phi = round.losses.abs() / round.losses.abs().max().clamp(min=1e-300)
        phi = phi**self.gamma  # a common factor of φ cancels up to the step: put back below
        size = M.diagonal().mean()
        some = (size > 0) & (phi.sum() > 0)
        M = M / torch.where(some, size, 1)
        ridge = torch.eye(len(phi), dtype=M.dtype, device=M.device) * 1e-8
        factors, pivots, _ = torch.linalg.lu_factor_ex(M + ridge)
        x = torch.zeros_like(phi)
        for _ in range(4):
            x = x + torch.linalg.lu_solve(factors, pivots, (phi - M @ x)[:, None])[:, 0]
        top = round.losses.abs().max().clamp(min=1e-300) ** self.gamma
        return torch.where(some, x / (phi @ x) / top * unit, 0)


@register(
    "fairmoo",
    reference="Zheng et al. 2026",
    when="When the variance of losses is the target. Its direction has unit length, so let the step size decay.",
)
@dataclass(frozen=True)
class FairMOO(GramRule):
    """d = g_fair if Var(f) > threshold, else the least-norm hull point with d·g_fair ≥ 0; then d/‖d‖.

    g_fair = (2/n) Σ (f_i − f̄) v_i is the gradient of the variance of the losses; f̄ is the mean loss, and Var(f) is
    Σ (f_i − f̄)²/(n − 1). Where no hull point satisfies the condition, it is left out.
    """

    threshold: float = 3e-3
    search: ClassVar[Search] = {"threshold": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)}

    def __post_init__(self) -> None:
        at_least("threshold", self.threshold, 0)

    def weights(self, round: Round) -> Tensor:
        M, f = round.gram, round.losses
        n = len(f)
        fair = 2 / n * (f - f.mean())
        variance = f.var(correction=1) if n > 1 else f.sum() * 0
        weights = fair
        if not variance > self.threshold:
            toward = M @ fair
            # the constraint cannot hold when every message opposes g_fair: it is left out then
            weights = min_norm(M, at_least=toward if bool((toward >= 0).any()) else None)
        norm = (weights @ M @ weights).clamp(min=0).sqrt()
        largest = round.squared_norms.max().sqrt()
        return weights / norm if norm > _TINY * largest else torch.zeros_like(weights)


def fairness_row(losses: Tensor) -> Tensor | None:
    """h = (f̂·u) f̂ − u at unit length, f̂ = f/‖f‖, u = 1/√n: where d·hV > 0, losses grow more alike. None if equal."""
    norm = losses.norm()
    if norm == 0:
        return None
    u = torch.full_like(losses, len(losses) ** -0.5)
    unit = losses / norm
    h = (unit @ u) * unit - u
    return None if h.norm() <= _TINY else h / h.norm()


def stacked_min_norm(M: Tensor, row: Tensor | None, row_norm: float | None = None) -> Tensor:
    """Weights on the n messages of the least-norm hull point of the messages and, if given, the message Σ row_i v_i.

    ``row_norm`` rescales that extra message to this norm.
    """
    if row is None:
        return min_norm(M)
    if row_norm is not None:
        norm = (row @ M @ row).clamp(min=0).sqrt()
        row = row * (row_norm / norm) if norm > 0 else row
    mix = torch.cat([torch.eye(len(M), dtype=M.dtype, device=M.device), row[None]])
    return min_norm(mix @ M @ mix.T) @ mix


@register(
    "fedmdfg",
    reference="Pan et al. 2023",
    when="For fairness with a step size that is searched for, at several forward passes a round.",
)
@dataclass(frozen=True)
class FedMDFG(GramRule):
    """d is the least-norm hull point of messages at equal norm; a fairness message if losses differ; line search.

    The fairness message is Σ h_i v_i, where h is (f̂·u) f̂ − u at unit length, f̂ = f/‖f‖ is the direction of the vector
    of losses, and u = (1, …, 1)/√n. It joins when the angle between f and u exceeds θ degrees, or when some but not all
    losses rose above their running expectation. d is scaled to the norm of the mean message. The step is 2^s·lr at
    first, and is halved until every client's loss has fallen by ``armijo``·step·d·v_i (at most 2s times; then it is the
    largest step that lowers the sum of the losses).
    """

    theta: float = 11.25
    s: int = 5
    armijo: float = 1e-4
    line_search: bool = True
    search: ClassVar[Search] = {"theta": (0.0, 5.0, 11.25, 25.0, 45.0), "armijo": ()}
    rung: ClassVar[Rung] = Rung.EXTRA

    def __post_init__(self) -> None:
        within("theta", self.theta, 0, 90, "degrees")
        at_least("s", self.s, 0)
        at_least("armijo", self.armijo, 0)

    @property
    def requires(self) -> tuple[str, ...]:
        return ("trial",) if self.line_search else ()

    def init(self, n: int) -> State:
        return {"expected": torch.zeros(n, dtype=torch.float64), "rounds": torch.zeros(n, dtype=torch.float64)}

    def __call__(self, round: Round, state: State) -> tuple[Tensor, State]:
        known = torch.cat([round.gram, round.losses[None]]).cpu()  # small algebra is faster on the host
        M, f, clients = known[:-1], known[-1], round.clients.cpu()
        expected, seen = (state[key].cpu()[clients] for key in ("expected", "rounds"))
        risen = (f > expected) & (seen > 0)
        weights = self._direction(M, f, bool(risen.any() and not risen.all()))
        if self.line_search and weights.any():
            weights = weights * (self._step(round, weights.to(round.losses), f) / round.lr)
        follow = torch.where(f <= expected, (seen * expected + f) / (seen + 1), expected)
        values = {"expected": torch.where(seen > 0, follow, f), "rounds": seen + 1}
        return weights.to(round.losses), {key: state[key].cpu().index_copy(0, clients, values[key]) for key in state}

    def _direction(self, M: Tensor, f: Tensor, forced: bool) -> Tensor:
        norms = M.diagonal().clamp(min=0).sqrt()
        live = norms > 0  # a client with a zero gradient is at its optimum and has no say
        result = torch.zeros_like(norms)
        if not live.any():
            return result
        scale = norms[live].mean() / norms[live]
        M, f = M[live][:, live], f[live]
        equal = M * torch.outer(scale, scale)
        cosine = f.sum() / (f.norm() * len(f) ** 0.5) if f.norm() > 0 else f.new_ones(())
        angle = torch.rad2deg(torch.arccos(cosine.clamp(-1, 1)))
        row = fairness_row(f) if forced or bool(angle > self.theta) else None
        weights = stacked_min_norm(equal, row) * scale
        norm = (weights @ M @ weights).clamp(min=0).sqrt()
        if norm <= _TINY * norms[live].mean():
            return result
        result[live] = weights * (M.sum().clamp(min=0).sqrt() / len(f) / norm)
        return result

    def _step(self, round: Round, weights: Tensor, losses: Tensor) -> float:
        slopes = round.times(weights).cpu()
        steps = [round.lr * 2.0 ** (self.s - k) for k in range(2 * self.s + 1)]
        sums = []
        for step in steps:
            after = round.trial(weights, step).cpu()
            if (after <= losses - self.armijo * step * slopes).all():
                return step
            sums.append(float(after.sum()) if after.isfinite().all() else float("inf"))
        lower = [step for step, total in zip(steps, sums, strict=True) if total < float(losses.sum())]
        if lower:
            return lower[0]
        return steps[-1] if min(sums) == float("inf") else steps[sums.index(min(sums))]


@register(
    "fedlf",
    reference="Pan et al. 2024",
    when="Like FedMDFG for deep models: it works layer by layer, without the search.",
)
@dataclass(frozen=True)
class FedLF(CoordinateRule):
    """FedMDFG's direction layer by layer, always with the fairness message, and without line search.

    The fairness message is Σ h_i v_i, where h is (f̂·u) f̂ − u at unit length, f̂ = f/‖f‖ is the direction of the vector
    of losses, and u = (1, …, 1)/√n, as for FedMDFG. Within a layer, all messages are scaled to the layer's mean norm. d
    has the norm of the mean message.
    """

    @property
    def requires(self) -> tuple[str, ...]:
        return ("layers",)

    def direction(self, round: Round) -> Tensor:
        V = round.messages
        # small algebra is faster on the host: inner products of all layers go there at once, and weights come back
        grams = [(V[:, layer] @ V[:, layer].T).double() for layer in round.layers]
        known = torch.cat([*grams, round.losses[None]]).cpu()
        weights = torch.stack([self._weights(M, known[-1]) for M in known[:-1].view(-1, len(V), len(V))]).to(V)
        d = torch.zeros_like(V[0])
        for layer, w in zip(round.layers, weights, strict=True):
            d[layer] = w @ V[:, layer]
        norm, target = d.norm(), V.mean(0).norm()
        return d * torch.where(norm > 0, target / norm, 0)

    @staticmethod
    def _weights(M: Tensor, f: Tensor) -> Tensor:
        """Of the messages in a layer's part of d."""
        norms = M.diagonal().clamp(min=0).sqrt()
        live = norms > 0
        result = torch.zeros_like(norms)
        if not live.any():
            return result
        mean = norms[live].mean()
        scale = mean / norms[live]
        inner = M[live][:, live] * torch.outer(scale, scale)
        weights = stacked_min_norm(inner, fairness_row(f[live]), mean.item())
        if (weights @ inner @ weights).clamp(min=0).sqrt() > _TINY * mean:
            result[live] = weights * scale
        return result
