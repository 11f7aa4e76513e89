"""FairMean as a loss: the rank is a client, and what averages the ranks' gradients need not know.

    φ(f) = f + κ (f − τ log(1 + f/τ)),   f = the mean loss of this rank's samples

The gradient of φ(f) is a(f) ∇f, so DDP or FSDP2, which average gradients over ranks, step along (1/n) Σ a(f_i) ∇f_i.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from fairmean.errors import UserError
from fairmean.transform import check_kappa_tau, fair_objective


class FairMeanLoss(nn.Module):
    """A loss of PyTorch's or of your own, made fair to the ranks or clients that it serves worst.

    >>> criterion = FairMeanLoss(nn.CrossEntropyLoss(reduction="none"), kappa=1.0, tau=1.0)

    **Ranks as clients.** Under ``DistributedDataParallel`` or ``fully_shard``, ``criterion(model(x), y).backward()`` is
    all there is to do, if every rank has the data of one client: ``fairmean.ClientSampler`` sees to that. A
    ``DistributedSampler`` would mix the clients.

    **Several clients on a rank.** ``criterion(model(x), y, clients=ids)`` takes the client of every sample. The ranks
    exchange their clients' sums, so that the direction is exact for any division of clients over ranks, even or not;
    all ranks must call it together. In one process it is the group form on the batch at hand.

    **Weights.** With ``weights``, of the same shape as the losses, a client's loss is Σ w ℓ / Σ w. A mask of padded
    tokens is such a weight.

    Losses of several numbers per sample, such as one per token or per label, are averaged. ``check=False`` skips the
    look at the losses, which on a GPU waits for the device.
    """

    def __init__(
        self, loss: Callable[..., Tensor], kappa: float = 1.0, tau: float = 1.0, *, check: bool = True
    ) -> None:
        super().__init__()
        check_kappa_tau(kappa, tau)
        if not callable(loss) or isinstance(loss, type):
            raise UserError(
                f"FairMeanLoss: loss = {getattr(loss, '__name__', loss)!r}: must be a loss that can be called, such as "
                "torch.nn.CrossEntropyLoss(reduction='none')"
            )
        if getattr(loss, "reduction", "none") == "sum":
            raise UserError("FairMeanLoss: the loss has reduction='sum', which depends on the batch size; use 'none'")
        self.loss, self.kappa, self.tau, self.check = loss, float(kappa), float(tau), check
        self._said = False

    def forward(
        self,
        *inputs: Any,
        clients: Tensor | Sequence[Any] | np.ndarray[Any, Any] | None = None,
        weights: Tensor | None = None,
        **named: Any,
    ) -> Tensor:
        """φ of this rank's mean loss, or with ``clients`` the mean of φ over all clients of all ranks."""
        losses = self.loss(*inputs, **named)
        if not isinstance(losses, Tensor):
            raise UserError(f"FairMeanLoss: the loss returned a {type(losses).__name__}, not a tensor")
        if clients is not None:
            return self._of_clients(losses, clients, weights)
        self._say_if_alone()
        mean = _mean(losses, weights)
        if self.check and not torch.compiler.is_compiling() and not 0 <= (loss := mean.item()) < float("inf"):
            raise UserError(
                f"FairMeanLoss: the mean loss is {loss:g}; it must be finite and ≥ 0 (check=False skips this)"
            )
        value = mean + self.kappa * (mean - self.tau * torch.log1p(mean / self.tau))  # in float64 nothing cancels
        return value.to(losses.dtype if losses.dtype == torch.float64 else torch.float32)

    def _of_clients(self, losses: Tensor, clients: Any, weights: Tensor | None) -> Tensor:
        if losses.dim() == 0:
            raise UserError("FairMeanLoss: with clients= the loss must return one number per sample: reduction='none'")
        if losses.dim() > 1:
            losses, weights = per_sample(losses, weights)
        together = dist.is_available() and dist.is_initialized()
        return fair_objective(losses, clients, self.kappa, self.tau, weights=weights, ranks=together, check=self.check)

    def _say_if_alone(self) -> None:
        """One process is one client, of which φ only lengthens the step."""
        if self._said or torch.compiler.is_compiling():
            return
        self._said = True
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
            warnings.warn(
                "FairMeanLoss: there is one process and no clients= is given, so there is one client, and the "
                "transform only makes its step longer. Give the client of each sample, or start several ranks.",
                stacklevel=4,
            )

    def extra_repr(self) -> str:
        return f"kappa={self.kappa}, tau={self.tau}"


def per_sample(losses: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """One loss and one weight per sample where there are several, such as tokens: Σ w ℓ / Σ w, and Σ w."""
    losses = losses.flatten(1)
    if weights is None:
        return losses.mean(1), None
    if weights.dim() == 1:
        return losses.mean(1), weights
    weights = weights.flatten(1).to(losses.device)
    mass = weights.sum(1)
    return (losses * weights).sum(1) / mass.clamp(min=torch.finfo(losses.dtype).tiny), mass


def _mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """The mean, in float64 where the device has it."""
    wide = losses.to(torch.float32 if losses.device.type == "mps" else torch.float64)
    if weights is None:
        if not losses.numel():
            raise UserError("FairMeanLoss: there is no sample; leave an empty batch out")
        return wide.mean()
    if not isinstance(weights, Tensor) or weights.shape != losses.shape:
        shape = tuple(getattr(weights, "shape", ()))
        raise UserError(
            f"FairMeanLoss: weights of shape {shape} for losses of shape {tuple(losses.shape)}: they must be alike "
            "(reduction='none' in the loss)"
        )
    weights = weights.detach().to(wide)
    return (wide * weights).sum() / weights.sum()
