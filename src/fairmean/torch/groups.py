"""FairMean over groups in one process, right on small batches: running losses, and groups that a batch lacks.

    Φ = (1/n) Σ_g φ(f_g),   ∇Φ = (1/n) Σ_g a(f_g) ∇f_g,   f_g the mean loss of group g over all data

A batch B estimates ∇f_g by the mean over its samples of g, where it has some, divided by the probability q_g that it
has some; f_g is a running mean over earlier batches. So the direction is unbiased up to the lag of the running losses.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fairmean.errors import UserError
from fairmean.torch.loss import per_sample
from fairmean.torch.membership import Membership
from fairmean.transform import check_kappa_tau, marginal_weight, phi

RARE = 0.05  # a group that is in fewer batches than this is better drawn on purpose
EVERY = 50  # calls between two looks at how often groups came


class GroupObjective(nn.Module):
    """What the group forms share: who is in which group, running means, groups that are missing from a batch."""

    statistics = 1

    def __init__(
        self,
        groups: Any = None,
        kappa: float = 1.0,
        tau: float = 1.0,
        *,
        names: Sequence[Any] | None = None,
        memory: float = 100.0,
        presence: str = "data",
        check: bool = True,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        check_kappa_tau(kappa, tau)
        if (groups is None) == (names is None):
            raise UserError(
                f"{who}: give either groups, the group of every training sample, or names, the groups' names"
            )
        if not 0 <= memory < float("inf"):
            raise UserError(f"{who}: memory = {memory}: must be a number ≥ 0 (samples of a group to look back on)")
        if presence not in ("data", "measured"):
            raise UserError(f"{who}: presence = {presence!r}: must be 'data' or 'measured'")
        self.members = Membership(groups, who) if groups is not None else Membership.named(names, who)
        self.kappa, self.tau, self.memory, self.check = float(kappa), float(tau), float(memory), check
        self.presence = presence if groups is not None else "measured"
        n = len(self.members.names)
        self.sums: Tensor
        self.mass: Tensor
        self.batches: Tensor
        self.times: Tensor
        self.expected: Tensor
        self.spread: Tensor
        self.sizes: Tensor
        self.register_buffer("sums", torch.zeros(self.statistics, n))  # of what is measured, decayed
        self.register_buffer("mass", torch.zeros(n))  # of the samples in these sums
        self.register_buffer("batches", torch.zeros(()))
        self.register_buffer("times", torch.zeros(n))  # how often each group was in a batch
        self.register_buffer("expected", torch.zeros(n))  # how often it should have been, and the variance of that
        self.register_buffer("spread", torch.zeros(n))
        self.register_buffer("sizes", torch.as_tensor(self.members.sizes).float(), persistent=False)
        self._calls, self._said = 0, set[str]()

    @property
    def names(self) -> list[Any]:
        """The groups' names, in the order of all that is reported by group."""
        return self.members.names

    def encode(self, groups: Any) -> Tensor:
        """The groups of samples as a tensor with one row per sample, to be put into a data set."""
        return self.members.encode(groups)

    def running(self) -> dict[Any, float]:
        """The running loss of every group that has been seen."""
        return self._by_name(self.sums[0] / self.mass)

    def weights(self) -> dict[Any, float]:
        """The weight that every group's gradient has now, of those seen."""
        return self._by_name(self._slopes(self.sums / self.mass, self.mass > 0))

    def _batch(self, losses: Tensor, groups: Any, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Losses one per sample, the rows of their groups, and weights; refused where they do not fit."""
        who = type(self).__name__
        if not isinstance(losses, Tensor) or losses.dim() == 0:
            raise UserError(f"{who}: losses must be a tensor with one number per sample: reduction='none' in the loss")
        if losses.dim() > 1:
            losses, weights = per_sample(losses, weights)
        if not len(losses):
            raise UserError(f"{who}: there is no sample; leave an empty batch out")
        rows = self.members.rows(groups, losses.device, self.check)
        if len(rows) != len(losses):
            raise UserError(f"{who}: {len(losses)} losses and {len(rows)} groups; give one group per sample")
        if weights is None:
            weights = torch.ones_like(losses.detach())
        elif not isinstance(weights, Tensor) or weights.shape != losses.shape:
            shape = tuple(getattr(weights, "shape", ()))
            raise UserError(f"{who}: weights of shape {shape} for {len(losses)} losses; give one weight per sample")
        if self.check and not torch.compiler.is_compiling():
            plain = losses.detach()
            if not bool(((plain >= 0) & plain.isfinite()).all()):
                raise UserError(
                    f"{who}: a loss is negative, infinite or NaN; losses are finite and ≥ 0 (check=False skips this)"
                )
            if not bool(((weights >= 0) & weights.isfinite()).all()):
                raise UserError(f"{who}: weights must be finite and ≥ 0")
        return losses, rows, weights.detach().to(losses.device)

    def _objective(self, losses: Tensor, rows: Tensor, weights: Tensor, measured: Tensor) -> Tensor:
        """The scalar of a batch; ``measured`` (samples × k) is what is remembered, the loss first."""
        wide = torch.float32 if losses.device.type == "mps" else torch.float64
        result = losses.dtype if losses.dtype == torch.float64 else torch.float32
        losses, weights = losses.to(wide), weights.to(wide)
        counts = self.members.sums(rows, torch.ones_like(weights))
        mass = self.members.sums(rows, weights)
        sums = self.members.sums(rows, weights[:, None] * measured.to(wide)).T
        there = mass > 0
        if not torch.is_grad_enabled():
            means = torch.where(there, sums / mass, 0)
            return self._value(means, self._slopes(means, there), there).to(result)
        if self.memory:
            means, seen, chance = self._remember(sums, mass, counts, len(losses))
        else:
            means, seen, chance = torch.where(there, sums / mass, 0), there, torch.ones_like(mass)
            self._say_what_is_missing(there)
        slopes = self._slopes(means, seen)
        coefficients = weights * self.members.spread(rows, torch.where(there, slopes / (chance * mass), 0))
        linear = (coefficients * losses).sum()
        return (linear - linear.detach() + self._value(means, slopes, seen)).to(result)

    def _slopes(self, means: Tensor, seen: Tensor) -> Tensor:
        """The weight of each ∇f_g in the direction, from the running means (k × groups) of what is measured."""
        raise NotImplementedError

    def _value(self, means: Tensor, slopes: Tensor, seen: Tensor) -> Tensor:
        """What is shown as the loss."""
        raise NotImplementedError

    def _number(self, seen: Tensor) -> Tensor | int:
        """How many groups the mean is over: all that there are; of a batch for itself, those in it."""
        return len(seen) if self.memory and torch.is_grad_enabled() else seen.sum()

    def _remember(self, sums: Tensor, mass: Tensor, counts: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Running means, which groups have been seen, and the probability that a batch like this holds each."""
        there = mass > 0
        keep = (1 - counts / self.memory).clamp(min=0)
        usable = sums.isfinite().all(0) & there  # what overflowed is not remembered
        self.sums.copy_(torch.where(usable, keep * self.sums + sums, self.sums))
        self.mass.copy_(torch.where(usable, keep * self.mass + mass, self.mass))
        self.batches.add_(1)
        self.times.add_(there.to(self.times))
        if self.presence == "measured":
            chance = (self.times / self.batches).to(mass)
        else:
            chance = _chance(self.sizes.to(mass), self.members.samples, size)
            self.expected.add_(chance.to(self.expected))
            self.spread.add_((chance * (1 - chance)).to(self.spread))
        if self.check and not torch.compiler.is_compiling():
            self._calls += 1
            if self._calls in (1, EVERY, 20 * EVERY):
                self._say_what_is_strange(chance)
        seen = self.mass > 0
        return torch.where(seen, self.sums / self.mass, 0).to(mass), seen, chance.clamp(min=1e-12)

    def _by_name(self, values: Tensor) -> dict[Any, float]:
        seen = (self.mass > 0).tolist()
        return {name: value for name, value, known in zip(self.names, values.tolist(), seen, strict=True) if known}

    def _say(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            warnings.warn(f"{type(self).__name__}: {text}", stacklevel=7)

    def _say_what_is_missing(self, there: Tensor) -> None:
        if self.check and not torch.compiler.is_compiling() and not bool(there.all()):
            missing = self.names[int((~there).nonzero()[0])]
            self._say(
                "missing",
                f"group {missing!r} is missing from a batch, and with memory=0 the mean is over the groups present: "
                "the direction is biased. Leave memory at its default, or draw batches that hold every group.",
            )

    def _say_what_is_strange(self, chance: Tensor) -> None:
        if self.presence == "measured":
            return
        rarest = int(chance.argmin())
        if self._calls == 1 and chance[rarest] < RARE:
            self._say(
                "rare",
                f"group {self.names[rarest]!r} will be in {float(chance[rarest]):.1%} of such batches only, with a "
                "large weight. Draw larger batches, or batches that hold every group, with presence='measured'.",
            )
        gap = (self.times - self.expected).abs() - 6 * self.spread.sqrt() - 3
        if self._calls > 1 and bool((gap > 0).any()):
            worst = int(gap.argmax())
            self._say(
                "drawn",
                f"group {self.names[worst]!r} was in {int(self.times[worst])} of {self._calls} batches, not in about "
                f"{float(self.expected[worst]):.0f} as in batches drawn uniformly from the data. Shuffle the data; or, "
                "with a sampler of your own, pass presence='measured'.",
            )


class GroupFairMean(GroupObjective):
    """Train for the groups that a model serves worst: per-sample losses and groups in, one scalar out.

    >>> criterion = GroupFairMean(["north", "south", "south", "east"])      # the group of every training sample
    >>> losses = torch.tensor([0.5, 2.0], requires_grad=True)               # a batch: its losses, reduction="none"
    >>> criterion(losses, ["north", "south"]).backward()
    >>> losses.grad                                                         # east is missing from the batch
    tensor([0.8889, 0.6667])

    ``groups`` holds the group of every sample of the training data: names or numbers in a list, an array, a tensor or
    a pandas column. Groups may overlap: then it is a data frame or a dictionary of masks by name, or a list with the
    names of each sample's groups. Batches come in the same form, or as rows of ``criterion.encode(groups)``, a tensor
    that can go through a ``DataLoader``. Without a column, ``names=[…]`` lists the groups.

    **Small batches.** The weight of a group comes from its running loss, which looks back on about ``memory`` of its
    samples. A group that a batch lacks would be forgotten by a plain mean over groups; its gradient is therefore
    divided by the probability of being there. ``presence="data"`` computes that probability for batches drawn uniformly
    from ``groups``; ``presence="measured"`` counts, for any other way of drawing. ``memory=0`` takes each batch for
    itself, as ``fairmean.fair_objective`` does, and warns when groups are missing.

    **Weights.** With ``weights``, one per sample, the loss of a group is Σ w ℓ / Σ w. A loss of several numbers per
    sample is averaged; ``pos_weight`` and class weights belong to your own loss, which has ``reduction="none"``.

    Under ``torch.no_grad()`` nothing is remembered, and the value is that of the batch at hand. The running losses
    are in ``state_dict()``. ``check=False`` skips what waits for a GPU: the looks at losses, groups and frequencies.
    """

    def forward(self, losses: Tensor, groups: Any, *, weights: Tensor | None = None) -> Tensor:
        """A scalar: its value is Φ at the running losses, its gradient the direction that this batch estimates."""
        losses, rows, weights = self._batch(losses, groups, weights)
        return self._objective(losses, rows, weights, losses.detach()[:, None])

    def _slopes(self, means: Tensor, seen: Tensor) -> Tensor:
        """a(f_g)/n."""
        return torch.where(seen, marginal_weight(means[0], self.kappa, self.tau), 0) / self._number(seen)

    def _value(self, means: Tensor, slopes: Tensor, seen: Tensor) -> Tensor:
        """The mean of φ over the groups seen."""
        return torch.where(seen, phi(means[0], self.kappa, self.tau), 0).sum() / seen.sum()


def _chance(sizes: Tensor, samples: int, batch: int) -> Tensor:
    """The probability that a batch, drawn from ``samples`` without putting back, holds a sample of each group.

    Differences of logarithms of factorials need float64, which not every device has.
    """
    device, dtype = sizes.device, sizes.dtype
    sizes = sizes.cpu().double()
    others = samples - sizes
    left = (others - batch).clamp(min=0)
    whole = torch.full_like(sizes, float(samples))
    rest = (whole - batch).clamp(min=0)
    missing = torch.exp((others + 1).lgamma() - (left + 1).lgamma() - (whole + 1).lgamma() + (rest + 1).lgamma())
    return torch.where(others < batch, torch.ones_like(sizes), 1 - missing).to(device, dtype)
