"""The evidence's figures."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np

from fairmean.experiments.statistics import paired
from paper.compared import differences
from paper.evidence import ATTACKS, Evidence
from paper.figures import plots, save
from paper.paper import METRICS
from paper.render import name

_FAR = 20.0


def forest(evidence: Evidence, folder: Path) -> list[Path]:
    """Differences to Mean with their intervals: methods down, attacks across, average and worst."""
    plt = plots()
    found = differences(evidence, "mean")
    methods = [m for m in evidence.methods if m != "mean"][::-1]
    figure, axes = plt.subplots(2, len(ATTACKS), figsize=(13, 0.5 * len(methods) + 2), sharey=True)
    for row, metric in enumerate(("worst", "average")):
        for axis, attack in zip(axes[row], ATTACKS, strict=True):
            for place, method in enumerate(methods):
                if (method, attack, metric) in found:
                    d, p = found[method, attack, metric]
                    colour = "0.6" if not p < 0.05 else "C2" if d.mean > 0 else "C3"
                    if d.mean < -_FAR:  # one such row would squeeze all others
                        left = axis.get_yaxis_transform()
                        axis.text(0.02, place, f"← {d.mean:.0f}", color=colour, va="center", fontsize=8, transform=left)
                    else:
                        half = [[min(d.half, d.mean + _FAR)], [d.half]]
                        axis.errorbar([d.mean], [place], xerr=half, fmt="o", color=colour, markersize=4)
            axis.axvline(0, color="k", linewidth=0.6)
            axis.set(title=f"{metric}, {attack}")
            axis.set_yticks(range(len(methods)), [name(m).strip("`") for m in methods], fontsize=7)
    return save(plt, figure, folder, f"evidence-{evidence.dataset}")


def _parameters(spec: str) -> tuple[float, float]:
    """κ and τ of a spec of the map."""
    settings = dict(setting.split("=") for setting in spec.split(":")[1:])
    return float(settings["kappa"]), float(settings["tau"])


def maps(mapped: Evidence, folder: Path) -> list[Path]:
    """κ × τ: the difference to Mean at the same step, per attack; bold where its interval excludes 0."""
    plt = plots()
    mean = next(method for method in mapped.methods if method.startswith("mean"))
    points = {_parameters(method): method for method in mapped.methods if method != mean}
    kappas, taus = (sorted({point[i] for point in points}) for i in (0, 1))
    attacks = list(dict.fromkeys(record["attack"] for record in mapped.records))
    figure, axes = plt.subplots(len(attacks), 3, figsize=(12, 3.3 * len(attacks)), squeeze=False)
    for row, attack in zip(axes, attacks, strict=True):
        for axis, metric in zip(row, METRICS, strict=True):
            base = mapped.values(mean, attack, metric)
            grid = np.full((len(kappas), len(taus)), np.nan)
            for (i, kappa), (j, tau) in product(enumerate(kappas), enumerate(taus)):
                values = mapped.values(points[kappa, tau], attack, metric)
                if values is not None and base is not None:
                    d = paired(values, base)
                    grid[i, j] = d.mean
                    sure = "bold" if abs(d.mean) > d.half else "normal"
                    axis.text(j, i, f"{d.mean:+.2f}", ha="center", va="center", fontsize=8, fontweight=sure)
            most = max(np.nanmax(np.abs(grid)), 1.0)  # a tenth of a point is no colour
            colours = "RdYlGn" if metric != "variance" else "RdYlGn_r"
            axis.imshow(grid, cmap=colours, vmin=-most, vmax=most, origin="lower", aspect="auto", alpha=0.7)
            axis.set_xticks(range(len(taus)), [f"{tau:g}" for tau in taus])
            axis.set_yticks(range(len(kappas)), [f"{kappa:g}" for kappa in kappas])
            where = "no attack" if attack == "none" else attack
            axis.set(xlabel="τ", ylabel="κ", title=f"{metric} − Mean's, {where}")
    return save(plt, figure, folder, f"map-{mapped.dataset}")
