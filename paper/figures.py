"""The paper's two figures, drawn from our own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fairmean.errors import UserError
from fairmean.transform import marginal_weight, phi
from paper import paper
from paper.render import NAMES


def plots() -> Any:
    try:
        import matplotlib as mpl
    except ImportError:
        raise UserError("figures need matplotlib: pip install 'fairmean[plot]'") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 150})
    return plt


def save(plt: Any, figure: Any, folder: Path, name: str, kinds: Sequence[str] = ("pdf", "png")) -> list[Path]:
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    files = [folder / f"{name}.{kind}" for kind in kinds]
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        figure.savefig(file, metadata={"CreationDate": None} if file.suffix == ".pdf" else None)  # the same bytes again
    plt.close(figure)
    return files


def figure1(folder: Path, kinds: Sequence[str] = ("pdf", "png")) -> list[Path]:
    """The transform φ(z) − z and the weight a(z): κ at τ = 1, and one larger τ."""
    plt = plots()
    z = torch.linspace(0, 5, 500, dtype=torch.float64)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.9))
    for kappa, tau, style in ((0.5, 1.0, "C2-"), (1.0, 1.0, "C0-"), (2.0, 1.0, "C3-"), (1.0, 2.0, "C1--")):
        left.plot(z, phi(z, kappa, tau) - z, style, label=rf"$\kappa={kappa:g}$, $\tau={tau:g}$")
        right.plot(z, marginal_weight(z, kappa, tau), style)
    right.plot([1.0], [marginal_weight(1.0, 1.0, 1.0)], "o", color="C0", zorder=3)
    right.plot([2.0], [marginal_weight(2.0, 1.0, 2.0)], "D", color="C1", zorder=3)
    left.set(xlabel="loss $z$", ylabel=r"$\phi_{\kappa,\tau}(z)-z$", title="(a)")
    right.set(xlabel="loss $z$", ylabel=r"$a_{\kappa,\tau}(z)$", title="(b)")
    left.legend(frameon=False)
    return save(plt, figure, folder, "fig1", kinds)


def figure2(
    folder: Path,
    name: str,
    deltas: Sequence[float],
    curves: Mapping[str, Sequence[paper.Cell]],
    kinds: Sequence[str] = ("pdf", "png"),
) -> list[Path]:
    """Variance, worst and average against the poisoned fraction; crosses are the paper's two stated points each."""
    plt = plots()
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
    for number, (method, cells) in enumerate(curves.items()):
        for axis, metric in zip(axes, ("variance", "worst", "average"), strict=True):
            k = paper.METRICS.index(metric)
            axis.plot(deltas, [cell[k] for cell in cells], "o-", color=f"C{number}", label=NAMES[method], markersize=4)
            stated = paper.FIGURE2.get(method, {}).get(metric)
            if stated is not None:
                axis.plot([0.3], [stated], "x", color=f"C{number}", markersize=8)
            axis.set(xlabel=r"poisoned fraction $\delta$", title=metric)
    lines, names = axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return save(plt, figure, folder, name, kinds)
