"""Client-level differential privacy of the sum of messages.

    v_i ← v_i min(1, C/‖v_i‖)        Σ v_i + N(0, (zC)²)        with C the clip norm and z the noise multiplier

Somebody who sees every model of the run learns almost the same whether or not any one client took part. The sum is
divided by the number of clients that a round should have, and not by the number of replies, which would tell who was
missing. ε is accounted by Flower's ``RdpAccountant``. With adaptive clipping, C follows a quantile of the norms (Andrew
et al. 2021): each client adds a bit, whether its norm was within C, and the sum of the bits gets noise, too.

This is about whole clients. Privacy of single samples (DP-SGD) does not go with these methods: it clips one sample at a
time, and here a sample's weight depends on the loss of the whole batch.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmean.errors import UserError
from fairmean.rules.method import Method
from fairmean.rules.round import Rung
from fairmean.rules.servers.means import Mean

COUNT_NOISE = 20.0
"""The noise of the count of norms within C is the number of clients divided by this, as the paper on it suggests."""


@dataclass(frozen=True)
class Privacy:
    """``clip`` is C (the first one, if it adapts), ``noise`` is z, and ``delta`` the δ at which ε is told.

    ``max_epsilon``: the run stops before the round that would pass it. ``quantile``: C follows this quantile of the
    clients' norms by C ← C exp(−rate (b − quantile)), where b is the noisy share of norms within C; None: C stays.
    ``seed``: for tests alone; noise that somebody can draw again protects nobody.
    """

    clip: float
    noise: float
    delta: float = 1e-5
    max_epsilon: float | None = None
    quantile: float | None = None
    rate: float = 0.2
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("clip", "noise", "rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"privacy.{name} = {getattr(self, name)}: must be a finite number > 0")
        if not 0 < self.delta < 1:
            raise UserError(f"privacy.delta = {self.delta}: must be between 0 and 1; much less than 1/clients is usual")
        if self.max_epsilon is not None and not 0 < self.max_epsilon < math.inf:
            raise UserError(f"privacy.max_epsilon = {self.max_epsilon}: must be a finite number > 0")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise UserError(f"privacy.quantile = {self.quantile}: must be between 0 and 1; 0.5 follows the median")


def check_method(method: Method) -> None:
    """Raise if a sum with noise is not all that the method's server sees of its clients."""
    reason = ""
    if method.rung != Rung.SUM:
        reason = f"its server sees {method.rung.sees}, not a sum alone"
    elif type(method.aggregator) is not Mean:
        reason = "its rule is not the plain mean of the messages"
    elif method.scale.normalised:
        reason = "it divides by a second sum, Σ s_i"
    elif method.adds_sums or method.may_be_out:
        reason = "clients tell the server more than their message"
    elif method.aggregator.needs_sizes:
        reason = "clients are weighted by their sample counts"
    if reason:
        raise UserError(
            f"privacy: noise is added to one sum of clipped messages, and that does not cover {method.name}, because "
            f"{reason}; use mean, fairmean or qffl"
        )


class Guard:
    """The noise of a run, and what has been spent; so many ``clients`` take part in a round."""

    def __init__(self, privacy: Privacy, clients: int) -> None:
        self.privacy, self.clip, self._clients = privacy, privacy.clip, clients
        self._seeded = None if privacy.seed is None else np.random.Generator(np.random.Philox(privacy.seed))
        self._accountant = _accountant(privacy, clients)
        self.spent = 0.0
        self.multiplier  # noqa: B018 - raises where adaptive clipping has no noise to spare

    @property
    def multiplier(self) -> float:
        """The noise multiplier of the sum; with adaptive clipping a little more, so that with the count it is z."""
        z = self.privacy.noise
        if self.privacy.quantile is None:
            return z
        left = z**-2 - (2 * self._count_noise) ** -2
        if left <= 0:
            raise UserError(
                f"privacy.noise = {z}: so much noise leaves none for the count of adaptive clipping with "
                f"{self._clients} clients; leave out quantile, or use less noise"
            )
        return 1 / math.sqrt(left)

    @property
    def _count_noise(self) -> float:
        return max(self._clients / COUNT_NOISE, 1.0)

    def noisy(self, total: Tensor, share: float) -> Tensor:
        """The sum with noise, where one client has at most ``share`` · C in it."""
        noise = torch.from_numpy(self._normal(len(total)))
        return total + (noise * (self.multiplier * self.clip * share)).to(total.dtype)

    def _normal(self, count: int) -> NDArray[np.float64]:
        """Normal numbers that nobody can draw again: a new key of 128 bits from the system for every sum."""
        random = self._seeded or np.random.Generator(np.random.Philox(key=secrets.randbits(128)))
        return random.standard_normal(count)

    def clipped(self, message: Tensor) -> Tensor:
        """The message within C, whatever the client did."""
        norm = float(message.double().norm())
        return message if norm <= self.clip else message * (self.clip / norm)

    def exceeds(self, senders: int) -> bool:
        """Whether one more round with so many clients would pass ``max_epsilon``."""
        if self.privacy.max_epsilon is None:
            return False
        return bool(self._accountant.would_exceed(self._event(senders)))

    def spend(self, inside: list[float]) -> None:
        """A round was released; the bits say whose norm was within C."""
        self._accountant.compose(self._event(len(inside)))
        self.spent = float(self._accountant.get_epsilon(self.privacy.delta))
        if self.privacy.quantile is not None:
            share = (sum(inside) + float(self._normal(1)[0]) * self._count_noise) / self._clients
            self.clip *= math.exp(-self.privacy.rate * (share - self.privacy.quantile))

    def _event(self, senders: int) -> Any:
        from flwr.serverapp import GaussianPrivacyEvent

        return GaussianPrivacyEvent(self.privacy.noise, max(senders, 1), self._clients)

    def state(self) -> dict[str, Any]:
        """For a checkpoint: plain values."""
        return {"clip": self.clip, "spent": self.spent, "accountant": self._accountant.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """As it was."""
        self.clip, self.spent = float(state["clip"]), float(state["spent"])
        self._accountant.load_state_dict(state["accountant"])


def _accountant(privacy: Privacy, clients: int) -> Any:
    """Every client may take part in every round, so sampling is not counted on to make ε smaller."""
    from flwr.serverapp import NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod

    config = PrivacyConfig(
        privacy.delta, clients, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION,
        privacy.max_epsilon,
    )  # fmt: skip
    try:
        return RdpAccountant(config)
    except ImportError:
        raise UserError('privacy: the accountant needs one more package: pip install "flwr[dp]"') from None
