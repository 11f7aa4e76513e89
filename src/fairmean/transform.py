"""The paper's loss transform: pure functions of a loss z ≥ 0, on tensors or floats.

    φ(z) = z + κ ψ(z)        ψ(z) = z − τ log(1 + z/τ)        a(z) = φ'(z) = 1 + κ z/(z+τ)

Every function keeps full relative precision for any z/τ, including z ≪ τ where ψ cancels. Numbers of half precision
(bfloat16, float16) are computed with in float32, and sums of them are returned in float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from fairmean.errors import UserError

# u − log(1+u) = s (u − 2 Σ_{k≥1} s^{2k} / (2k+1)) with s = u/(2+u); twelve terms give 1e-17 for |u| ≤ ½.
_SERIES = [2.0 / (2 * k + 1) for k in range(1, 13)]


class _LogGap(torch.autograd.Function):
    """u − log(1+u) for u > −1, without cancellation near 0; the derivative is u/(1+u)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor) -> Tensor:
        s = u / (2 + u)
        square = s * s
        tail = torch.full_like(u, _SERIES[-1])
        for coefficient in reversed(_SERIES[:-1]):
            tail = tail * square + coefficient
        return torch.where(u.abs() < 0.5, s * (u - square * tail), u - torch.log1p(u))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (u,) = ctx.saved_tensors
        return gradient * u / (1 + u)


def _log_gap(u: Tensor) -> Tensor:
    gap: Tensor = _LogGap.apply(u)  # type: ignore[no-untyped-call]
    return gap


def check_kappa_tau(kappa: float, tau: float) -> None:
    """κ ≥ 0 and τ > 0, both finite."""
    if torch.compiler.is_compiling():  # there numbers may be symbols, which cannot be looked at
        return
    for name, value in (("kappa", kappa), ("tau", tau)):
        if isinstance(value, str) or not hasattr(value, "__float__"):
            raise UserError(f"{name} = {value!r}: must be a number")
    if not 0 <= kappa < float("inf"):
        raise UserError(f"kappa = {kappa}: must be a finite number ≥ 0 (0 is the plain mean)")
    if not 0 < tau < float("inf"):
        raise UserError(f"tau = {tau}: must be a finite number > 0 (the loss at which half the extra weight is given)")


def _as_tensor(z: Tensor | float) -> tuple[Tensor, bool]:
    if isinstance(z, Tensor):
        return z, False
    return torch.tensor(z, dtype=torch.float64), True


def _single(x: Tensor) -> Tensor:
    """``x`` in float32 where it has half precision, or is no floating-point number at all; else as it is."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _result_type(x: Tensor) -> torch.dtype:
    return x.dtype if x.is_floating_point() else torch.float32


@overload
def psi(z: Tensor, tau: float = 1.0) -> Tensor: ...
@overload
def psi(z: float, tau: float = 1.0) -> float: ...
def psi(z: Tensor | float, tau: float = 1.0) -> Tensor | float:
    """ψ_τ(z) = z − τ log(1 + z/τ), the convex part of the transform.

    >>> psi(1.0)
    0.3068528194400547
    """
    check_kappa_tau(0.0, tau)
    x, is_float = _as_tensor(z)
    value = (tau * _log_gap(_single(x) / tau)).to(_result_type(x))
    return value.item() if is_float else value


@overload
def phi(z: Tensor, kappa: float = 1.0, tau: float = 1.0) -> Tensor: ...
@overload
def phi(z: float, kappa: float = 1.0, tau: float = 1.0) -> float: ...
def phi(z: Tensor | float, kappa: float = 1.0, tau: float = 1.0) -> Tensor | float:
    """φ_{κ,τ}(z) = z + κ ψ_τ(z)   (eq. 2).

    >>> phi(1.0, kappa=2.0)
    1.6137056388801094
    """
    check_kappa_tau(kappa, tau)
    x, is_float = _as_tensor(z)
    exact = _single(x)
    value = (exact + kappa * psi(exact, tau)).to(_result_type(x))
    return value.item() if is_float else value


@overload
def marginal_weight(z: Tensor, kappa: float = 1.0, tau: float = 1.0) -> Tensor: ...
@overload
def marginal_weight(z: float, kappa: float = 1.0, tau: float = 1.0) -> float: ...
def marginal_weight(z: Tensor | float, kappa: float = 1.0, tau: float = 1.0) -> Tensor | float:
    """a_{κ,τ}(z) = 1 + κ z/(z+τ)   (eq. 4): the weight a client with loss z gives its gradient, in [1, 1+κ].

    >>> marginal_weight(1.0), marginal_weight(2.0, tau=2.0)
    (1.5, 1.5)
    """
    check_kappa_tau(kappa, tau)
    return 1 + kappa * (z / (z + tau))


def dispersion(losses: Tensor, tau: float = 1.0) -> Tensor:
    """D_τ = mean ψ(f_i) − ψ(F), F = mean f_i: zero exactly when all losses are equal.

    Computed as the mean of the non-negative terms τ (u − log(1+u)), u = (f_i − F)/(F + τ), which is the same
    number without the cancellation.

    >>> dispersion(torch.tensor([1.0, 3.0], dtype=torch.float64)).item()
    0.05889151782819172
    """
    check_kappa_tau(0.0, tau)
    losses = _single(losses)
    mean = losses.mean()
    return tau * _log_gap((losses - mean) / (mean + tau)).mean()


def fair_objective(
    sample_losses: Tensor,
    groups: Tensor | Sequence[Any] | np.ndarray[Any, Any],
    kappa: float = 1.0,
    tau: float = 1.0,
    *,
    weights: Tensor | None = None,
    ranks: bool | None = None,
    check: bool = True,
) -> Tensor:
    """Φ = mean over groups of φ(mean loss of the group): one scalar to backpropagate   (eq. 3).

    ``groups`` holds the group (client, site, demographic …) of each sample: integers, or names in a list or array. The
    gradient is the FairMean direction (1/n) Σ a(f_i) ∇f_i, so an ordinary training loop becomes fair by one line:

    >>> losses = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
    >>> fair_objective(losses, torch.tensor([7, 7, 4])).backward()
    >>> losses.grad                      # a(2)/2 · ½ for each sample of group 7, a(2) · ½ for group 4
    tensor([0.4167, 0.4167, 0.8333])

    **Batches.** n counts the groups that are *present*, and each f_i is the loss of the group's samples at hand. On
    small batches, where groups are missing or have a few samples only, the direction is therefore not that of the whole
    data, not even on average. Draw batches that hold every group, or use ``fairmean.GroupFairMean``, which remembers.

    **Weights.** With one weight ≥ 0 per sample, a group's loss is Σ w ℓ / Σ w over its samples.

    **Ranks.** When ``torch.distributed`` runs several ranks, each has groups of its own, and averaging the ranks'
    gradients (as DDP does) gives (1/n) Σ only if every group is whole on one rank and every rank has as many groups.
    ``ranks=True`` lets the ranks exchange their groups' sums, so that the average of their gradients is exact for any
    division; all ranks must call it together. ``ranks=False`` says that this rank is to be taken alone.

    **Checks.** A loss that is NaN, infinite or negative is refused. On a GPU looking at it waits for the device; with
    ``check=False`` nothing is looked at, as a ``GradScaler`` or a CUDA graph needs it.
    """
    check_kappa_tau(kappa, tau)
    if not isinstance(sample_losses, Tensor):
        raise UserError(
            f"fair_objective: losses must be a tensor, whose gradient is wanted, not a {type(sample_losses).__name__}"
        )
    together = _across_ranks(ranks)
    names, index, counts = _grouped(groups, sample_losses.device)
    wrong = _what_is_wrong(sample_losses, index, check, together)
    weighted = sample_losses
    if weights is not None and not wrong:
        wrong = _what_is_wrong_with_weights(weights, names, index, counts, check)
        if not wrong:
            weights = weights.detach().to(sample_losses.device)
            weighted, counts = _single(sample_losses) * weights, _sums(weights, index, counts)
    if not together:
        if wrong:
            raise UserError(wrong)
        return phi(_sums(weighted, index, counts) / counts, kappa, tau).mean().to(_wide(sample_losses.dtype))
    return _objective_of_all_ranks(weighted, names, index, counts, wrong, kappa, tau)


def _what_is_wrong_with_weights(weights: Any, names: Any, index: Tensor, counts: Tensor, check: bool) -> str:
    """Why these weights cannot be used; '' if they can."""
    if not isinstance(weights, Tensor) or weights.shape != index.shape:
        shape = tuple(getattr(weights, "shape", ()))
        return f"fair_objective: one weight per sample in a tensor, got shape {shape} for {len(index)} samples"
    if not check or torch.compiler.is_compiling():
        return ""
    if not bool(((weights >= 0) & weights.isfinite()).all()):
        return "fair_objective: weights must be finite and ≥ 0"
    empty = (_sums(weights.to(index.device), index, counts) == 0).nonzero().flatten().tolist()
    if empty:
        return f"fair_objective: all weights of group {names.tolist()[empty[0]]!r} are 0; leave its samples out"
    return ""


def _what_is_wrong(losses: Tensor, index: Tensor, check: bool, may_be_empty: bool) -> str:
    """Why there is no objective; '' if there is one."""
    if losses.shape == index.shape == (0,):
        return "" if may_be_empty else "fair_objective: there is no sample; leave an empty batch out"
    if losses.shape != index.shape or losses.dim() != 1:
        return (
            f"fair_objective: one loss and one group per sample, got shapes {tuple(losses.shape)} and "
            f"{tuple(index.shape)}; use reduction='none' in the loss"
        )
    if not check or torch.compiler.is_compiling():
        return ""
    bad = ~(losses.detach() >= 0) | losses.detach().isinf()
    if not bad.any():
        return ""
    first = int(bad.nonzero()[0])
    return (
        f"fair_objective: the loss of sample {first} is {losses[first].item():g}; losses must be finite and ≥ 0 "
        "(check=False skips this check)"
    )


def _sums(losses: Tensor, index: Tensor, counts: Tensor) -> Tensor:
    """The sum of each group's losses, in float64 where the device has it."""
    wide = torch.float32 if losses.device.type == "mps" else torch.float64
    return torch.zeros(len(counts), dtype=wide, device=index.device).index_add(0, index, losses.to(wide))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type of a result: float32 where losses have half precision."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def _grouped(groups: Any, device: torch.device) -> tuple[Any, Tensor, Tensor]:
    """The distinct groups, each sample's place among them, and how many samples each has."""
    try:
        values: Any = groups if isinstance(groups, Tensor) else np.asarray(groups)
        if (values != values).any():  # NaN alone differs from itself
            raise UserError("fair_objective: a sample has NaN as its group; give it a group, or leave it out")
        if isinstance(values, Tensor):
            return torch.unique(values.to(device), return_inverse=True, return_counts=True)  # type: ignore[no-any-return]
        names, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    except UserError:
        raise
    except (TypeError, ValueError, AttributeError):
        raise UserError("fair_objective: groups must be integers or names, one for each sample") from None
    return names, torch.from_numpy(index.astype(np.int64)).to(device), torch.from_numpy(counts).to(device)


def _across_ranks(ranks: bool | None) -> bool:
    """Whether to exchange sums; a caller that has not decided is told once that there is something to decide."""
    import torch.distributed as dist

    several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if ranks is None and several:
        warnings.warn(
            "fair_objective: there are several ranks, and each takes the mean over its own groups; averaged over ranks "
            "that is FairMean only if every rank has as many whole groups. Pass ranks=True for the exact direction, or "
            "ranks=False to keep this one.",
            stacklevel=3,
        )
    return bool(ranks) and several


def _objective_of_all_ranks(
    losses: Tensor, names: Any, index: Tensor, counts: Tensor, wrong: str, kappa: float, tau: float
) -> Tensor:
    """A scalar whose value is Φ over all ranks, and whose gradient, averaged over the W ranks, is ∇Φ.

    ∇Φ = (1/n) Σ_g a(f_g) Σ_r ∇(rank r's sum of g)/m_g with f_g and m_g over all ranks, so rank r contributes
    (W/n) Σ_g a(f_g)/m_g · (its sum of g). What is wrong on one rank is raised on all, so that none waits for it.
    """
    import torch.distributed as dist

    size = dist.get_world_size()
    sums = losses.double().sum() if wrong else _sums(losses, index, counts)
    every: list[Any] = [None] * size
    dist.all_gather_object(every, (wrong, names.tolist(), sums.detach().tolist(), counts.tolist()))
    for rank, (error, *_) in enumerate(every):
        if error:
            raise UserError(f"{error} (on rank {rank})")
    totals: dict[Any, tuple[float, int]] = {}
    for _, *part in every:
        for name, loss, count in zip(*part, strict=True):
            before = totals.get(name, (0.0, 0))
            totals[name] = (before[0] + loss, before[1] + count)
    if not totals:
        raise UserError("fair_objective: no rank has a sample")
    means = {name: loss / count for name, (loss, count) in totals.items()}
    slopes = [marginal_weight(means[name], kappa, tau) / totals[name][1] for name in names.tolist()]
    linear = (sums * sums.new_tensor(slopes)).sum() * size / len(totals)
    value = phi(torch.tensor(list(means.values()), dtype=torch.float64), kappa, tau).mean().to(linear)
    return (linear - linear.detach() + value).to(_wide(losses.dtype))
