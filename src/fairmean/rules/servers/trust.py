"""Trust earned on clean data that the server owns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairmean.checks import within
from fairmean.rules.aggregator import Aggregator, register
from fairmean.rules.round import Round, Rung, State
from fairmean.rules.search_space import Search


@register(
    "bant",
    reference="Molodtsov et al. 2026",
    when="When the server owns a little clean data.",
)
@dataclass(frozen=True)
class BANT(Aggregator):
    """c_i ∝ max(L(w) − L(w − lr v_i), 0) on the server's clean data; T ← (1−b) T + b c; weight T_i where c_i > 0.

    When no message helps, c = 1/n and b = 0.001. T starts at 1/n.
    """

    b: float = 0.5
    search: ClassVar[Search] = {"b": (0.1, 0.25, 0.5, 1.0)}
    rung: ClassVar[Rung] = Rung.EXTRA
    assumes: ClassVar[str] = "owns clean data"

    @property
    def requires(self) -> tuple[str, ...]:
        return ("trust",)

    def __post_init__(self) -> None:
        within("b", self.b, 0, 1, "how fast trust follows the last round")

    def init(self, n: int) -> State:
        return {"trust": torch.full((n,), 1 / n, dtype=torch.float64)}

    def __call__(self, round: Round, state: State) -> tuple[Tensor, State]:
        n = len(round.sizes)
        now = round.trust(None, 0.0)
        after = [round.trust(one, round.lr) for one in torch.eye(n, dtype=torch.float64, device=round.sizes.device)]
        gains = (now - torch.stack(after)).clamp(min=0)
        helped = bool(gains.sum() > 0)
        c = gains / gains.sum() if helped else torch.full_like(gains, 1 / n)
        b = self.b if helped else 0.001
        trust = state["trust"].to(c.device).clone()
        mine = (1 - b) * trust[round.clients] + b * c
        trust[round.clients] = mine
        return torch.where(c > 0, mine, 0.0), {"trust": trust}
