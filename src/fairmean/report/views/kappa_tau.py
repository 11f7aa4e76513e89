"""κ × τ: how the strength and the scale of the fairness weight decide the result, as tables."""

from __future__ import annotations

from typing import Any

from fairmean.report.finding import THEIRS
from fairmean.report.judged import Judged
from fairmean.report.markup import section, tag, text


def html(data: dict[str, Any]) -> str | None:
    """A map for each attack and for the average and the worst client; the stronger the tint, the better."""
    grid = data["map"]
    if grid is None:
        return None
    judged = Judged.in_page(data)
    cells = {(cell["method"], cell["attack"]): cell["estimates"] for cell in data["cells"]}
    methods = {(kappa, tau): method for kappa, tau, method in grid["methods"]}
    maps = []
    for a, attack in enumerate(data["attacks"]):
        for metric in ("average", data["served"]):
            values = {
                place: cells[method, attack][metric]["mean"]
                for place, method in methods.items()
                if (method, attack) in cells and cells[method, attack][metric]["mean"] is not None
            }
            if values:
                maps.append(tag("div", _map(grid, values, attack, metric, judged), {"class": "map", "data-attack": a}))
    caption = (
        f"{text(grid['name'])} with weights a(f) = 1 + κ f/(f+τ): κ is how much more a badly served client may weigh, "
        "and τ the loss at which half of that is reached. "
        f"A stronger tint is a {'higher' if judged.higher else 'lower'} {judged.title}; the best is framed."
    )
    return section("kappa_tau", "Which κ and τ", caption, tag("div", "".join(maps), {"class": "maps"}))


def _map(
    grid: dict[str, Any], values: dict[tuple[float, float], float], attack: str, metric: str, judged: Judged
) -> str:
    ends = min(values.values()), max(values.values())
    worst, best = ends if judged.higher else ends[::-1]
    name = "average client" if metric == "average" else THEIRS[metric]
    where = "no attack" if attack == "none" else attack
    head = tag("tr", tag("td", "") + "".join(tag("th", f"τ = {tau:g}", {"scope": "col"}) for tau in grid["tau"]))
    rows = []
    for kappa in reversed(grid["kappa"]):
        row = tag("th", f"κ = {kappa:g}", {"scope": "row"})
        for tau in grid["tau"]:
            value = values.get((kappa, tau))
            if value is None:
                row += tag("td", "–")
                continue
            share = (value - worst) / (best - worst) if best != worst else 1.0
            look = {"style": f"--share:{share:.3f}", "class": "best" if value == best else None}
            row += tag("td", judged.number(value), look)
        rows.append(tag("tr", row))
    caption = tag("caption", f"{text(name.capitalize())}, {text(where)}, {judged.axis}")
    return tag("table", caption + tag("thead", head) + tag("tbody", "".join(rows)))
