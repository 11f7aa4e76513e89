"""FairMean for gradient accumulation under DDP: the rank's gradient is scaled by a(f) when it is sent.

A rank that adds up the gradients of several micro-batches knows its mean loss f only when the last one has passed
through the model. The hook multiplies what was added up by a(f) = 1 + κ f/(f+τ), and DDP averages as always.
Without accumulation, ``fairmean.FairMeanLoss`` does the same and needs no hook.
"""

# No annotations as strings here: DDP compares those of a hook with types.
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from fairmean.errors import UserError
from fairmean.transform import check_kappa_tau, marginal_weight


class AccumulatedLoss:
    """The loss of a rank so far, and the hook that scales the rank's gradient by a(loss) when DDP sends it."""

    def __init__(
        self,
        kappa: float = 1.0,
        tau: float = 1.0,
        *,
        hook: Callable[[Any, Any], torch.futures.Future[Tensor]] | None = None,
        hook_state: Any = None,
    ) -> None:
        check_kappa_tau(kappa, tau)
        self.kappa, self.tau = float(kappa), float(tau)
        self._hook, self._hook_state = hook, hook_state
        self.group: Any = None  # the ranks that DDP averages over; None: all
        self._parameters: list[Tensor] = []
        self._loss: Tensor | None = None
        self._factor: Tensor | None = None
        self._sent = False

    def add(self, loss: Tensor) -> Tensor:
        """Remember this part of the rank's loss, and return it as it is: ``fair.add(loss / parts).backward()``.

        The parts that are added between two steps must sum to the rank's mean loss: divide each by their number.
        """
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            shape = tuple(getattr(loss, "shape", ()))
            raise UserError(f"ddp_hook: add() takes the loss of a micro-batch as one number, not shape {shape}")
        if self._sent:
            self._expect_no_gradients()
            self._loss, self._factor, self._sent, self._parameters = None, None, False, []
        value = loss.detach().to(torch.float32 if loss.device.type == "mps" else torch.float64)
        self._loss = value if self._loss is None else self._loss + value
        return loss

    def comm_hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        """What DDP calls with each bucket of gradients; ``ddp_hook`` registers it."""
        if self._factor is None:
            if self._loss is None:
                raise UserError(
                    "ddp_hook: a loss was backpropagated without add(): write fair.add(loss / parts).backward()"
                )
            self._factor = marginal_weight(self._loss, self.kappa, self.tau)
        self._sent = True
        self._parameters += bucket.parameters()
        gradients = bucket.buffer()
        if self._hook is not None:
            gradients.mul_(self._factor.to(gradients))
            return self._hook(self._hook_state, bucket)
        gradients.mul_((self._factor / dist.get_world_size(self.group)).to(gradients))  # one pass over them
        sent: torch.futures.Future[Tensor] = (
            dist.all_reduce(gradients, group=self.group, async_op=True).get_future().then(_first)
        )
        return sent

    def _expect_no_gradients(self) -> None:
        """Gradients that were sent are averages over ranks: adding to them would scale them a second time."""
        for parameter in self._parameters:
            if parameter.grad is not None and bool(parameter.grad.any()):
                raise UserError(
                    "ddp_hook: gradients that were already averaged over ranks are still in .grad. Put "
                    "all micro-batches but the last of a step under no_sync(), and call zero_grad() after it"
                )


def _first(future: torch.futures.Future[list[Tensor]]) -> Tensor:
    return future.value()[0]


def ddp_hook(
    model: DistributedDataParallel,
    kappa: float = 1.0,
    tau: float = 1.0,
    *,
    hook: Callable[[Any, Any], torch.futures.Future[Tensor]] | None = None,
    hook_state: Any = None,
) -> AccumulatedLoss:
    """Make DDP's averaging fair to the ranks with large losses, also when gradients are accumulated.

        fair = fairmean.ddp_hook(model)
        for batches in steps:                                        # len(batches) micro-batches make a step
            for i, (x, y) in enumerate(batches):
                with contextlib.nullcontext() if i == len(batches) - 1 else model.no_sync():
                    fair.add(criterion(model(x), y) / len(batches)).backward()
            optimizer.step()
            optimizer.zero_grad()

    The direction is (1/n) Σ a(f_i) ∇f_i exactly, where f_i is rank i's loss over all its micro-batches. Accumulation
    without ``no_sync`` would scale what was already averaged once more; it is noticed, and refused.

    DDP takes one hook. One of your own, such as a compression, is given as ``hook`` with its ``hook_state``: it gets
    the scaled gradients, and averages them as before.
    """
    if not isinstance(model, DistributedDataParallel):
        raise UserError(
            f"ddp_hook: the model is a {type(model).__name__}, not a DistributedDataParallel; use fairmean.FairMeanLoss"
        )
    if getattr(model, "_comm_hooks", None):
        name = getattr(model._comm_hooks[0][0], "__name__", "a hook")
        raise UserError(
            f"ddp_hook: the model already has the hook {name!r}, and DDP takes one; "
            f"give it to ddp_hook(model, hook={name}, hook_state=…) instead of registering it"
        )
    fair = AccumulatedLoss(kappa, tau, hook=hook, hook_state=hook_state)
    fair.group = model.process_group
    model.register_comm_hook(None, fair.comm_hook)
    return fair
