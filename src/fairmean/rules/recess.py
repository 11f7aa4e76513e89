"""Trust measured out of sample: clients take turns in recess, and come back to a model that has forgotten their labels.

What such a model says of a client's samples is evidence about the client's labels, because it no longer was trained on
them. The same holds for a client that was absent for another reason: it was not drawn, or it was offline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fairmean.checks import at_least, within
from fairmean.errors import UserError
from fairmean.rules.context import Context, Means
from fairmean.rules.objectives import CrossEntropy, of_classes, register_objective
from fairmean.rules.round import State
from fairmean.rules.scales import FairMeanSplit, register_scale
from fairmean.rules.search_space import Search
from fairmean.transform import marginal_weight

Rounds = TypeVar("Rounds", int, Tensor)
_SHORTEST = 10  # rounds of a turn, below which there are fewer cycles instead


class Timetable(NamedTuple):
    """Rounds ``first`` … ``last − 1`` have turns of ``rest`` rounds; a client has one in each of the cycles."""

    first: int
    last: int
    rest: int
    cycles: int

    @property
    def enough(self) -> int:
        """So many rounds must a client have been away before it is asked."""
        return max(1, math.ceil(0.75 * self.rest))


@dataclass(frozen=True)
class Turns:
    """Who is in recess in which round. Times are fractions of the run, so that they fit runs of any length.

    Between ``begin`` and ``until`` there are ``cycles`` cycles of so many turns; in a short run there are fewer cycles.
    In cycle c client i has turn (i + c⌊i/F⌋) mod F of F, so that other clients rest with it in every cycle. Its last
    turn is over long before the run ends, so that the model has learned its classes again.
    """

    turns: int = 10
    cycles: int = 2
    begin: float = 0.17
    until: float = 0.7
    depends_on_rounds: ClassVar[bool] = True

    def check_turns(self) -> None:
        """Raise if there is no such timetable."""
        at_least("turns", self.turns, 2, "the groups of clients that rest one after the other")
        at_least("cycles", self.cycles, 1, "how often every client rests")
        within("until", self.until, 0, 1, "the fraction of the run at which the last turn ends")
        if not 0 <= self.begin < self.until:
            raise UserError(f"begin = {self.begin}: must be at least 0 and less than until = {self.until:g}")

    def timetable(self, rounds: int) -> Timetable:
        """The turns of a run of so many rounds."""
        first, last = int(self.begin * rounds), int(self.until * rounds)
        cycles = max(1, min(self.cycles, (last - first) // (self.turns * _SHORTEST)))
        rest = max(1, (last - first) // (self.turns * cycles))
        return Timetable(first, min(last, first + cycles * self.turns * rest), rest, cycles)

    def cycle(self, t: Rounds, table: Timetable) -> Rounds:
        """In which cycle a round is; negative before the first one."""
        return (t - table.first) // (self.turns * table.rest)

    def resting(self, context: Context) -> Tensor:
        """Which clients are in recess in this round.

        A client which was asked in this cycle because it had been absent anyway does not rest.
        """
        table, t, clients = self.timetable(context.rounds), context.now, context.clients
        there_are_turns = (t >= table.first) & (t < table.last)
        if there_are_turns is False:
            return torch.zeros_like(clients, dtype=torch.bool)
        cycle = self.cycle(t, table)
        turn = (t - table.first) // table.rest - cycle * self.turns
        theirs = torch.remainder(clients + cycle * (clients // self.turns), self.turns) == turn
        turn_began = table.first + (cycle * self.turns + turn) * table.rest
        open_question = (context.memory["tested"] < cycle) | (context.memory["asked_at"] >= turn_began)
        resting: Tensor = theirs & open_question & there_are_turns
        return resting


@register_objective("recess")
@dataclass(frozen=True)
class Recess(Turns, CrossEntropy):
    """ℓ = −log p_y; a client that was away measures ẽ = mean of ω_y/(ω_y+c′) (−log p̃_y − H(p̃)), p̃ ∝ p/(ω+c).

    ω are the label shares of what the *others* train on, which the server broadcasts, c is ``rare`` and c′ is
    ``seldom``. Dividing by ω takes away what the model knows from label frequencies alone: that the others hardly use a
    label is no contradiction, and a label that nobody else has is no evidence. ẽ is about 0 for labels like the
    others', and large where labels contradict what the others taught the model. A client remembers the sum and the
    number of its ẽ. When it has been away anew, what it remembered counts ``recall`` times as much, so that a wrong
    alarm is reconsidered.
    """

    simple: ClassVar[bool] = False
    search: ClassVar[Search] = dict.fromkeys(("turns", "cycles", "begin", "until", "rare", "seldom", "recall"), ())
    rare: float = 0.003
    seldom: float = 0.01
    recall: float = 0.5

    def __post_init__(self) -> None:
        self.check_turns()
        for name in ("rare", "seldom"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} = {getattr(self, name)}: must be between 0 and 1 (a share of labels)")
        within("recall", self.recall, 0, 1, "how much of the evidence from earlier absences counts")

    @property
    def is_mean_cross_entropy(self) -> bool:
        return True

    def losses(self, logits: Tensor, y: Tensor, context: Context) -> Tensor:
        return F.cross_entropy(of_classes(logits), y.long(), reduction="none")

    def entropy(self, logits: Tensor) -> Tensor:
        return super().entropy(of_classes(logits))

    def measure(self, logits: Tensor, y: Tensor, context: Context) -> State:
        logits, y = of_classes(logits), y.long()
        if logits.dim() != 2:
            raise UserError("fairmean-recess is for one label per sample; for sequences use fairmean")
        is_label = (y[:, None] == torch.arange(logits.shape[1], device=y.device)).to(logits.dtype)
        if context.nobody(self.asked(context)):
            return {"excess": torch.zeros_like(y, dtype=logits.dtype), "labels": is_label}
        shares = context.broadcast["shares"]
        log_p = F.log_softmax(logits - torch.log(shares + self.rare).to(logits.dtype), 1)
        entropy = -(log_p.exp() * log_p).sum(1)
        known = (shares / (shares + self.seldom)).to(logits.dtype)[y]
        excess = known * (-log_p.gather(1, y[:, None])[:, 0] - entropy)
        return {"excess": excess, "labels": is_label}

    def init(self, n: int, classes: int) -> State:
        zeros, never = torch.zeros(n, dtype=torch.float64), torch.full((n,), -1.0, dtype=torch.float64)
        return {
            "evidence": zeros,
            "times": zeros.clone(),
            "asked_at": never,
            "tested": never.clone(),
        }

    def asked(self, context: Context) -> Tensor:
        """Whose ẽ counts in this round: of those that were away long enough, once there have been turns."""
        table, t = self.timetable(context.rounds), context.now
        long_enough: Tensor = t - 1 - context.last_sent >= table.enough
        asked: Tensor = long_enough & (t >= table.first)
        return asked

    def remember(self, memory: State, means: Means, context: Context) -> State:
        table, excess = self.timetable(context.rounds), means["excess"]
        asked = self.asked(context) & excess.isfinite()
        if context.nobody(asked):
            return memory
        anew = asked & (memory["asked_at"] <= context.last_sent)
        kept = torch.where(anew, self.recall, 1.0)
        return {
            "evidence": kept * memory["evidence"] + torch.where(asked, excess, 0),
            "times": kept * memory["times"] + asked,
            "asked_at": torch.where(asked, context.t, memory["asked_at"]),
            "tested": torch.where(asked, self.cycle(context.last_sent + 1, table), memory["tested"]),
        }


@register_scale("fairmean-recess")
@dataclass(frozen=True)
class FairMeanRecess(Turns, FairMeanSplit):
    """s_i = (1 + κ H_i/(H_i+τ)) t_i, t_i = exp(−β_r max(0, m_i − m̄ − max(θ, zσ))); 0 in recess.

    The first factor is the priority of ``fairmean-split``. Until a client has been asked for the first time, the trust
    of ``fairmean-split`` stands in for t_i: exp(−β max(0, f_i−H_i)). (With ``until_asked`` = false it counts all along,
    as a third factor.) m_i is the mean of a client's ẽ; m̄ and σ are mean and spread of m over clients, in which one
    counts exp(−4 max(0, m_j)), so that poisoned clients hardly do. They are broadcast: a model that is too sure of what
    it has not seen makes every ẽ large, and that is held against nobody. β_r is ``beta_rest``, θ is ``theta``. Clients
    add to their messages what m̄ and σ are made of, s_i times their label shares, of which the server makes ω (half of
    it from the rounds before), and t_i. If more than ``cap`` of all trust is withdrawn, every client gives back its
    part of the rest. No t_i is below ``floor``. While fewer than three clients send something, the old broadcast stays.
    """

    simple: ClassVar[bool] = False
    fewest: ClassVar[int] = 3
    search: ClassVar[Search] = {
        **FairMeanSplit.search,
        **dict.fromkeys(("turns", "cycles", "begin", "until", "until_asked"), ()),
        **dict.fromkeys(("beta_rest", "theta", "z", "cap", "floor"), ()),
    }
    until_asked: bool = True
    beta_rest: float = 8.0
    theta: float = 0.1
    z: float = 2.0
    cap: float = 0.4
    floor: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_turns()
        at_least("beta_rest", self.beta_rest, 0, "0 ignores what clients measure after a recess")
        at_least("theta", self.theta, 0, "the excess that is not held against a client")
        at_least("z", self.z, 0, "so many times the spread between clients is not held against one")
        within("cap", self.cap, 0, 1, "the largest fraction of all trust that may be withdrawn")
        within("floor", self.floor, 0, 1, "the least trust in a client")

    def __call__(self, losses: Tensor, means: Means, context: Context) -> Tensor:
        entropies, trust = means["entropy"], self.trusted(context)
        if self.beta > 0:
            usual = self.usual_trust(losses, entropies)
            trust = trust * (torch.where(context.memory["times"] > 0, 1.0, usual) if self.until_asked else usual)
        scales = marginal_weight(entropies, self.kappa, self.tau) * trust.to(losses.dtype)
        return torch.where(self.resting(context), 0, scales)

    def trusted(self, context: Context) -> Tensor:
        """t_i, and more where too much trust would be withdrawn in all."""
        withdrawn = context.broadcast["withdrawn"]
        allowed = torch.clamp(self.cap / withdrawn.clamp(min=1e-12), max=1.0)
        return 1 - allowed * (1 - self._trust(context))

    def trust(self, memory: State, broadcast: State) -> Tensor:
        """t_i of every client, from what it remembers and what it was told about the others."""
        if "evidence" not in memory:
            raise UserError(
                "the scale fairmean-recess needs what the objective 'recess' measures: add objective=recess"
            )
        usual = broadcast["usual"] + torch.clamp(self.z * broadcast["spread"], min=self.theta)
        distrust = self.beta_rest * (_excess(memory) - usual)
        full = torch.exp(-distrust.clamp(min=0, max=60))
        return torch.where(memory["times"] > 0, self.floor + (1 - self.floor) * full, 1.0)

    def _trust(self, context: Context) -> Tensor:
        return context.once("trust", lambda: self.trust(context.memory, context.broadcast))

    def side(self, scales: Tensor, means: Means, context: Context) -> State:
        excess = _excess(context.memory)
        counts = torch.where(context.memory["times"] > 0, torch.exp(-4 * excess.clamp(min=0, max=60)), 0)
        return {
            "shares": scales[:, None] * means["labels"],
            "trust": self._trust(context),
            "senders": torch.ones_like(scales),
            "excess": torch.stack([counts, counts * excess, counts * excess.square()], 1),
        }

    def side_bounds(self) -> Mapping[str, tuple[float, float]]:
        return {"shares": (0, self.largest), "trust": (0, 1), "senders": (1, 1), "excess": (-1e3, 1e6)}

    def start(self, classes: int) -> State:
        shares = torch.full((classes,), 1 / classes, dtype=torch.float64)
        return {"shares": shares} | {
            name: torch.zeros((), dtype=torch.float64) for name in ("withdrawn", "usual", "spread")
        }

    def broadcast(self, sums: State, before: State) -> State:
        count, first, second = sums["excess"].unbind()
        usual = first / (count + 1)  # as if there were one more client, whose ẽ is 0: a single one is not the norm
        spread = (second - 2 * usual * first + usual.square() * count).clamp(min=0) / (count + 1)
        return {
            "shares": (before["shares"] + sums["shares"] / sums["shares"].sum()) / 2,
            "withdrawn": 1 - sums["trust"] / sums["senders"],
            "usual": usual,
            "spread": spread.sqrt(),
        }

    def shows(self, memory: State, broadcast: State) -> State:
        never = memory["times"] == 0
        return {"excess": torch.where(never, torch.nan, _excess(memory)), "trust": self.trust(memory, broadcast)}


def _excess(memory: State) -> Tensor:
    """m_i, the mean of a client's ẽ; 0 before it was asked."""
    return memory["evidence"] / memory["times"].clamp(min=1e-12)
