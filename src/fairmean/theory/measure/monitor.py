"""What the paper's theorems speak of, measured at every iterate of a run.

The gradients of all clients are in hand here, and those of the poisoned clients on their true labels too; every figure
is a norm of a combination of them. Nothing is judged: see ``fairmean.theory``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairmean.data.federation import Federation
from fairmean.engine.batch import Batch
from fairmean.engine.layers.hooks import Capture
from fairmean.engine.net import Net
from fairmean.engine.paths.per_client import client_gradients
from fairmean.engine.server import Update
from fairmean.rules.context import Context, Means
from fairmean.rules.method import Method
from fairmean.rules.products import pull
from fairmean.theory.bounds import attack_radius, smoothness
from fairmean.theory.measure.curvature import Curves, power_iteration
from fairmean.theory.measure.jacobian import largest_jacobian, probes
from fairmean.transform import dispersion, marginal_weight, phi

THEORY = "theory.csv"
"""The table in a run's folder that holds what is measured."""
MEASURED = (
    "clients",  # n, taking part
    "poisoned",  # p, of them
    "step",  # α: the step along mean a(f_i) g_i
    "objective",  # Φ_R
    "mean_loss",  # F_R
    "largest_loss",  # B: max f_i over regular clients
    "dispersion",  # D_τ
    "variance",  # Var_R
    "gradient",  # ‖∇Φ_R‖
    "error",  # ‖e‖, e = direction − ∇Φ_R
    "direction",  # ‖mean a(f_i) g_i‖ over all clients
    "departure",  # ‖direction taken − mean a(f_i) g_i‖
    "lowest_weight",  # smallest and largest weight a client really got
    "highest_weight",
    "regular_gradient",  # max ‖∇f_i‖ over regular clients
    "poisoned_distance",  # max ‖∇f̃_i − ∇F_R‖ over poisoned clients
    "clean_distance",  # max ‖∇f_i − ∇F_R‖ over them, on their true labels
    "relabelling_shift",  # max ‖∇f̃_i − ∇f_i‖ over them
    "secant",  # max ‖∇f_i(w) − ∇f_i(w')‖/‖w − w'‖ over regular clients, w' the iterate before
    "objective_secant",  # the same for ∇Φ_R
    "curvature",  # max |λ(∇²f_i)| over regular clients, now and then
    "jacobian",  # largest logit Jacobian of a few samples: at most Γ
    "smoothness",  # L so far: the largest secant or curvature up to here; at most L
    "step_times_smoothness",  # α L_Φ with L and G so far
    "stationarity",  # average of ‖∇Φ_R‖² up to here, weighted by the steps: Theorem 2's left side
    "bound",  # 2Φ_R(w⁰)/Σα + ε² with the constants so far: its right side
    "poisoned_share",  # δ_eff = Σ_P c_i / Σ c_i: the poisoned clients' share of the weights that the rule gave
    "moved",  # ‖d − d_R‖ with d = Σ c_i g_i / Σ c_i, and d_R the same over regular clients
    "poisoned_reach",  # max ‖∇f̃_i − d_R‖ over poisoned clients that have a weight
    "own_direction",  # ‖d_R‖
    "distrust",  # η: the share of the regular clients' weight that distrust took from them
    "distrust_moved",  # ‖d_R − d_R⁰‖ with d_R⁰ as d_R would be without distrust
)
_SHARES, _DISTRUST = ("poisoned_share", "moved", "poisoned_reach", "own_direction"), ("distrust", "distrust_moved")
LATER = (*_SHARES, *_DISTRUST)
"""What runs of older versions did not measure."""
_BLOCK = 1024
_CURVED = 100  # rounds between two looks at the curvature, at least
_PRODUCTS = 12  # of a Hessian, at most, for one look
_NOISE = 1000  # a change of a gradient by less than so many roundings says nothing


class Before(NamedTuple):
    """The iterate before: parameters, the clients' gradients there, and ∇Φ_R."""

    w: Tensor
    gradients: Tensor
    fair: Tensor


class Monitor:
    """``observe`` measures an iterate whose round was just computed; ``gradients`` is how the round is computed.

    ``static``: every client's loss is the same function in every round, so that figures across rounds mean something.
    """

    def __init__(self, net: Net, federation: Federation, method: Method, chunk: int, static: bool, every: int) -> None:
        self.net, self.federation, self.method, self.static, self.every = net, federation, method, static, every
        self.kappa, self.tau = constants(method)
        self._chunk = chunk
        capture = Capture(net)
        self._capture = capture if capture.fits(federation.x) else None
        self._spare: Tensor | None = None
        self._clean: tuple[list[int], Batch] | None = None
        self.before: Before | None = None
        # L, G, A so far, Σα, Σα‖∇Φ_R‖², Φ_R(w⁰)
        self.running = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, math.nan], dtype=torch.float64, device=net.flat.device)
        self._probes = probes(federation.x)

    def gradients(self, batch: Batch, context: Context) -> tuple[Tensor, Tensor, Means]:
        """Every client's gradient, loss, and what it measured."""
        out, self._spare, self._context = self._spare, None, context
        if out is None or len(out) != len(batch.clients):
            out = self.net.flat.new_empty(len(batch.clients), len(self.net.flat))
        with self.net.passes():
            return out, *client_gradients(
                self.net, batch, self._chunk, self.method, context, self._capture, out[batch.mine]
            )

    def observe(
        self, t: int, batch: Batch, gradients: Tensor, losses: Tensor, update: Update | None, lr: float
    ) -> Tensor:
        """The figures of ``MEASURED``, in float64; NaN for what does not exist. No update: no step was taken."""
        regular = torch.from_numpy(self.federation.regular[batch.clients]).to(losses.device)
        n, r = len(losses), int(regular.sum())
        values = dict.fromkeys(MEASURED, losses.new_tensor(math.nan))
        values["clients"], values["poisoned"] = losses.new_tensor(n), losses.new_tensor(n - r)
        if r == 0:
            values["step"] = losses.new_tensor(math.nan if update is None else lr)
            return torch.stack([values[name] for name in MEASURED])
        a, f = marginal_weight(losses, self.kappa, self.tau), losses[regular]
        values["objective"], values["mean_loss"] = phi(f, self.kappa, self.tau).mean(), f.mean()
        values["largest_loss"], values["variance"] = f.max(), f.var(correction=0)
        values["dispersion"] = dispersion(f, self.tau)
        factor = n / a.sum() if self.method.scale.normalised else a.new_ones(())
        mean, gradient = pull(gradients, regular.double() / r), pull(gradients, regular * a / r)
        values["gradient"], values["direction"] = _norm(gradient), _norm(pull(gradients, a / n))
        if update is not None:
            values["step"] = lr * factor
            if update.weights is not None:
                given = update.weights / factor
                values["lowest_weight"], values["highest_weight"] = n * given.min(), n * given.max()
                error, departure = pull(gradients, given - regular * a / r), pull(gradients, given - a / n)
            else:
                assert isinstance(update.direction, Tensor)
                taken = update.direction / factor.to(gradients.dtype)
                error, departure = taken - gradient, taken - pull(gradients, a / n)
            values["error"], values["departure"] = _norm(error), _norm(departure)
            if update.weights is not None:
                values |= _shares(update.weights, gradients, regular)
                trust = self.method.scale.trusted(replace(self._context, memory=update.memory))
                if trust is not None:
                    values |= _distrusted(update.weights, trust.to(update.weights.dtype), gradients, regular)
        values["regular_gradient"] = _norms(gradients)[regular].max()
        if r < n:
            self._poisoning(values, batch, gradients[~regular], mean, regular)
        if self.static:
            if (t % max(self.every, _CURVED) == 0 or update is None) and self.method.objective.is_mean_cross_entropy:
                values["curvature"] = self._curvature(batch, gradients, regular)
            self._compare(values, gradients, gradient, regular)
            self._accumulate(values)
        else:
            self._spare = gradients
        if t % self.every == 0:
            values["jacobian"] = self.jacobian()
        return torch.stack([values[name] for name in MEASURED])

    def _poisoning(self, values: dict[str, Tensor], batch: Batch, sent: Tensor, mean: Tensor, regular: Tensor) -> None:
        """Poisoned clients against the regular mean, as they are and as they would be with their true labels."""
        places = (~regular).nonzero()[:, 0].tolist()
        if self._clean is None or self._clean[0] != places or not self.static:
            self._clean = (places, _relabelled(batch, places, self.federation.clean_y))
        clean = torch.empty_like(sent)
        with self.net.passes():
            batch = replace(self._clean[1], key=batch.key)
            context = self._context.only(torch.tensor(places, device=batch.x.device))
            client_gradients(self.net, batch, self._chunk, self.method, context, self._capture, clean)
        values["poisoned_distance"] = _norms(sent - mean).max()
        values["clean_distance"] = _norms(clean - mean).max()
        values["relabelling_shift"] = _norms(sent - clean).max()

    def _compare(self, values: dict[str, Tensor], gradients: Tensor, fair: Tensor, regular: Tensor) -> None:
        """Secants to the iterate before, which this one then becomes."""
        before, w = self.before, self.net.flat
        if before is not None:
            distance = _norm(w - before.w)
            change, noise = _norms(gradients - before.gradients)[regular].max(), _NOISE * torch.finfo(w.dtype).eps
            clear = change > noise * values["regular_gradient"]  # else it is rounding
            values["secant"] = torch.where(clear, change / distance, values["secant"])
            of_objective = _norm(fair - before.fair) / distance
            values["objective_secant"] = torch.where(clear, of_objective, values["objective_secant"])
            self._spare = before.gradients
            before.w.copy_(w)
        self.before = Before(w.clone() if before is None else before.w, gradients, fair)

    def _curvature(self, batch: Batch, gradients: Tensor, regular: Tensor) -> Tensor:
        """max |λ(∇²f_i)| over regular clients, by a few products that start at their gradients; NaN if it fails."""
        places = regular.nonzero()[:, 0].tolist()
        parts = [batch.part(k, k + 1) for k in places]
        with self.net.evaluating():
            curves = Curves(self.net.model, [(batch.x[part], batch.y[part]) for part in parts])
            try:
                found = [
                    power_iteration(partial(curves.product, i), gradients[k], _PRODUCTS) for i, k in enumerate(places)
                ]
            except RuntimeError:  # a model that cannot be differentiated twice
                return gradients.new_tensor(math.nan, dtype=torch.float64)
        return gradients.new_tensor(max(eigen.value for eigen in found), dtype=torch.float64)

    def _accumulate(self, values: dict[str, Tensor]) -> None:
        """Constants so far, and both sides of Theorem 2."""
        L, G, A, steps, squares, start = self.running
        L, G = L.fmax(values["secant"]).fmax(values["curvature"]), G.fmax(values["regular_gradient"])
        A = A.fmax(values["poisoned_distance"])
        step = values["step"].nan_to_num()
        steps, squares = steps + step, squares + step * values["gradient"] ** 2
        start = torch.where(start.isnan(), values["objective"], start)
        self.running = torch.stack([L, G, A, steps, squares, start])
        delta = values["poisoned"] / values["clients"]
        values["smoothness"] = L
        values["step_times_smoothness"] = values["step"] * smoothness(self.kappa, self.tau, L, G)
        values["stationarity"] = squares / steps
        values["bound"] = 2 * start / steps + attack_radius(delta, self.kappa, A, G) ** 2

    def recall(self, w: Tensor, running: Tensor, batch: Batch, context: Context) -> None:
        """Be as after observing the iterate w: for a run that goes on from a checkpoint."""
        self.running = running
        now = self.net.flat.clone()
        self.net.flat.copy_(w)
        gradients, losses, _ = self.gradients(batch, context)
        regular = torch.from_numpy(self.federation.regular[batch.clients]).to(losses.device)
        a, r = marginal_weight(losses, self.kappa, self.tau), int(regular.sum())
        self.before = Before(w.clone(), gradients, pull(gradients, regular * a / r))
        self.net.flat.copy_(now)

    def jacobian(self) -> Tensor:
        """max ‖∇_w h(w; x)‖ over the samples with the largest inputs: a lower bound of Γ."""
        net, rows = self.net, self._probes
        with net.evaluating():
            logits = partial(net.logits, rows=rows[:1], key=0, exact=True)
            value = largest_jacobian(net.model, logits, self.federation.x[rows])
        return self.net.flat.new_tensor(value, dtype=torch.float64)


def constants(method: Method) -> tuple[float, float]:
    """κ and τ that the method says it has; a method without is measured against the plain mean, κ = 0."""
    return float(method.hyper.get("kappa", 0.0)), float(method.hyper.get("tau", 1.0))


def _shares(weights: Tensor, gradients: Tensor, regular: Tensor) -> dict[str, Tensor]:
    """How much weight poisoned clients have, and how far that moves the direction; nothing if a weight is negative."""
    total, own = weights.sum(), (weights * regular).sum()
    if not bool((weights >= 0).all()) or not float(own) > 0:
        return {}
    mine = pull(gradients, regular * weights / own)
    with_weight = ~regular & (weights > 0)
    reach = _norms(gradients[with_weight] - mine).max() if bool(with_weight.any()) else torch.zeros_like(total)
    moved = _norm(pull(gradients, weights / total - regular * weights / own))
    found = (1 - own / total, moved, reach, _norm(mine))
    return dict(zip(_SHARES, found, strict=True))


def _distrusted(weights: Tensor, trust: Tensor, gradients: Tensor, regular: Tensor) -> dict[str, Tensor]:
    """What distrust takes from regular clients, and how far that moves their direction; nothing if it takes all."""
    own = weights * regular
    full = torch.where(own > 0, own / trust, 0)
    if not float(own.sum()) > 0 or bool((trust[regular] == 0).any()):
        return {}
    moved = _norm(pull(gradients, own / own.sum() - full / full.sum()))
    return dict(zip(_DISTRUST, (1 - own.sum() / full.sum(), moved), strict=True))


def _relabelled(batch: Batch, places: list[int], clean_y: Tensor) -> Batch:
    """The part of these clients of a batch, with their true labels."""
    index = torch.cat([torch.arange(*batch.offsets[k : k + 2].tolist()) for k in places]).to(batch.x.device)
    lengths = np.diff(batch.offsets)[places]
    chosen = torch.tensor(places, device=batch.x.device)
    rows = batch.rows[index]
    return replace(
        batch,
        clients=batch.clients[places],
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        lengths=batch.lengths[chosen],
        sizes=batch.sizes[chosen],
        ids=batch.ids[chosen],
        x=batch.x[index],
        y=clean_y[rows],
        rows=rows,
        dynamic=None,
        bounds=np.array([0, len(places)]),
        mine=slice(None),
        _spans={},
    )


def _norm(vector: Tensor) -> Tensor:
    return _norms(vector[None])[0]


def _norms(rows: Tensor) -> Tensor:
    """Of blocks in the rows' own precision, which is fast; then of the blocks' norms in float64, which is exact."""
    whole = rows.shape[1] // _BLOCK * _BLOCK
    blocks = torch.linalg.vector_norm(rows[:, :whole].view(len(rows), whole // _BLOCK, _BLOCK), dim=2).double()
    rest = torch.linalg.vector_norm(rows[:, whole:], dim=1).double()
    squares: Tensor = blocks.square().sum(1) + rest.square()
    return squares.sqrt()
