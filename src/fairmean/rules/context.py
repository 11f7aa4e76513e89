"""What the clients of a round know beside their samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fairmean.rules.round import State

Means = Mapping[str, Tensor]
"""What clients measured at the broadcast model: by name, one mean (or one row of means) for each client, in float64."""

LAST_SENT = "last_sent"
"""The memory that the engine itself keeps of a client: the last round in which its message was accepted."""


@dataclass(frozen=True, eq=False)
class Context:
    """What a client knows in round t; every tensor but ``t`` has one row for each client of the round.

    ``t`` counts from 0 and is a tensor without dimensions, so that a round can be recorded on a GPU: do not branch on
    its value, write ``torch.where``. ``rounds`` is how many there will be. ``clients`` are ids and ``sizes`` are sample
    counts. ``memory`` is what the objective remembers of each client. ``broadcast`` is what the server sent along with
    the model; it is the same for all. ``weights``, where there are some, take the place of those of a rule on rung 0.
    ``looks``: one may look at numbers, to leave out work that would be for nobody. Elsewhere a look would wait for a
    GPU, or a round is being recorded, or several runs go through one call.
    """

    t: Tensor
    rounds: int
    clients: Tensor
    sizes: Tensor
    memory: State = field(default_factory=dict)
    broadcast: State = field(default_factory=dict)
    spread: Callable[[Tensor], Tensor] | None = None
    weights: Tensor | None = None
    looks: bool = False
    _known: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """What several parts of a method need to know of this round, computed by the one that comes first."""
        if name not in self._known:
            self._known[name] = compute()
        return self._known[name]

    @property
    def now(self) -> Any:
        """``t`` as an int where one may look, and else the tensor."""
        return int(self.t) if self.looks else self.t

    def nobody(self, who: Tensor) -> bool:
        """Whether one can see that none of these is true. False also where one may not look."""
        return self.looks and not who.any()

    @property
    def last_sent(self) -> Tensor:
        """The last round in which each client's message was accepted; −1 where there is none."""
        return self.memory[LAST_SENT]

    def per_row(self, values: Tensor) -> Tensor:
        """One value (or row of values) per client, repeated for each of the client's samples in this pass."""
        if self.spread is None:
            raise LookupError("context.per_row is for an objective's losses, weights and measure")
        return self.spread(values)

    def only(self, clients: slice | Tensor) -> Context:
        """The same for some of the clients."""
        memory = {key: value[clients] for key, value in self.memory.items()}
        weights = None if self.weights is None else self.weights[clients]
        return replace(self, clients=self.clients[clients], sizes=self.sizes[clients], memory=memory, weights=weights)


def bare_context(sizes: Tensor, t: float = 0.0, rounds: int = 1) -> Context:
    """Clients 0 … n−1 that remember nothing, and a server that sent nothing along."""
    device, n = sizes.device, len(sizes)
    never = {LAST_SENT: torch.full((n,), -1.0, dtype=torch.float64, device=device)}
    now = torch.tensor(t, dtype=torch.float64, device=device)
    return Context(now, rounds, torch.arange(n, device=device), sizes, never)
