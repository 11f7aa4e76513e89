"""The method × attack table for a paper: LaTeX with booktabs, the best of a column in bold."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fairmean.errors import unknown
from fairmean.report.finding import LEVEL
from fairmean.report.judged import Judged

PARTS = ("interval", "significance")
HEADS = {"average": "Avg.", "variance": "Var.", "worst": "Worst", "worst_tenth": "Worst 10\\,\\%"}
_ESCAPED = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "κ": r"$\kappa$",
    "τ": r"$\tau$",
    "γ": r"$\gamma$",
    "ε": r"$\varepsilon$",
    "β": r"$\beta$",
    "θ": r"$\theta$",
    "ρ": r"$\rho$",
}


def escaped(text: str) -> str:
    """A text that LaTeX sets as it stands.

    >>> escaped("random_class κ=1")
    'random\\\\_class $\\\\kappa$=1'
    """
    return "".join(_ESCAPED.get(letter, letter) for letter in text)


def latex(data: dict[str, Any], parts: Collection[str] = PARTS) -> str:
    """The table of a report's data. ``parts``: 'interval' adds ± half of 95 %, 'significance' arrows after Holm."""
    for part in parts:
        if part not in PARTS:
            raise unknown("part of a LaTeX table", part, PARTS)
    metrics, attacks = data["metrics"], data["attacks"]
    cells = {(cell["method"], cell["attack"]): cell for cell in data["cells"]}
    width, judged = len(metrics), Judged.in_page(data)
    heads = " & ".join(
        rf"\multicolumn{{{width}}}{{c}}{{{escaped('no attack' if attack == 'none' else attack)}}}" for attack in attacks
    )
    rules = " ".join(rf"\cmidrule(lr){{{2 + i * width}-{1 + (i + 1) * width}}}" for i in range(len(attacks)))
    lines = [
        f"% made by fairmean {data['version']}; needs \\usepackage{{booktabs}}",
        rf"\begin{{tabular}}{{l{'r' * width * len(attacks)}}}",
        r"\toprule",
        rf" & {heads} \\",
        rules,
        " & ".join(["Method", *[HEADS[metric] for _ in attacks for metric in metrics]]) + r" \\",
        r"\midrule",
    ]
    for method in data["methods"]:
        entries = [
            _entry(cells.get((method, attack)), metric, parts, judged) for attack in attacks for metric in metrics
        ]
        lines.append(" & ".join([escaped(method), *entries]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *_comment(data, parts)]) + "\n"


def _entry(cell: dict[str, Any] | None, metric: str, parts: Collection[str], judged: Judged) -> str:
    if cell is None or cell["estimates"][metric]["mean"] is None:
        return "--" if cell is None or not cell["lost"] else escaped(next(iter(cell["lost"])))
    figure = cell["estimates"][metric]
    half = figure["half"] if "interval" in parts else None
    mean, spread = (_powers(number) for number in judged.estimate(figure["mean"], half, metric))
    text = rf"\textbf{{{mean}}}" if figure["best"] else mean
    if spread:
        text += rf" {{\scriptsize$\pm$\,{spread}}}"
    difference = figure["difference"]
    if "significance" in parts and difference and difference["p"] is not None and difference["p"] < LEVEL:
        text += r"$^{\uparrow}$" if difference["mean"] > 0 else r"$^{\downarrow}$"
    return text + (r"$^{\dagger}$" if cell["lost"] else "")


def _powers(number: str) -> str:
    """Powers of ten as LaTeX sets them."""
    mantissa, dot, power = number.partition("·10")
    plain = power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    return rf"${mantissa}\cdot 10^{{{plain}}}$" if dot else number


def _comment(data: dict[str, Any], parts: Collection[str]) -> list[str]:
    """What the table shows, for its caption."""
    judged = Judged.in_page(data)
    what, square = (
        ("Test accuracy in %", "%^2") if judged.is_share else (judged.heading.replace("’", "'"), "its square")
    )
    whose = "regular" if data["poisoning"] else "all"
    lines = [
        f"% {what} on {data['labels']} over {whose} clients:",
        f"% average, variance across clients in {square}, worst client;",
    ]
    draws = len(data["seeds"])
    if draws == 1:
        lines.append("% one draw, which cannot tell a better method from a lucky one.")
    else:
        spread = "; +- is half a 95 % interval" if "interval" in parts else ""
        lines.append(f"% means over {draws} paired draws{spread}.")
        if "significance" in parts and data["baseline"]:
            lines.append(
                f"% Arrows: differs from {data['baseline']} at 5 % after Holm's correction. Bold: best of a column."
            )
    if any(cell["lost"] for cell in data["cells"]):
        lines.append("% Daggers: some runs of the cell did not finish; the figure is over the others.")
    return lines
