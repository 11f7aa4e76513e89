"""A method, and what it makes of one round."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairmean.errors import Diverged, Lost, UserCodeError, UserError
from fairmean.importing import failure
from fairmean.rules.aggregator import Aggregator
from fairmean.rules.hyper import hyper_parameters
from fairmean.rules.mixing import Mixing
from fairmean.rules.objectives import CrossEntropy, Objective
from fairmean.rules.products import Products, pull
from fairmean.rules.round import NO_ACCESS, Access, Round, Rung, State
from fairmean.rules.scales import Scale


class Outcome(NamedTuple):
    """A round's result: the direction d, the weight each g_i got in it (None when not a weighted sum), the state.

    The engine's fused pass leaves the direction in the model's gradients; it is None here then.
    """

    direction: Tensor | None
    weights: Tensor | None
    state: State


@dataclass(frozen=True)
class Method:
    """f_i by the objective, g_i = ∇f_i;  v_i = scale(stats_i) g_i;  v' = W v by the mixings;  d = aggregator(v')."""

    name: str
    scale: Scale
    aggregator: Aggregator
    pre: tuple[Mixing, ...] = ()
    objective: Objective = CrossEntropy()  # noqa: RUF009 - it cannot change

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
    def parts(self) -> tuple[Any, ...]:
        """Everything it is made of."""
        return (self.objective, self.scale, *self.pre, self.aggregator)

    @property
    def is_own(self) -> bool:
        """Whether a part of it is the user's own code."""
        return any(not _is_ours(part) for part in self.parts)

    @property
    def hyper(self) -> dict[str, Any]:
        """All hyper-parameters, of scale, pre-aggregations and aggregator."""
        return merged(hyper_parameters(part) for part in self.parts)

    def try_objective(self, classes: int) -> None:
        """Raise unless the objective gives a loss for every row of logits, that can be differentiated."""
        logits = torch.linspace(-1, 1, 3 * classes, dtype=torch.float64).view(3, classes).requires_grad_()
        y = torch.arange(3) % classes
        with self._blaming("objective", self.objective), torch.enable_grad():
            losses = self.objective.losses(logits, y)
        self._check("objective", self.objective, losses, y.shape, y.device)
        if not losses.requires_grad:
            raise self._wrong("objective", self.objective, "losses that do not depend on the logits")

    def check(self, n: int, access: Access) -> None:
        """Raise a UserError if the method cannot work with n clients in a round, or misses something it needs."""
        try:
            parts: list[Mixing | Aggregator] = [*self.pre, self.aggregator]
            for part in parts:
                with self._blaming("rule", part):
                    part.check(n)
        except UserCodeError:
            raise
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None
        for name in self.aggregator.requires:
            if not getattr(access, name):
                raise UserError(f"{self.name} needs more than gradients: pass access=fairmean.Access({name}=…)")

    def scales(self, losses: Tensor, entropies: Tensor | None) -> Tensor:
        """s from the clients' statistics; entropies go only to a scale that declares that it needs them."""
        with self._blaming("scale", self.scale, losses):
            scales = self.scale(losses, entropies if self.scale.needs_entropy else None)
        self._check("scale", self.scale, scales, losses.shape, losses.device)
        return scales

    def decide(self, round: Round, state: State, length: int | None = None) -> tuple[Tensor, State]:
        """The aggregator's answer: weights and the next state, or a direction of ``length`` and the next state.

        An answer of the wrong form, and an error in a rule of the user's, names the rule.
        """
        with self._blaming("rule", self.aggregator, vars(round).get("losses")):
            answer = self.aggregator(round, state)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise self._wrong("rule", self.aggregator, f"{_kind(answer)}, not a pair (weights or direction, state)")
        result, state = answer
        shape = round.sizes.shape if length is None else torch.Size([length])
        self._check("rule", self.aggregator, result, shape, round.sizes.device)
        self._check_state(state)
        return result, state

    def init(self, n: int) -> State:
        """The aggregator's state before the first round, for n clients in all."""
        with self._blaming("rule", self.aggregator):
            state = self.aggregator.init(n)
        self._check_state(state)
        return state

    def _check_state(self, state: Any) -> None:
        if not (isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values())):
            raise self._wrong("rule", self.aggregator, "a state that is not a dictionary of tensors")

    def _mix(self, products: Products) -> None:
        """Apply the pre-aggregations, one after the other."""
        for mixing in self.pre:
            gram = products.gram()
            with self._blaming("pre-aggregation", mixing):
                matrix = mixing.matrix(gram)
            self._check("pre-aggregation", mixing, matrix, gram.shape, gram.device)
            products.mix(matrix)

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
        weights, state = self._weights_beforehand(losses, sizes, clients, lr, state)
        scaled = weights * self.scales(losses, entropies)
        return scaled * self.normaliser(weights, scaled), state

    def _weights_beforehand(
        self, losses: Tensor, sizes: Tensor, clients: Tensor, lr: float, state: State
    ) -> tuple[Tensor, State]:
        """λ of a rule that sees no more than losses."""
        round = Round(sizes=sizes, clients=clients, lr=lr)
        if self.aggregator.rung >= Rung.LOSSES:
            round.losses = losses
        return self.decide(round, state)

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
        known, state, scales = self._before_messages(losses, sizes, entropies, clients, lr, state)
        products = Products(gram, scales, self.scale.unit, known=gram)
        self._mix(products)
        if known is not None:
            return products.on_gradients(known), state
        round = Round(lazy=products.lazy, sizes=sizes, clients=clients, lr=lr, losses=losses, times=products.times)
        weights, state = self.decide(round, state)
        return products.on_gradients(weights), state

    def _before_messages(
        self, losses: Tensor, sizes: Tensor, entropies: Tensor | None, clients: Tensor, lr: float, state: State
    ) -> tuple[Tensor | None, State, Tensor]:
        """(λ where the rule does not look at messages, state, the scales that messages get).

        In the normalised form scales are divided by their mean, weighted by λ where it is known beforehand, and else
        with every client alike. So a pre-aggregation that changes nothing leaves the direction what it was.
        """
        scales = self.scales(losses, entropies)
        known = None
        if self.aggregator.rung <= Rung.LOSSES:
            known, state = self._weights_beforehand(losses, sizes, clients, lr, state)
        if self.scale.normalised:
            weights = torch.ones_like(scales) if known is None else known
            scales = scales * self.normaliser(weights, weights * scales)
        return known, state, scales

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
        looks: bool = True,
    ) -> Outcome:
        """The direction from the n×d matrix of gradients, for a rule on any rung.

        ``owned``: the caller no longer needs the gradients, so they may be scaled in place. ``looks``: numbers may be
        looked at, so that a direction that is not finite can name the rule; not where many runs go through one call.
        """
        if self.rung <= Rung.LOSSES:
            weights, state = self.coefficients(losses, sizes, entropies, clients=clients, lr=lr, state=state)
            return Outcome(pull(gradients, weights), weights, state)
        known, state, scales = self._before_messages(losses, sizes, entropies, clients, lr, state)
        unit = self.scale.unit
        if owned and self.rung >= Rung.COORDINATES and not self.aggregator.linear and not self.pre and not unit:
            gradients.mul_(scales.to(gradients.dtype)[:, None])
            scales, unit = torch.ones_like(scales), True
        products = Products(gradients, scales, unit)
        self._mix(products)
        if known is not None:
            weights = products.on_gradients(known)
            return Outcome(pull(gradients, weights), weights, state)
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
        if not self.aggregator.linear:
            result, state = self.decide(round, state, gradients.shape[1])
            if looks and not _is_ours(self.aggregator) and not result.isfinite().all() and gradients.isfinite().all():
                raise self._wrong(
                    "rule",
                    self.aggregator,
                    "a direction with NaN or infinite values, although every message was finite",
                )
            return Outcome(result, None, state)
        result, state = self.decide(round, state)
        weights = products.on_gradients(result)
        return Outcome(pull(gradients, weights), weights, state)

    @contextmanager
    def _blaming(self, kind: str, part: Any, losses: Tensor | None = None) -> Iterator[None]:
        """An exception in a part that is the user's own code names the part; one of ours stays what it is.

        Where losses are not finite any more, the run has diverged, and no part is to blame.
        """
        try:
            yield
        except (UserError, Diverged, Lost, MemoryError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:
            if _is_ours(part):
                raise
            if losses is not None and not losses.isfinite().all():
                raise Diverged("the losses are not finite any more") from error
            raise UserCodeError(f"{kind} '{self.name}' ({type(part).__name__}) failed ({failure(error)})") from error

    def _check(self, kind: str, part: Any, values: Any, shape: torch.Size, device: torch.device) -> None:
        if not isinstance(values, Tensor):
            raise self._wrong(kind, part, f"{_kind(values)}, not a tensor")
        if values.shape != shape:
            raise self._wrong(kind, part, f"a tensor of shape {tuple(values.shape)}, not {tuple(shape)}")
        if values.is_complex():
            raise self._wrong(kind, part, "complex numbers")
        if values.device != device:
            raise self._wrong(kind, part, f"a tensor on {values.device}, not on {device}")

    def _wrong(self, kind: str, part: Any, what: str) -> UserCodeError:
        return UserCodeError(f"{kind} '{self.name}' ({type(part).__name__}) returned {what}")


def _is_ours(part: Any) -> bool:
    return type(part).__module__.startswith("fairmean.")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Hyper-parameters of several parts; one that two parts share has one value."""
    return {key: value for part in parts for key, value in part.items()}
