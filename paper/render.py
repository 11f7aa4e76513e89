"""A table of the paper with ours beside it: for the terminal, as CSV, as LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from fairmean.text import columns
from paper import paper
from paper.calibration import Row, distance
from paper.claims import EQUAL

NAMES = {
    "fedavg": "FedAvg",
    "qffl": "q-FFL",
    "adafed": "AdaFed",
    "fedmgda+": "FedMGDA+",
    "h-nobs": "H-nobs",
    "qffl+cwtm": "q-FFL+CWTM",
    "fairmean": "FairMean",
    "mean": "Mean",
    "fairmean-normalised": "FairMean, normalised",
    "fairmean-split": "FairMean, split",
}
HEADS = {"none": "no attack", "random_class": "random flip", "pairwise": "pairwise flip"}
_SHORT = ("avg", "var", "worst")


def name(method: str) -> str:
    """As the tables show it."""
    more = {"term+": "TERM, t > 0", "term-": "TERM, t < 0", EQUAL: "FairMean's weighting at Mean's step"}
    return NAMES.get(method, more.get(method, f"`{method}`"))


def _theirs(table: str, method: str, attack: str) -> paper.Cell | None:
    row = paper.TABLES[table].get(method)
    return None if row is None else row[paper.ATTACKS.index(attack)]


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"


def text(table: str, rows: Sequence[Row]) -> str:
    """Each cell ours | paper's."""
    first = max(len(NAMES[row.method]) for row in rows)
    width = 3 * 15
    lines = [
        " " * first + "".join(HEADS[attack].center(width + 2) for attack in paper.ATTACKS),
        "ours | paper".ljust(first) + ("  " + "".join(metric.rjust(9) + " " * 6 for metric in _SHORT)) * 3,
    ]
    for row in rows:
        line = NAMES[row.method].ljust(first)
        for attack in paper.ATTACKS:
            ours, theirs = row.cells[attack], _theirs(table, row.method, attack)
            line += "  " + "".join(
                f"{_number(value):>6} | {_number(theirs[k]) if theirs else '–':<6}" for k, value in enumerate(ours)
            )
        lines.append(line)
    return "\n".join(line.rstrip() for line in lines)


def settings(table: str, rows: Sequence[Row]) -> str:
    """What was chosen for each method, and how far its row is from the paper's."""
    lines = []
    for row in rows:
        _, *chosen = row.spec.split(":")
        goal = paper.TABLES[table].get(row.method)
        far = f"{distance(row, goal):.2f}" if goal else "–"
        lines.append([NAMES[row.method], " ".join(s.removeprefix("train.") for s in chosen), far])
    return columns(lines, ["method", "setting", "distance to the paper's row, points"])


def as_csv(table: str, rows: Sequence[Row]) -> str:
    """One line per cell and metric."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", "method", "setting", "attack", "metric", "ours", "paper"])
    for row in rows:
        for attack in paper.ATTACKS:
            theirs = _theirs(table, row.method, attack)
            for k, metric in enumerate(paper.METRICS):
                value = f"{row.cells[attack][k]:.2f}"
                writer.writerow([table, row.method, row.spec, attack, metric, value, theirs[k] if theirs else ""])
    return out.getvalue()


def as_latex(table: str, rows: Sequence[Row]) -> str:
    """A booktabs table like the paper's; ours, and the paper's figure small beside it."""
    lines = [
        r"\begin{tabular}{l" + "ccc" * len(paper.ATTACKS) + "}",
        r"\toprule",
        " & ".join(["", *(rf"\multicolumn{{3}}{{c}}{{{HEADS[a].capitalize()}}}" for a in paper.ATTACKS)]) + r"\\",
        " & ".join(["Method", *[r"Avg.$\uparrow$", r"Fairness$\downarrow$", r"Worst$\uparrow$"] * 3]) + r"\\",
        r"\midrule",
    ]
    for row in rows:
        cells = [NAMES[row.method]]
        for attack in paper.ATTACKS:
            theirs = _theirs(table, row.method, attack)
            for k, value in enumerate(row.cells[attack]):
                small = rf" {{\scriptsize ({theirs[k]:.2f})}}" if theirs else ""
                cells.append(f"{_number(value).replace('–', '--')}{small}")
        lines.append(" & ".join(cells) + r"\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def far_cells(table: str, rows: Sequence[Row], points: float = 3.0) -> list[str]:
    """Cells whose average or worst accuracy is further from the paper's than so many points."""
    found = []
    for row in rows:
        for attack in paper.ATTACKS:
            theirs = _theirs(table, row.method, attack)
            if theirs is None:
                continue
            for k in (0, 2):
                gap = row.cells[attack][k] - theirs[k]
                if not abs(gap) <= points:
                    cell = f"{NAMES[row.method]}, {HEADS[attack]}, {paper.METRICS[k]}"
                    found.append(f"{cell}: {_number(row.cells[attack][k])} against {theirs[k]:.2f} ({gap:+.1f})")
    return found


def orderings(table: str, rows: Sequence[Row]) -> list[str]:
    """The two orderings of the abstract, in this one draw: is FairMean's variance lowest, its worst client best?"""
    seven = [row for row in rows if row.method in paper.TABLES[table]]
    lines = []
    for attack in paper.ATTACKS[1:]:
        ended = [row for row in seven if not math.isnan(row.cells[attack][0])]
        lowest = min(ended, key=lambda row: row.cells[attack][1])
        highest = max(ended, key=lambda row: row.cells[attack][2])
        for what, best, k in (("lowest variance", lowest, 1), ("highest worst accuracy", highest, 2)):
            mine = next(row for row in seven if row.method == "fairmean")
            verdict = "yes" if best is mine else f"no, {NAMES[best.method]}: {_number(best.cells[attack][k])}"
            lines.append(f"{HEADS[attack]}, FairMean has the {what} ({_number(mine.cells[attack][k])}): {verdict}")
    return lines
