"""Bad inputs, the same for the same seed: written by hand, and drawn at random."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from tests.fuzz import commands, data, folders, models, rules, settings
from tests.fuzz.case import Case

__all__ = ["Case", "cases", "drawn", "handwritten"]

KINDS = ("settings", "config", "data", "model", "rule", "folder", "command")


def handwritten() -> list[Case]:
    """What new users ran into first, then every other, the kinds taking turns; slow ones last."""
    every = [case for part in (settings, data, models, rules, folders, commands) for case in part.handwritten()]
    rest = [case for case in every if not case.trial]
    by_kind = [[case for case in rest if case.kind == kind and not case.slow] for kind in KINDS]
    turns = [case for row in itertools.zip_longest(*by_kind) for case in row if case is not None]
    return [case for case in every if case.trial] + turns + [case for case in rest if case.slow]


def drawn(seed: int) -> Iterator[Case]:
    """Without end; no two have the same name."""
    draw = random.Random(seed)
    seen = set()
    for number in itertools.count():
        case = draw.choice(
            [
                lambda _: settings.drawn(draw),
                lambda _: settings.drawn(draw),
                lambda _: data.drawn(draw),
                lambda number: models.drawn(draw, number),
                lambda number: rules.drawn(draw, number),
                lambda _: folders.drawn(draw),
                lambda _: commands.drawn(draw),
            ]
        )(number)
        if case.id not in seen:
            seen.add(case.id)
            yield case


def cases(count: int, seed: int) -> list[Case]:
    """``count`` of them: what new users ran into; then others written by hand, and after each three a drawn one."""
    written, more = iter(handwritten()), drawn(seed)
    chosen: list[Case] = []
    while len(chosen) < count:
        turn = sum(not case.trial for case in chosen) % 4
        case = next(written, None) if turn < 3 else None
        chosen.append(case or next(more))
    return chosen
