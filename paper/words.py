"""The evidence in words: numbers and verdicts are filled in from the tables, so that they cannot differ from them.

{fashion-mnist: mean, worst, pairwise}                         a mean over draws: 71.2
{fashion-mnist: fairmean-split - mean, worst, pairwise}        a difference whose interval has no 0: +7.8
{fashion-mnist: fairmean-split > mean, worst, pairwise}        the same without its sign, which is +
{fashion-mnist: mean < fairmean-split, worst, pairwise}        the same the other way round
{fashion-mnist: fairmean ~ mean, worst, none}                  a difference whose interval holds 0, with it: −0.1 ± 0.4
{fashion-mnist: fairmean ± mean, worst, none}                  the same of any difference
{fashion-mnist: mean < faba, worst, random @ 1002}             a figure, or a difference by sign, of one draw
{map-fashion-mnist: …}                                         the same of the κ × τ map, whose methods are specs
{fashion-mnist: P2}                                            a verdict: fails
{fashion-mnist: P2 significant}                                of its comparisons: 16 of 24
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fairmean.errors import UserError
from fairmean.experiments.statistics import paired
from paper.compared import verdicts
from paper.evidence import Evidence

_FIELD = re.compile(r"\{([^{}]+)\}")
_PARTS = re.compile(
    r"(?P<dataset>\S+): (?P<x>\S+)(?: (?P<sign>[-<>~±]) (?P<y>\S+))?, "
    r"(?P<metric>\w+), (?P<attack>\S+)(?: @ (?P<draw>\d+))?"
)


def fill(text: str, found: Sequence[Evidence], mapped: Sequence[Evidence] = ()) -> str:
    """``text`` with its fields filled in; an error for one that the tables do not bear out."""
    known = {one.dataset: one for one in found} | {f"map-{one.dataset}": one for one in mapped}
    judged = {}
    for one in found:
        for v in verdicts(one):
            judged[one.dataset, v.claim.name] = v.word
            judged[one.dataset, f"{v.claim.name} significant"] = f"{v.borne_out} of {len(v.claim.comparisons)}"

    def number(match: re.Match[str]) -> str:
        field = match[1]
        dataset, _, claim = field.partition(": ")
        if (dataset, claim) in judged:
            return judged[dataset, claim]
        parts = _PARTS.fullmatch(field)
        if parts is None or parts["dataset"] not in known:
            raise UserError(f"evidence.txt: '{field}' names no claim and no figure of the tables")
        table = known[dataset]
        if parts["draw"]:
            table = Evidence(dataset, [r for r in table.records if r["seed"] == int(parts["draw"])])
        x, y = (table.values(parts[m] or "", parts["attack"], parts["metric"]) for m in ("x", "y"))
        if x is None or (y is None and parts["sign"]):
            raise UserError(f"evidence.txt: '{field}' was not run")
        if y is None:
            return f"{np.nanmean(x):.1f}"
        d = paired(x, y)
        signed = f"{d.mean:+.1f}".replace("-", "−")
        clear = bool(parts["draw"]) or abs(d.mean) > d.half  # one draw is what it is
        apart = {
            "-": clear,
            ">": clear and d.mean > 0,
            "<": clear and d.mean < 0,
            "~": not clear,
            "±": not parts["draw"],
        }
        if not apart[parts["sign"]]:
            raise UserError(f"evidence.txt: '{field}' is not so: {signed} ± {d.half:.1f}")
        within = f"{signed} ± {d.half:.1f}"
        return {"-": signed, "~": within, "±": within}.get(parts["sign"], signed[1:])

    return _FIELD.sub(number, text)
