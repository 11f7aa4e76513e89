"""A method, and what it makes of one round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairmean.aggregators import Aggregator, Mixing, Round, Rung, State
from fairmean.errors import UserError
from fairmean.hyper import hyper_parameters
from fairmean.products import Products, pull
from fairmean.scales import Scale


class Outcome(NamedTuple):
    """A round's result: the direction d, the weight each g_i got in it (None when not a weighted sum), the state.

    The engine's fused pass leaves the direction in the model's gradients; it is None here then.
    """

    direction: Tensor | None
    weights: Tensor | None
    state: State


@dataclass(frozen=True)
class Access:
    """What a rule beyond the losses can reach of the round; the engine fills it in, or a caller of ``aggregate``.

    ``trial(direction, step)``: every client's loss at w − step·direction. ``trust(direction, step)``: the loss there on
    clean data of the server. ``output``: the output layer's rows of every message, n×K×p.
    """

    layers: tuple[slice, ...] = ()
    output: Callable[[Tensor], Tensor] | None = None
    trial: Callable[[Tensor, float], Tensor] | None = None
    trust: Callable[[Tensor | None, float], Tensor] | None = None


NO_ACCESS = Access()


@dataclass(frozen=True)
class Method:
    """v_i = scale(stats_i) g_i;  v' = W v by the pre-aggregations;  d = aggregator(v'_1 … v'_n)."""

    name: str
    scale: Scale
    aggregator: Aggregator
    pre: tuple[Mixing, ...] = ()

    @property
    def rung(self) -> Rung:
        """What the server must see."""
        return max(self.aggregator.rung, Rung.GRAM) if self.pre else self.aggregator.rung

    @property
    def assumes(self) -> str:
        """Extra assumptions: what a defence is told, or what the server owns."""
        every = [*(mixing.assumes for mixing in self.pre), self.aggregator.assumes]
        return ", ".join(dict.fromkeys(filter(None, every)))

    @property
    def needs_entropy(self) -> bool:
        """Whether clients must report their mean predictive entropy to themselves."""
        return self.scale.needs_entropy

    @property
    def hyper(self) -> dict[str, Any]:
        """All hyper-parameters, of scale, pre-aggregations and aggregator."""
        return merged(hyper_parameters(part) for part in (self.scale, *self.pre, self.aggregator))

    def check(self, n: int, access: Access) -> None:
        """Raise a UserError if the method cannot work with n clients in a round, or misses something it needs."""
        try:
            for mixing in self.pre:
                mixing.check(n)
            self.aggregator.check(n)
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None
        for name in self.aggregator.requires:
            if not getattr(access, name):
                raise UserError(f"{self.name} needs more than gradients: pass access=fairmean.Access({name}=…)")

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
        scaled = weights * scales
        return scaled * self.normaliser(weights, scaled), state

    def normaliser(self, weights: Tensor, scaled: Tensor) -> Tensor | float:
        """1; in the normalised form Σλ/Σλs, so that the direction is a ratio of two sums at the rule's own step."""
        if not self.scale.normalised:
            return 1.0
        return weights.sum() / scaled.sum().clamp(min=1e-300)

    def weigh(
        self,
        gram: Tensor,
        losses: Tensor,
        sizes: Tensor,
        entropies: Tensor | None = None,
        *,
        clients: Tensor,
        lr: float,
        state: State,
    ) -> tuple[Tensor, State]:
        """c with d = Σ c_i g_i from losses and the gradients' inner products: for linear rules up to that rung."""
        products = Products(gram, self._scales(losses, entropies), self.scale.unit, known=gram)
        products.mix(self.pre)
        round = Round(lazy=products.lazy, sizes=sizes, clients=clients, lr=lr, losses=losses, times=products.times)
        weights, state = self.aggregator(round, state)
        return products.on_gradients(weights), state

    def _scales(self, losses: Tensor, entropies: Tensor | None) -> Tensor:
        """s, where each message is scaled before the rule sees it: in the normalised form s_i / mean(s)."""
        scales = self.scale(losses, entropies)
        return scales / scales.mean().clamp(min=1e-300) if self.scale.normalised else scales

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
        access: Access = NO_ACCESS,
        owned: bool = False,
    ) -> Outcome:
        """The direction from the n×d matrix of gradients, for a rule on any rung.

        ``owned``: the caller no longer needs the gradients, so they may be scaled in place.
        """
        if self.rung <= Rung.LOSSES:
            weights, state = self.coefficients(losses, sizes, entropies, clients=clients, lr=lr, state=state)
            return Outcome(pull(gradients, weights), weights, state)
        scales, unit = self._scales(losses, entropies), self.scale.unit
        if owned and self.rung >= Rung.COORDINATES and not self.aggregator.linear and not self.pre and not unit:
            gradients.mul_(scales.to(gradients.dtype)[:, None])
            scales, unit = torch.ones_like(scales), True
        products = Products(gradients, scales, unit)
        products.mix(self.pre)
        round = Round(lazy=products.lazy, sizes=sizes, clients=clients, lr=lr, losses=losses, times=products.times)

        def direction(weights: Tensor) -> Tensor:
            return pull(gradients, products.on_gradients(weights))

        if self.rung >= Rung.COORDINATES:
            round.layers = access.layers
            products.lazy["messages"] = products.messages
            if access.output is not None:
                output = access.output
                products.lazy["output"] = lambda: output(round.messages)
        if self.rung >= Rung.EXTRA:
            if access.trial is not None:
                trial = access.trial
                round.trial = lambda weights, step: trial(direction(weights), step)
            if access.trust is not None:
                trust = access.trust
                round.trust = lambda w, step: trust(None if w is None else direction(w), step)
        result, state = self.aggregator(round, state)
        if not self.aggregator.linear:
            return Outcome(result, None, state)
        weights = products.on_gradients(result)
        return Outcome(pull(gradients, weights), weights, state)


def merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Hyper-parameters of several parts; one that two parts share has one value."""
    return {key: value for part in parts for key, value in part.items()}
