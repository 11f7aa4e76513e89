"""A method: an objective, a scale and an aggregator. Each is asked in the right form, and a wrong answer is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairmean.errors import Diverged, Lost, UserCodeError, UserError
from fairmean.importing import failure
from fairmean.rules.aggregator import Aggregator
from fairmean.rules.context import LAST_SENT, Context, Means
from fairmean.rules.hyper import hyper_parameters
from fairmean.rules.mixing import Mixing
from fairmean.rules.objectives import OBJECTIVES, CrossEntropy, Objective
from fairmean.rules.products import Products
from fairmean.rules.round import Access, Round, Rung, State
from fairmean.rules.scales import Scale


class Report(NamedTuple):
    """What clients make of their statistics: one row for each.

    ``scales`` are 0 for clients that are out. ``memory`` is what they remember from now on. ``side`` is what they add
    to their messages, zeros from those that are out.
    """

    losses: Tensor
    scales: Tensor
    memory: State
    side: State


@dataclass(frozen=True)
class Method:
    """f_i by the objective, g_i = ∇f_i;  v_i = scale(stats_i) g_i;  v' = W v by the mixings;  d = aggregator(v')."""

    name: str
    scale: Scale
    aggregator: Aggregator
    pre: tuple[Mixing, ...] = ()
    objective: Objective = CrossEntropy()  # noqa: RUF009 - it cannot change

    @cached_property
    def rung(self) -> Rung:
        """What the server must see."""
        return max(self.aggregator.rung, Rung.GRAM) if self.pre else self.aggregator.rung

    @property
    def assumes(self) -> str:
        """Extra assumptions: what a defence is told, or what the server owns."""
        every = [*(mixing.assumes for mixing in self.pre), self.aggregator.assumes]
        return ", ".join(dict.fromkeys(filter(None, every)))

    @cached_property
    def needs_entropy(self) -> bool:
        """Whether clients must measure their mean predictive entropy."""
        return self.scale.needs_entropy

    @property
    def parts(self) -> tuple[Any, ...]:
        """Everything it is made of."""
        return (self.objective, self.scale, *self.pre, self.aggregator)

    @property
    def is_own(self) -> bool:
        """Whether a part of it is the user's own code."""
        return any(not is_ours(part) for part in self.parts)

    @property
    def hyper(self) -> dict[str, Any]:
        """The hyper-parameters of all its parts."""
        return merged(hyper_parameters(part) for part in self.parts)

    @cached_property
    def remembers(self) -> bool:
        """Whether something is kept of every client between rounds."""
        return not (_is_simple(self.objective) and _is_simple(self.scale))

    @cached_property
    def may_be_out(self) -> bool:
        """Whether clients may be out of a round: the scale does not promise that it is never 0."""
        return not _is_simple(self.scale)

    @cached_property
    def plain_mean(self) -> bool:
        """Whether every sample of a client has the same weight inside it."""
        return type(self.objective).weights is Objective.weights

    @cached_property
    def measures(self) -> bool:
        """Whether clients measure something at the broadcast model beside their losses."""
        return self.needs_entropy or self.needs_samples

    @cached_property
    def needs_samples(self) -> bool:
        """Whether clients measure something of their samples that losses and entropies do not tell."""
        return type(self.objective).measure is not Objective.measure

    @cached_property
    def adds_sums(self) -> bool:
        """Whether clients add small vectors to their messages, of which the server makes a broadcast."""
        return type(self.scale).side is not Scale.side

    @cached_property
    def _knows_scale(self) -> bool:
        """Whether the scale is fairmean's own, whose answers the tests have looked at."""
        return is_ours(self.scale)

    @cached_property
    def _knows_rule(self) -> bool:
        """Whether the aggregator is fairmean's own."""
        return is_ours(self.aggregator)

    def memory(self, n: int, classes: int) -> State:
        """What is kept of n clients before the first round."""
        if not self.remembers:
            return {}
        with self._blaming("objective", self.objective):
            own = self.objective.init(n, classes)
        self._check_table("objective", self.objective, own, n)
        if LAST_SENT in own:
            raise self._wrong(
                "objective", self.objective, f"a memory called {LAST_SENT}, which the engine itself keeps"
            )
        return {**own, LAST_SENT: torch.full((n,), -1.0, dtype=torch.float64)}

    def first_broadcast(self, classes: int) -> State:
        """What the server sends along with the first model."""
        with self._blaming("scale", self.scale):
            first = self.scale.start(classes)
        if not _is_state(first):
            raise self._wrong("scale", self.scale, "a start that is not a dictionary of tensors")
        return first

    def made_up_context(self, classes: int) -> Context:
        """Of two clients before the first round, with two samples and one."""
        owner = torch.tensor([0, 0, 1])
        return Context(
            t=torch.zeros((), dtype=torch.float64),
            rounds=1,
            clients=torch.arange(2),
            sizes=torch.tensor([2.0, 1.0], dtype=torch.float64),
            memory=self.memory(2, classes),
            broadcast=self.first_broadcast(classes),
            spread=lambda values: values[owner],
        )

    def rehearse(self, classes: int, outputs: int | None = None) -> dict[str, torch.Size]:
        """Ask the client's side everything once; raise if an answer is wrong.

        So a mistake shows before anything is written. Returned is what is measured, and the shape of one value of it.
        """
        measured, _ = self.rehearsal(classes, outputs)
        return {key: value.shape[1:] for key, value in measured.items()}

    def rehearsal(self, classes: int, outputs: int | None = None) -> tuple[State, Report]:
        """What two clients measure of made-up samples, row by row, and what they report.

        ``outputs``: how many numbers the model returns for a sample, where that is not the number of classes.
        """
        drawn = torch.get_rng_state()
        width = outputs or classes
        logits = torch.linspace(-1, 1, 3 * width, dtype=torch.float64).view(3, width).requires_grad_()
        y, context = torch.arange(3) % classes, self.made_up_context(classes)
        with self._blaming("objective", self.objective), torch.enable_grad():
            losses = self.objective.losses(logits, y, context)
        self._check("objective", self.objective, losses, y.shape, y.device)
        if not losses.requires_grad:
            raise self._wrong("objective", self.objective, "losses that do not depend on the logits")
        with self._blaming("objective", self.objective):
            weights = self.objective.weights(logits.detach(), y, context)
        if weights is not None:
            self._check("objective", self.objective, weights, y.shape, y.device)
            if not (weights.isfinite() & (weights >= 0)).all():
                raise self._wrong("objective", self.objective, "weights of samples that are not finite and at least 0")
        with self._blaming("objective", self.objective):
            measured = self.measure(logits.detach(), y, context)
        self._check_table("objective", self.objective, measured, len(y))
        self.read(measured)
        f = losses.detach()[[0, 2]].abs()
        report = self.report(f, {key: value.detach()[[0, 2]].double() for key, value in measured.items()}, context)
        self.next_broadcast({key: value.sum(0) for key, value in report.side.items()}, report.scales, context.broadcast)
        self.shown(report.memory, context.broadcast)
        for kind, part in (("objective", self.objective), ("scale", self.scale)):
            self._check_random(kind, part, drawn)
        return measured, report

    def measure(self, logits: Tensor, y: Tensor, context: Context) -> State:
        """What clients measure of every row at the broadcast model, by name."""
        measured = dict(self.objective.measure(logits, y, context))
        if self.needs_entropy:
            measured["entropy"] = self.objective.entropy(logits)
        return measured

    def read(self, means: Means) -> State:
        """What clients measured, as far as the rule reads it."""
        for name in self.aggregator.reads:
            if name not in means:
                raise UserError(
                    f"{self.name}: its rule reads '{name}', which clients do not measure; choose an objective that "
                    "does, or pass means= to fairmean.gathered"
                )
        return {name: means[name] for name in self.aggregator.reads}

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

    def check_cohort(self, n: int) -> None:
        """Raise a UserError if so many clients in a round are too few for what they add up."""
        if self.adds_sums and n < self.scale.fewest:
            raise UserError(
                f"{self.name}: needs at least {self.scale.fewest} clients in a round, and there are {n}; with fewer, "
                "what clients add up could tell what one of them has, so it would never be used"
            )

    def report(self, losses: Tensor, means: Means, context: Context) -> Report:
        """The client's part of a round: what it remembers, how it scales its gradient, what it adds to its message."""
        if not self.remembers:
            return Report(losses, self.scales(losses, means, context), {}, {})
        memory = dict(context.memory)
        if type(self.objective).remember is not Objective.remember:
            own = {key: value for key, value in memory.items() if key != LAST_SENT}
            with self._blaming("objective", self.objective, losses):
                new = self.objective.remember(own, means, context)
            self._check_memory(own, new)
            memory |= {key: value.to(memory[key].dtype) for key, value in new.items()}
            context = replace(context, memory=memory)
        scales = self.scales(losses, means, context)
        sent = scales != 0
        memory[LAST_SENT] = torch.where(sent, context.t, memory[LAST_SENT])
        side: State = {}
        if self.adds_sums:
            with self._blaming("scale", self.scale, losses):
                side = self.scale.side(scales, means, context)
            self._check_table("scale", self.scale, side, len(losses))
            if not context.nobody(~sent):
                side = {key: torch.where(_like(sent, value), value, 0) for key, value in side.items()}
            side = {key: value.double() for key, value in side.items()}
        return Report(losses, scales, memory, side)

    def scales(self, losses: Tensor, means: Means, context: Context) -> Tensor:
        """s from what the clients know."""
        if self._knows_scale:
            return self.scale(losses, means, context)
        with self._blaming("scale", self.scale, losses):
            scales = self.scale(losses, means, context)
        self._check("scale", self.scale, scales, losses.shape, losses.device)
        return scales

    def next_broadcast(self, sums: State, scales: Tensor, before: State) -> State:
        """What travels with the next model; what it was before where fewer than ``fewest`` clients sent something."""
        if not self.adds_sums:
            return before
        with self._blaming("scale", self.scale):
            new = self.scale.broadcast(sums, before)
        if not (_is_state(new) and {k: v.shape for k, v in new.items()} == {k: v.shape for k, v in before.items()}):
            raise self._wrong("scale", self.scale, "a broadcast of other names or shapes than its start")
        enough = (scales != 0).sum() >= self.scale.fewest
        return {key: torch.where(enough, value.to(before[key].dtype), before[key]) for key, value in new.items()}

    def shown(self, memory: State, broadcast: State) -> State:
        """What clients can tell about themselves, for the record; NaN where there is nothing to tell."""
        if type(self.scale).shows is Scale.shows:
            return {}
        rows = len(memory[LAST_SENT]) if memory else 0
        with self._blaming("scale", self.scale):
            shown = self.scale.shows(memory, broadcast)
        self._check_table("scale", self.scale, shown, rows)
        return shown

    def decide(self, round: Round, state: State, length: int | None = None) -> tuple[Tensor, State]:
        """The aggregator's answer: weights and the next state, or a direction of ``length`` and the next state.

        An answer of the wrong form, and an error in a rule of the user's, names the rule.
        """
        if self._knows_rule:
            return self.aggregator(round, state)
        losses, drawn = vars(round).get("losses"), torch.get_rng_state()
        version = losses._version if losses is not None else 0
        with self._blaming("rule", self.aggregator, losses):
            answer = self.aggregator(round, state)
        self._check_random("rule", self.aggregator, drawn)
        if losses is not None and losses._version != version:
            raise UserCodeError(
                f"{self._named('rule', self.aggregator)} changed round.losses in place, and they go into the record; "
                "work on a copy: round.losses.clone()"
            )
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
        if not _is_state(state):
            raise self._wrong("rule", self.aggregator, "a state that is not a dictionary of tensors")

    def _check_table(self, kind: str, part: Any, table: Any, rows: int) -> None:
        if not _is_state(table):
            raise self._wrong(kind, part, f"{_kind(table)}, not a dictionary of tensors")
        for name, values in table.items():
            if values.dim() == 0 or len(values) != rows:
                raise self._wrong(
                    kind, part, f"'{name}' of shape {tuple(values.shape)}, not one row for each of {rows}"
                )

    def _check_memory(self, before: State, after: Any) -> None:
        shapes = {key: value.shape for key, value in before.items()}
        if not _is_state(after) or {key: value.shape for key, value in after.items()} != shapes:
            raise self._wrong("objective", self.objective, "a memory of other names or shapes than its init")

    def mix(self, products: Products) -> None:
        """Apply the pre-aggregations, one after the other."""
        for mixing in self.pre:
            gram = products.gram()
            with self._blaming("pre-aggregation", mixing):
                matrix = mixing.matrix(gram)
            self._check("pre-aggregation", mixing, matrix, gram.shape, gram.device)
            products.mix(matrix)

    def normaliser(self, weights: Tensor, scaled: Tensor) -> Tensor | float:
        """What λs is multiplied by: 1; in the normalised form Σλ/Σλs, a ratio of two sums at the rule's own step.

        Where clients may be out, Σλ/Σ_in λ: the others share the weight that those would have had.
        """
        if self.scale.normalised:
            return weights.sum() / _or_one(scaled.sum())
        if self.may_be_out:
            return weights.sum() / _or_one(torch.where(scaled != 0, weights, 0).sum())
        return 1.0

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
            if is_ours(part):
                raise
            if losses is not None and not losses.isfinite().all():
                raise Diverged("the losses are not finite any more") from error
            raise UserCodeError(f"{self._named(kind, part)} failed ({failure(error)})") from error

    def _check(self, kind: str, part: Any, values: Any, shape: torch.Size, device: torch.device) -> None:
        if not isinstance(values, Tensor):
            raise self._wrong(kind, part, f"{_kind(values)}, not a tensor")
        if values.shape != shape:
            raise self._wrong(kind, part, f"a tensor of shape {tuple(values.shape)}, not {tuple(shape)}")
        if values.is_complex():
            raise self._wrong(kind, part, "complex numbers")
        if values.device != device:
            raise self._wrong(kind, part, f"a tensor on {values.device}, not on {device}")

    def not_finite(self) -> UserCodeError:
        """The error for a rule of the user's that made a direction of finite messages that is not finite itself."""
        return self._wrong(
            "rule", self.aggregator, "a direction with NaN or infinite values, although every message was finite"
        )

    def _wrong(self, kind: str, part: Any, what: str) -> UserCodeError:
        return UserCodeError(f"{self._named(kind, part)} returned {what}")

    def _named(self, kind: str, part: Any) -> str:
        """What a part is called: an objective by its own name, which the method's does not tell."""
        own = next((name for name, cls in OBJECTIVES.items() if cls is type(part)), self.name)
        return f"{kind} '{own}' ({type(part).__name__})"

    def _check_random(self, kind: str, part: Any, before: Tensor) -> None:
        if not is_ours(part) and not torch.equal(before, torch.get_rng_state()):
            raise UserCodeError(
                f"{self._named(kind, part)} draws random numbers from torch's global generator, so no run could be "
                "repeated; give it a torch.Generator of its own, seeded from what it remembers"
            )


def _or_one(total: Tensor) -> Tensor:
    """A sum to divide by; 1 where there is nothing to divide, so that 0 stays 0 at any precision."""
    return torch.where(total == 0, 1.0, total)


def _is_simple(part: Objective | Scale) -> bool:
    """What the class says of itself: a subclass that changes something does not inherit it."""
    return bool(vars(type(part)).get("simple", False))


def _is_state(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(inner, Tensor) for inner in value.values())


def _like(mask: Tensor, values: Tensor) -> Tensor:
    """A mask over rows, with as many dimensions as the values."""
    return mask.view(-1, *[1] * (values.dim() - 1))


def is_ours(part: Any) -> bool:
    """Whether a part comes with fairmean."""
    return type(part).__module__.startswith("fairmean.")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Hyper-parameters of several parts; one that two parts share has one value."""
    return {key: value for part in parts for key, value in part.items()}
