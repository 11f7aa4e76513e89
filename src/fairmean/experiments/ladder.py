"""How far the settings of a search are run: the levels of successive halving, and what each costs in rounds.

On the first level every setting has a few rounds on one draw. The best go on to the next level, where the same runs are
continued, and to the last, which has all rounds on all draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

_PART = 3  # every third setting goes on
_FEWEST = 3  # that go on at least, so that both neighbours of the best can
_FINAL = 2  # that come to the last level at least, where that can be paid


class Level(NamedTuple):
    """Every setting on this level has so many rounds on each of the first ``draws`` draws."""

    rounds: int
    draws: int


NOTHING = Level(0, 0)


@dataclass(frozen=True)
class Ladder:
    """The levels of a search, from the cheapest to the whole; ``attacks``: how many runs a draw has."""

    levels: tuple[Level, ...]
    attacks: int = 1

    @property
    def last(self) -> int:
        """The number of the level with all rounds on all draws."""
        return len(self.levels) - 1

    def cost(self, after: int, to: int) -> int:
        """Rounds that one setting needs from one level (−1: it has not been run) to another."""
        start, end = self.levels[after] if after >= 0 else NOTHING, self.levels[to]
        return self.attacks * (end.rounds * end.draws - start.rounds * start.draws)

    def wanted(self, level: int, settings: int) -> int:
        """How many of so many settings of the search should reach a level."""
        if level == 0:
            return settings
        if level == self.last and self.last > 1:
            return min(settings, _FINAL)
        return min(settings, max(_FEWEST, math.ceil(settings / _PART)))

    def least(self, settings: int) -> int:
        """Rounds for a search of so many settings of which one has all rounds."""
        kept = [
            self.wanted(level, settings) if level < self.last or not level else 1 for level in range(len(self.levels))
        ]
        return sum(kept[level] * self.cost(level - 1, level) for level in range(len(self.levels)))


def ladder(rounds: int, draws: int, attacks: int, continued: bool) -> Ladder:
    """A third of the rounds on one draw, then all rounds, then on all draws; with a single draw, a ninth, a third, all.

    Short runs favour other step sizes than long ones, and draws differ less in which they favour: so the best of the
    short runs are told apart by all rounds on one draw, before all draws are used.

    Where a longer run cannot continue a shorter one (``continued`` is false), every run has all rounds: on one draw,
    and then on all.

    >>> ladder(90, 3, 1, continued=True).levels
    (Level(rounds=30, draws=1), Level(rounds=90, draws=1), Level(rounds=90, draws=3))
    """
    third, ninth = math.ceil(rounds / 3), math.ceil(rounds / 9)
    if not continued:
        levels = [Level(rounds, 1), Level(rounds, draws)]
    elif draws == 1:
        levels = [Level(ninth, 1), Level(third, 1), Level(rounds, 1)]
    else:
        levels = [Level(third, 1), Level(rounds, 1), Level(rounds, draws)]
    return Ladder(tuple(dict.fromkeys(levels)), attacks)
