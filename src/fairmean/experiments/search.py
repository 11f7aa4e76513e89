"""The search for one method: step sizes first, then its own hyper-parameters, then the steps beside the best again.

It knows nothing of runs. It asks for the figures of a setting on a level of the ladder, and keeps within its budget.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmean.errors import UserError
from fairmean.experiments.choosing import DIGITS, ranked, score
from fairmean.experiments.ladder import Ladder
from fairmean.randomness import generator

Setting = tuple[tuple[str, Any], ...]
"""(key, value) of everything that is searched, the step size first where it is."""

Measure = Callable[[str, Setting, int], NDArray[np.float64]]
"""(stage, setting, level) → one figure for each draw of the level, more being better; NaN: the run diverged."""

FACTOR = 2.0
HALF_WIDTHS = (4, 3, 2)
MOST_MORE = 6
"""So often the grid of steps grows at an edge, and so often the best step moves to one beside it."""
STEPS, OWN, AGAIN = "step sizes", "own parameters", "steps beside the best"


@dataclass
class Search:
    """``step``: the key of the step size (None: it is fixed), ``start`` its first value, ``space`` what else there is.

    ``budget``: how many rounds may be spent. ``possible`` says whether the method takes a setting.
    """

    method: str
    ladder: Ladder
    budget: int
    measure: Measure
    step: str | None
    start: float
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    possible: Callable[[Setting], bool] = lambda setting: True
    digits: int = DIGITS

    def __post_init__(self) -> None:
        self.values: dict[tuple[Setting, int], NDArray[np.float64]] = {}
        self.reached: dict[Setting, int] = {}
        self.spent = 0
        self.notes: list[str] = []
        self.best: Setting = ()

    @property
    def left(self) -> int:
        """Rounds that may still be spent."""
        return self.budget - self.spent

    def run(self) -> Setting:
        """The best setting."""
        if self.step is None:
            self._raise(OWN, (), self.ladder.last)
        else:
            self.best = self._among(STEPS, self._steps())
        self._own_parameters()
        if self.step is not None:
            self._beside()
        return self.best

    def least(self) -> int:
        """The smallest budget in rounds with which anything can be searched."""
        if self.step is not None:
            return self.ladder.least(2 * HALF_WIDTHS[-1] + 1)
        return self.ladder.cost(-1, self.ladder.last) + self.ladder.least(2)

    def score(self, setting: Setting, level: int) -> float:
        """The mean over the level's draws; −∞ where one diverged."""
        return score(self.values[setting, level])

    def gap(self, setting: Setting) -> tuple[float, float]:
        """How much worse than the best, and the standard error of that, paired by draw at the setting's last level."""
        level = self.reached[setting]
        differences = self.values[self.best, level] - self.values[setting, level]
        n = len(differences)
        error = float(differences.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
        return float(differences.mean()), error

    def searched(self, key: str) -> list[Any]:
        """The values of a key that were tried, in order."""
        return sorted({value for setting in self.reached for k, value in setting if k == key})

    def _raise(self, stage: str, setting: Setting, level: int) -> float:
        """Run a setting up to a level, and the levels before it; its score there."""
        for to in range(self.reached.get(setting, -1) + 1, level + 1):
            self.spent += self.ladder.cost(to - 1, to)
            self.values[setting, to] = self.measure(stage, setting, to)
            self.reached[setting] = to
        return self.score(setting, level)

    def _steps(self) -> list[Setting]:
        """A grid about the first step size, run on the first level, and extended while its best lies at an edge."""
        assert self.step is not None
        half = next(h for h in HALF_WIDTHS if self.ladder.least(2 * h + 1) <= self.budget)
        grid = [self._at(self.start * FACTOR**k) for k in range(-half, half + 1)]
        for setting in grid:
            self._raise(STEPS, setting, 0)
        for _ in range(MOST_MORE):
            best = self._ranked(grid, 0)[0]
            lost = all(self.score(setting, 0) == -math.inf for setting in grid)
            if not lost and best not in (grid[0], grid[-1]):
                break
            if self.ladder.least(len(grid) + 1) > self.budget:
                break
            lower = lost or best == grid[0]
            setting = self._at(self._step(grid[0]) / FACTOR if lower else self._step(grid[-1]) * FACTOR)
            self._raise(STEPS, setting, 0)
            grid = [setting, *grid] if lower else [*grid, setting]
        return grid

    def _own_parameters(self) -> None:
        """Other values of the method's own hyper-parameters, each at the best step, half and twice that step.

        A hyper-parameter may change how long steps are, and then its best value has another step. Where these are more
        settings than can be paid, so many are drawn at random.
        """
        keys = [key for key, values in self.space.items() if set(values) - {self.defaults.get(key)}]
        usual = tuple(self.defaults[key] for key in keys)
        others = [values for values in itertools.product(*(self.space[key] for key in keys)) if values != usual]
        steps = [self._with_step(self.best, self._step(self.best) * factor) for factor in (1 / FACTOR, 1.0, FACTOR)]
        points = [(*step, *zip(keys, values, strict=True)) for values in others for step in dict.fromkeys(steps)]
        points = [point for point in points if self.possible(point)]
        if not points:
            return
        most = max((n for n in range(len(points) + 1) if self._pays(n)), default=0)
        if not most:
            self.notes.append("the budget did not suffice for its own hyper-parameters, which keep their values")
            return
        if most < len(points):
            chosen = generator(0, "tune", self.method).choice(len(points), most, replace=False)
            points = [points[i] for i in sorted(chosen)]
        for point in points:
            self._raise(OWN, point, 0)
        winner = self._among(OWN, points, finite=False)
        if self._whole(winner):
            self.best = self._ranked([self.best, winner], self.ladder.last)[0]

    def _pays(self, settings: int) -> bool:
        """Whether there is enough left to search so many settings, and afterwards to look at the steps beside."""
        beside = 2 * self.ladder.cost(-1, max(0, self.ladder.last - 1)) if self.step is not None else 0
        return self.ladder.least(settings) + (beside if settings > 1 else 0) <= self.left

    def _among(self, stage: str, settings: list[Setting], finite: bool = True) -> Setting:
        """Successive halving from the first level on; the best of those that came to the last one."""
        kept = settings
        for level in range(1, len(self.ladder.levels)):
            order = [s for s in self._ranked(kept, level - 1) if self.score(s, level - 1) > -math.inf]
            want = self.ladder.wanted(level, len(settings))
            cost, further = self.ladder.cost(level - 1, level), self.ladder.cost(level, self.ladder.last)
            if level == self.ladder.last and self.left - (want + 1) * cost >= self._reserve(stage):
                want += 1  # so that the best has both its neighbours beside it
            kept = []
            for setting in order:  # those that diverge on the way leave their place to the next ones
                if len(kept) == want or self.left < cost + further:
                    break
                if self._raise(stage, setting, level) > -math.inf:
                    kept.append(setting)
        whole = self._ranked([s for s in kept if self._whole(s)], self.ladder.last)
        if whole and self.score(whole[0], self.ladder.last) > -math.inf:
            return whole[0]
        if finite:
            steps = [self._step(setting) for setting in settings]
            raise UserError(
                f"{self.method}: diverged with every step size from {min(steps):g} to {max(steps):g} that the budget "
                f"reached; begin with a smaller one, as {self.step}={min(steps) / FACTOR**4:.3g}"
            )
        return settings[0]

    def _reserve(self, stage: str) -> int:
        """Rounds that should be left for what comes after a stage: most of them, before own parameters are searched."""
        return 2 * self.budget // 3 if stage == STEPS and self.space else 0

    def _beside(self) -> None:
        """The steps next to the best one: both reach the level before the last, and better ones the last."""
        level = max(0, self.ladder.last - 1)
        tried: set[Setting] = set()
        while self.best not in tried and len(tried) < MOST_MORE:
            tried.add(self.best)
            for factor in (1 / FACTOR, FACTOR):
                setting = self._with_step(self.best, self._step(self.best) * factor)
                known = self.reached.get(setting, -1)
                if self.left < self.ladder.cost(known, level) or (
                    known >= 0 and self.score(setting, known) == -math.inf
                ):
                    continue
                if known < level:
                    self._raise(AGAIN, setting, level)
                if self._ranked([self.best, setting], level)[0] == self.best:
                    continue
                if self.left < self.ladder.cost(self.reached[setting], self.ladder.last):
                    step = f"{self.step}={self._step(setting):g}"
                    self.notes.append(
                        f"{step} looks better still, but the budget did not suffice to run it on all draws"
                    )
                    continue
                self._raise(AGAIN, setting, self.ladder.last)
                self.best = self._ranked([self.best, setting], self.ladder.last)[0]

    def _ranked(self, settings: Iterable[Setting], level: int) -> list[Setting]:
        return ranked({s: self.score(s, level) for s in settings}, self._step, self.digits)

    def _whole(self, setting: Setting) -> bool:
        return self.reached.get(setting, -1) == self.ladder.last

    def _at(self, step: float) -> Setting:
        assert self.step is not None
        return ((self.step, round_step(step)),)

    def _with_step(self, setting: Setting, step: float) -> Setting:
        return tuple((key, round_step(step) if key == self.step else value) for key, value in setting)

    def _step(self, setting: Setting) -> float:
        return next((value for key, value in setting if key == self.step), self.start)


def round_step(step: float) -> float:
    """To twelve digits, so that a step reached by doubling and one reached by halving are the same.

    >>> round_step(0.1 * 2 * 2 * 2)
    0.8
    """
    return float(f"{step:.12g}")
