"""Writes docs/methods.md from the registry:  python scripts/make_docs.py"""

from __future__ import annotations

from pathlib import Path

from fairmean.rules.mixing import MIXINGS
from fairmean.rules.named import USUAL, Named, named_methods
from fairmean.rules.objectives import OBJECTIVES
from fairmean.rules.round import Rung
from fairmean.rules.scales import SCALES

INTRODUCTION = """\
A client sends v_i = s_i g_i, scaled by its own statistics; the server turns the n messages into a direction d, and
w ← w − lr·d. Methods stand on a ladder of what the server must see, which is the cost ladder and the privacy ladder
at once. Any scale composes with any aggregator: `method.scale = "fairmean"`, `method.aggregator = "cwtm"`, and
`method.pre = "nnm"` mixes the messages first; in code `fairmean.compose("fairmean", "cwtm", pre="nnm", f=2)`.
`f` is what a defence assumes; it is never read from the attack."""

COST = {
    Rung.SUM: "one forward and one backward over all samples; no per-client gradient",
    Rung.LOSSES: "the same single pass",
    Rung.GRAM: "per-client gradients from one pass, then n×n algebra",
    Rung.COORDINATES: "per-client gradients from one pass, then work on n×d numbers",
    Rung.EXTRA: "as above, and extra forward passes",
}


def paragraph(documented: object) -> str:
    """A docstring as one paragraph."""
    return " ".join((documented.__doc__ or "").split())


def section(name: str, named: Named) -> str:
    """One method."""
    rule = named.rule
    parts: list[object] = [OBJECTIVES[named.objective]] if named.objective != USUAL else []
    parts += [SCALES[named.scale]] if named.scale != "none" else []
    if named.aggregator != "mean" or not parts:
        parts.append(rule)
    hyper = ", ".join(f"`{key} = {value}`" for key, value in named.hyper.items())
    lines = [f"### `{name}`", "", *(f"{paragraph(part)}\n" for part in parts), f"*Use it:* {named.when}  "]
    lines += [f"*Hyper-parameters:* {hyper}.  "] if hyper else []
    lines += [f"*Assumes:* {rule.assumes}.  "] if rule.assumes else []
    return "\n".join([*lines, f"*Reference:* {named.reference}."])


def page() -> str:
    """The whole page."""
    methods = named_methods()
    text = [
        "# Methods",
        "",
        "<!-- made by scripts/make_docs.py from the registry: edit the docstrings, not this page -->",
        "",
        *INTRODUCTION.splitlines(),
        "",
        "| rung | the server sees | methods | a round costs |",
        "|---|---|---|---|",
    ]
    for rung in Rung:
        names = ", ".join(f"`{name}`" for name, named in methods.items() if named.rule.rung == rung)
        text.append(f"| {int(rung)} | {rung.sees} | {names} | {COST[rung]} |")
    for rung in Rung:
        text += ["", f"## Rung {int(rung)}: {rung.sees}"]
        for name, named in methods.items():
            if named.rule.rung == rung:
                text += ["", section(name, named)]
    text += ["", "## Before aggregating", ""]
    text += [f"- `{name}`: {paragraph(mixing)}" for name, mixing in MIXINGS.items()]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    Path(__file__).parent.parent.joinpath("docs", "methods.md").write_text(page(), encoding="utf-8")
