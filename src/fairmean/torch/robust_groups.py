"""The robust group forms, for classifiers: groups whose labels are wrong cannot take over the training.

A large loss has two causes: the group is hard, or its labels are wrong. Both forms take a group's *priority* from the
entropy H of the model's predictions, which no label can raise, and its *trust* from the excess of −log p_y over H,
which is positive where labels contradict the model:

    s_g = (1 + κ H_g/(H_g+τ)) t_g,   direction Σ s_g ∇f_g / Σ s_g
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairmean.errors import UserError
from fairmean.randomness import generator
from fairmean.torch.groups import GroupObjective
from fairmean.transform import marginal_weight

MOST = 60.0  # e^-60 is nothing, and never all zeros


class GroupSplit(GroupObjective):
    """Priority from entropy, trust from the excess of the loss over it: t_g = exp(−β max(0, mean(−log p_y − H))).

    >>> criterion = GroupSplit(["north", "south", "south", "east"])
    >>> logits, labels = torch.zeros(2, 3, requires_grad=True), torch.tensor([0, 2])
    >>> losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    >>> criterion(losses, ["north", "south"], logits, labels).backward()

    Groups, batches, weights and running means are as in ``GroupFairMean``. The excess is computed from ``logits`` and
    ``labels``, so that the loss which is minimised may be weighted or smoothed. Logits are samples × classes, or one
    number per sample for two classes. Labels that are mistaken in the same way everywhere contradict nothing: trust
    notices groups that differ from the others.
    """

    statistics = 3

    def __init__(
        self,
        groups: Any = None,
        kappa: float = 16.0,
        tau: float = 1.0,
        beta: float = 1.0,
        *,
        names: Sequence[Any] | None = None,
        memory: float = 100.0,
        presence: str = "data",
        check: bool = True,
    ) -> None:
        super().__init__(groups, kappa, tau, names=names, memory=memory, presence=presence, check=check)
        if not 0 <= beta < float("inf"):
            raise UserError(
                f"{type(self).__name__}: beta = {beta}: must be a number ≥ 0 (0 gives every group full trust)"
            )
        self.beta = float(beta)

    def forward(
        self, losses: Tensor, groups: Any, logits: Tensor, labels: Tensor, *, weights: Tensor | None = None
    ) -> Tensor:
        """A scalar whose gradient is the direction that this batch estimates, and whose value Σ s_g f_g / Σ s_g."""
        losses, rows, weights = self._batch(losses, groups, weights)
        logits, labels = self._predictions(losses, logits, labels)
        return self._objective(losses, rows, weights, self._measure(losses, logits, labels))

    def trust(self) -> dict[Any, float]:
        """The trust that every group has now, of those seen: 1 is full, 0 none."""
        return self._by_name(self._trust(self.sums / self.mass))

    def _predictions(self, losses: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Detached logits, samples × classes, in full precision, and labels that fit them."""
        who = type(self).__name__
        if not isinstance(logits, Tensor) or not isinstance(labels, Tensor):
            raise UserError(f"{who}: logits and labels must be tensors")
        logits = logits.detach().float()
        if logits.shape in ((len(losses),), (len(losses), 1)):  # one number for two classes
            logits = torch.stack([torch.zeros_like(logits.flatten()), logits.flatten()], 1)
        labels = labels.detach().to(logits.device)
        if labels.shape == (len(losses), 1):
            labels = labels.flatten()
        if logits.dim() != 2 or len(logits) != len(losses) or labels.shape != (len(losses),):
            raise UserError(
                f"{who}: logits of shape {tuple(logits.shape)} and labels of shape {tuple(labels.shape)} for "
                f"{len(losses)} losses; needed are samples × classes and one class per sample"
            )
        labels = labels.long()
        if (
            self.check
            and not torch.compiler.is_compiling()
            and bool(((labels < 0) | (labels >= logits.shape[1])).any())
        ):
            raise UserError(f"{who}: a label outside 0 … {logits.shape[1] - 1}, the classes of the logits")
        return logits, labels

    def _measure(self, losses: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Samples × (loss, entropy, −log p_y)."""
        nll, entropy = _nll_and_entropy(logits, labels)
        return torch.stack([losses.detach().float(), entropy, nll], 1)

    def _trust(self, means: Tensor) -> Tensor:
        return torch.exp(-(self.beta * (means[2] - means[1])).clamp(min=0, max=MOST))

    def _scales(self, means: Tensor) -> Tensor:
        return marginal_weight(means[1], self.kappa, self.tau) * self._trust(means)

    def _slopes(self, means: Tensor, seen: Tensor) -> Tensor:
        scales = torch.where(seen, self._scales(means), 0)
        return scales / scales.sum().clamp(min=torch.finfo(scales.dtype).tiny)

    def _value(self, means: Tensor, slopes: Tensor, seen: Tensor) -> Tensor:
        return (slopes * torch.where(seen, means[0], 0)).sum()


class GroupRecess(GroupSplit):
    """Groups take turns: a group that rests meets a model that has unlearned its labels, which is the better judge.

    ``steps`` is how many batches the training will have, ``classes`` the number of classes. From a sixth of them to
    ``until`` the groups take turns of W batches in which they are not trained on. At the end of its turn a group is
    asked, with ω the label shares of what the *others* train on and p̃ = softmax(logits − log(ω + c)),

        ẽ_g = mean of  ω_y/(ω_y + c') · (−log p̃_y − H(p̃)),        t_g = exp(−β_r max(0, mean of its ẽ_g − θ))

    and its trust is this t_g times that of ``GroupSplit``. "The others hardly use this label" is no contradiction, and
    a label that nobody else has is no evidence. It needs at least three groups. Call it as ``GroupSplit``. β_r, θ, c
    and c' are ``beta_rest``, ``theta``, ``rare`` and ``seldom``. A sample that is also in another group is not at rest
    while that group is active, so groups that overlap much are unlearned less.

    >>> criterion = GroupRecess(["north", "south", "south", "east"], steps=600, classes=3)
    """

    def __init__(
        self,
        groups: Any = None,
        kappa: float = 16.0,
        tau: float = 1.0,
        beta: float = 1.0,
        *,
        steps: int,
        classes: int,
        beta_rest: float = 8.0,
        theta: float = 0.2,
        cycles: int = 2,
        turns: int = 10,
        until: float = 0.7,
        rare: float = 0.003,
        seldom: float = 0.01,
        seed: int = 0,
        names: Sequence[Any] | None = None,
        memory: float = 100.0,
        presence: str = "data",
        check: bool = True,
    ) -> None:
        super().__init__(groups, kappa, tau, beta, names=names, memory=memory, presence=presence, check=check)
        n = len(self.names)
        if n < 3:
            raise UserError(f"GroupRecess: {n} groups; at least three are needed for turns: use GroupSplit")
        if classes < 2:
            raise UserError(f"GroupRecess: classes = {classes}: must be at least 2")
        if not memory:
            raise UserError("GroupRecess: memory = 0: turns need running losses; leave memory at its default")
        self.turns = min(n, turns)
        self.start = steps // 6
        self.rest = int((until * steps - self.start) / (cycles * self.turns)) if cycles > 0 and self.turns > 1 else 0
        if self.rest < 4:
            raise UserError(
                f"GroupRecess: steps = {steps} leave turns of {self.rest} batches; {cycles} cycles of {self.turns} "
                f"turns need about {cycles * self.turns * 8} steps: train longer, or use GroupSplit"
            )
        self.beta_rest, self.theta, self.rare, self.seldom = float(beta_rest), float(theta), float(rare), float(seldom)
        self.steps, self.cycles, self.classes = steps, cycles, classes
        draw = generator(seed, "group-recess")
        table = torch.stack([torch.from_numpy(draw.permutation(n)) % self.turns for _ in range(cycles)])
        self.table: Tensor
        self.evidence: Tensor
        self.asked: Tensor
        self.labels: Tensor
        self.register_buffer("table", table, persistent=False)  # cycles × groups: the turn of each
        self.register_buffer("evidence", torch.zeros(n))  # sum of a group's ẽ over samples, at the end of its turns
        self.register_buffer("asked", torch.zeros(n))  # over how many
        self.register_buffer("labels", torch.zeros(n, classes))  # how often each group has each label

    def forward(
        self, losses: Tensor, groups: Any, logits: Tensor, labels: Tensor, *, weights: Tensor | None = None
    ) -> Tensor:
        """As in ``GroupSplit``; a group that rests has weight 0."""
        losses, rows, weights = self._batch(losses, groups, weights)
        logits, labels = self._predictions(losses, logits, labels)
        if logits.shape[1] != self.classes:
            raise UserError(
                f"GroupRecess: logits for {logits.shape[1]} classes, not for the {self.classes} it was made for"
            )
        if torch.is_grad_enabled():
            self._ask(rows, weights.float(), logits, labels)
        return self._objective(losses, rows, weights, self._measure(losses, logits, labels))

    def resting(self) -> list[Any]:
        """The groups whose turn it is to rest in the next batch."""
        return [name for name, out in zip(self.names, self._resting(self.batches)[0].tolist(), strict=True) if out]

    def _resting(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Who rests in this batch, counted from 0; and who is asked in it, which is in the last quarter of the turn."""
        t = batch.long() - self.start
        within = (t >= 0) & (t < self.cycles * self.turns * self.rest)
        cycle = (t // (self.turns * self.rest)).clamp(0, self.cycles - 1)
        resting = within & (
            self.table.index_select(0, cycle.reshape(1))[0] == t % (self.turns * self.rest) // self.rest
        )
        return resting, resting & (t % self.rest >= self.rest - max(1, self.rest // 4))

    def _ask(self, rows: Tensor, weights: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add to the evidence about groups at the end of their turn."""
        one_hot = torch.nn.functional.one_hot(labels, self.classes).to(weights)
        self.labels.add_(self.members.sums(rows, weights[:, None] * one_hot))
        resting, asked = self._resting(self.batches)
        shares = self.labels / self.labels.sum(1, keepdim=True).clamp(min=1e-12)
        seen = (self.mass > 0) & ~resting
        scales = torch.where(seen, self._scales(self.sums / self.mass), 0)
        others = (scales @ shares) / scales.sum().clamp(min=1e-12)
        nll, entropy = _nll_and_entropy(logits - torch.log(others + self.rare), labels)
        known = others[labels] / (others[labels] + self.seldom)
        excess = self.members.sums(rows, weights * known * (nll - entropy))
        usable = asked & excess.isfinite()
        self.evidence.add_(torch.where(usable, excess, 0))
        self.asked.add_(torch.where(usable, self.members.sums(rows, weights), 0))

    def _trust(self, means: Tensor) -> Tensor:
        evidence = self.evidence / self.asked.clamp(min=1e-12)
        distrust = torch.where(self.asked > 0, self.beta_rest * (evidence - self.theta), 0)
        return super()._trust(means) * torch.exp(-distrust.clamp(min=0, max=MOST)).to(means)

    def _slopes(self, means: Tensor, seen: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            seen = seen & ~self._resting(self.batches - 1)[0]  # this batch has been counted
        return super()._slopes(means, seen)


def _nll_and_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """−log p_y, and the entropy of p, for each sample."""
    log_p = torch.log_softmax(logits, 1)
    entropy = -(log_p.exp() * log_p).sum(1)
    return -log_p.gather(1, labels[:, None]).flatten(), entropy
