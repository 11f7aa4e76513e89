"""The server: the only place where a method meets numbers. As in optax, its state is in the caller's hand."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairmean.engine.cohort import Cohort, added
from fairmean.engine.descent import Direction, flattened, times
from fairmean.errors import UserCodeError, UserError
from fairmean.importing import failure
from fairmean.rules.method import Method, is_ours
from fairmean.rules.named import parse_method
from fairmean.rules.optimisers import OPTIMISERS, Optimiser, Plain
from fairmean.rules.optimisers import optimiser as optimiser_named
from fairmean.rules.products import Products
from fairmean.rules.round import Round, Rung, State


class ServerState(NamedTuple):
    """What the server remembers: of its rule, of its optimiser, and what travels with the next model."""

    rule: State
    optimiser: State
    broadcast: State


class Weighed(NamedTuple):
    """A rule's answer: coefficients c with d = Σ c_i g_i, or (with None for them) the direction itself.

    ``direction`` is there too where the cohort has formed Σ c_i g_i on the way. ``losses`` and ``memory`` are the
    clients' own, and go into the record and into their next round.
    """

    coefficients: Tensor | None
    direction: Direction | None
    rule: State
    broadcast: State
    losses: Tensor
    memory: State


class Update(NamedTuple):
    """A round at the server: then w ← w − lr·``direction``.

    ``weights`` are what each client's gradient got in the rule's direction; None when that is no weighted sum.
    """

    direction: Direction
    weights: Tensor | None
    state: ServerState
    losses: Tensor
    memory: State


class Server:
    """A method and a server optimiser. ``init`` gives the state before the first round, ``update`` a round.

    >>> from fairmean.engine.one_round import gathered
    >>> server = Server("fairmean:kappa=1", "momentum")
    >>> state = server.init(n=2, d=2)
    >>> clients = gathered(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), losses=torch.tensor([1.0, 0.0]))
    >>> update = server.update(clients, state, lr=0.1)
    >>> update.direction  # then w = w - 0.1 * update.direction, and update.state goes into the next round
    tensor([0.7500, 0.5000])
    """

    def __init__(self, method: Method | str, optimiser: Optimiser | str | None = None) -> None:
        self.method = parse_method(method) if isinstance(method, str) else method
        if not isinstance(self.method, Method):
            raise UserError(
                f"method = {method!r}: pass a name such as 'fairmean:kappa=4', or fairmean.method('fairmean')"
            )
        self.optimiser = optimiser_named(optimiser) if isinstance(optimiser, str) else optimiser or Plain()
        if not isinstance(self.optimiser, Optimiser):
            raise UserError(f"optimiser = {optimiser!r}: pass a name such as 'momentum', or an Optimiser")

    def init(
        self, n: int, d: int, classes: int = 1, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> ServerState:
        """The state before the first round, for n clients in all, d parameters and so many classes."""
        return ServerState(
            rule=self.method.init(n),
            optimiser={key: value.to(device, dtype) for key, value in self._start(d).items()},
            broadcast={key: value.to(device) for key, value in self.method.first_broadcast(classes).items()},
        )

    def _start(self, d: int) -> State:
        state = self._asked(self.optimiser.init, d)
        if not (isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values())):
            raise UserCodeError(f"server optimiser {self._named} returned an init that is no dictionary of tensors")
        return state

    def update(self, cohort: Cohort, state: ServerState, lr: float) -> Update:
        """One round: the rule's direction, then the optimiser's."""
        weighed = self.weigh(cohort, state, lr)
        c, direction = weighed.coefficients, weighed.direction
        if direction is None:
            assert c is not None
            direction = cohort.weighted_sum(c)
        direction, optimiser = self.optimise(direction, c, state.optimiser)
        new = ServerState(weighed.rule, optimiser, weighed.broadcast)
        return Update(direction, c, new, weighed.losses, weighed.memory)

    def optimise(self, direction: Direction, coefficients: Tensor | None, state: State) -> tuple[Direction, State]:
        """The direction of the step. When every client is out of the round, there is no step and nothing changes."""
        if self.optimiser.plain:
            return direction, state
        d = flattened(direction)
        step, new = self._step(d, state)
        if not self.method.may_be_out or coefficients is None:
            return step, new
        moves = (coefficients != 0).any()
        return torch.where(moves, step, 0), {key: torch.where(moves, value, state[key]) for key, value in new.items()}

    def _step(self, direction: Tensor, state: State) -> tuple[Tensor, State]:
        """What the optimiser says, in the right form."""
        answer = self._asked(self.optimiser, direction, state)
        try:
            step, new = answer
            good = step.shape == direction.shape and new.keys() == state.keys()
        except (AttributeError, TypeError, ValueError):
            good = False
        if not good:
            what = "something else than a direction like the one it was given and a state like its init"
            raise UserCodeError(f"server optimiser {self._named} returned {what}")
        return step, new

    def _asked(self, call: Any, *arguments: Any) -> Any:
        """What the optimiser says; an error in the user's own names it."""
        try:
            return call(*arguments)
        except UserError:
            raise
        except Exception as error:
            if is_ours(self.optimiser):
                raise
            raise UserCodeError(f"server optimiser {self._named} failed ({failure(error)})") from error

    @property
    def _named(self) -> str:
        kind = type(self.optimiser)
        name = next((name for name, known in OPTIMISERS.items() if known is kind), kind.__name__)
        return f"'{name}' ({kind.__name__})"

    def weigh(self, cohort: Cohort, state: ServerState, lr: float) -> Weighed:
        """The rule's answer, of what its rung lets it see."""
        method, context = self.method, cohort.context
        if method.rung == Rung.SUM:
            return self._of_sums(cohort, state, lr)
        losses, means = cohort.statistics()
        report = method.report(losses, means, context)
        broadcast = method.next_broadcast(added(report.side), report.scales, state.broadcast)
        senders = self._senders(report.scales)
        if senders is not None and len(senders) == 0:  # nobody sends, so there is no step
            return Weighed(torch.zeros_like(losses), None, state.rule, broadcast, losses, report.memory)
        read = method.read(means)
        known = Known(losses, report.scales, context.sizes, context.clients, senders, read)
        if senders is not None:
            read = {name: values[senders] for name, values in read.items()}
            sizes, clients = context.sizes[senders], context.clients[senders]
            known = Known(losses[senders], report.scales[senders], sizes, clients, senders, read)
            method.check(len(senders), cohort.access)
        c: Tensor | None
        direction: Direction | None
        if method.rung == Rung.LOSSES:
            weights, rule = self._weights_beforehand(known, state.rule, lr)
            scaled = weights * known.scales
            c, direction = scaled * method.normaliser(weights, scaled), None
        else:
            c, direction, rule = self._from_messages(cohort, known, state.rule, lr)
        if senders is not None and c is not None:
            c = torch.zeros_like(losses).index_copy(0, senders, c.to(losses.dtype))
        return Weighed(c, direction, rule, broadcast, losses, report.memory)

    def _of_sums(self, cohort: Cohort, state: ServerState, lr: float) -> Weighed:
        """The answer of a rule that sees sums alone: its weights do not depend on what clients say."""
        method, context = self.method, cohort.context
        if context.weights is None:
            weights, rule = method.decide(Round(sizes=context.sizes, clients=context.clients, lr=lr), state.rule)
        else:
            weights, rule = context.weights, state.rule
        sums = cohort.sums(weights, method.report)
        factor = method.normaliser(weights, sums.scaled)
        c, direction = sums.scaled, sums.direction
        if isinstance(factor, Tensor):
            c = c * factor
            direction = None if direction is None else times(direction, factor)
        broadcast = method.next_broadcast(sums.side, sums.scaled, state.broadcast)
        return Weighed(c, direction, rule, broadcast, sums.losses, sums.memory)

    def _senders(self, scales: Tensor) -> Tensor | None:
        """The places of clients that are not out of the round; None: all of them."""
        if not self.method.may_be_out:
            return None
        senders = scales.nonzero()[:, 0]
        return None if len(senders) == len(scales) else senders

    def _weights_beforehand(self, known: Known, state: State, lr: float) -> tuple[Tensor, State]:
        """λ of a rule that sees no more than losses."""
        round = Round(sizes=known.sizes, clients=known.clients, lr=lr)
        if self.method.aggregator.rung >= Rung.LOSSES:
            round.losses, round.means = known.losses, known.means
        return self.method.decide(round, state)

    def _from_messages(
        self, cohort: Cohort, known: Known, state: State, lr: float
    ) -> tuple[Tensor | None, Direction | None, State]:
        """(coefficients, direction, state) of a rule that looks at messages, or whose messages are mixed beforehand.

        In the normalised form scales are divided by their mean, weighted by λ where it is known beforehand, and else
        with every client alike. So a pre-aggregation that changes nothing leaves the direction what it was.
        """
        method, aggregator, scales = self.method, self.method.aggregator, known.scales
        weights = None
        if aggregator.rung <= Rung.LOSSES:
            weights, state = self._weights_beforehand(known, state, lr)
        if method.scale.normalised:
            even = torch.ones_like(scales) if weights is None else weights
            scales = scales * method.normaliser(even, even * scales)
            known = known._replace(scales=scales)
        if aggregator.separable and not aggregator.remembers and not method.pre:
            return None, self._block_by_block(cohort, known, state, lr), state
        if method.rung == Rung.GRAM:
            products = cohort.products(scales, method.scale.unit, known.senders)
        else:
            products = _messages(cohort, cohort.rows(known.senders), scales, method)
        method.mix(products)
        if weights is not None:
            return products.on_gradients(weights), None, state
        round = self._round(cohort, known, products, lr)
        if not aggregator.linear:
            direction, state = method.decide(round, state, products.width)
            self._check_finite(direction, cohort, products)
            return None, direction, state
        result, state = method.decide(round, state)
        return products.on_gradients(result), None, state

    def _block_by_block(self, cohort: Cohort, known: Known, state: State, lr: float) -> Tensor:
        """The direction of a rule to which every coordinate is alike, from blocks of columns."""
        parts = []
        for rows in cohort.blocks(known.senders):
            products = _messages(cohort, rows, known.scales, self.method)
            part, _ = self.method.decide(self._round(cohort, known, products, lr), state, products.width)
            self._check_finite(part, cohort, products)
            parts.append(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _round(self, cohort: Cohort, known: Known, products: Products, lr: float) -> Round:
        """The round as a rule from inner products up sees it."""
        round = Round(
            lazy=products.lazy,
            sizes=known.sizes,
            clients=known.clients,
            lr=lr,
            losses=known.losses,
            means=known.means,
            times=products.times,
        )
        access, rung = cohort.access, self.method.rung

        if rung >= Rung.COORDINATES:
            round.layers = access.layers
            products.lazy["messages"] = products.messages
            if access.output is not None:
                output = access.output
                products.lazy["output"] = lambda: output(round.messages)
        if rung >= Rung.EXTRA:
            if access.trial is not None:
                trial, senders = access.trial, known.senders

                def losses_there(weights: Tensor, step: float) -> Tensor:
                    losses = trial(products.combined(weights), step)
                    return losses if senders is None else losses[senders]

                round.trial = losses_there
            if access.trust is not None:
                trust = access.trust
                round.trust = lambda w, step: trust(None if w is None else products.combined(w), step)
        return round

    def _check_finite(self, direction: Tensor, cohort: Cohort, products: Products) -> None:
        """A rule of the user's that spoils finite messages is named."""
        if not cohort.looks or is_ours(self.method.aggregator) or direction.isfinite().all():
            return
        if products.finite():
            raise self.method.not_finite()


class Known(NamedTuple):
    """What is known of the clients that send: their places among all of the round are ``senders`` (None: all)."""

    losses: Tensor
    scales: Tensor
    sizes: Tensor
    clients: Tensor
    senders: Tensor | None
    means: State


def _messages(cohort: Cohort, rows: Tensor, scales: Tensor, method: Method) -> Products:
    """Messages from the gradients, which are scaled where they lie if nobody else needs them: that saves memory."""
    unit = method.scale.unit
    if cohort.owned and not unit and not method.aggregator.linear and not method.pre:
        rows.mul_(scales.to(rows.dtype)[:, None])
        scales, unit = torch.ones_like(scales), True
    return Products(rows, scales, unit)
