"""Figures of docs/theory.md, and the tables they are drawn from.

    python -m paper.make_theory run      every experiment: results/theory-* (25 minutes on 2 cores)
    python -m paper.make_theory draw     the pictures, from those tables: docs/theory/*.png

Softmax regression is convex and has its constants in closed form; the MLP is the paper's.
"""

from __future__ import annotations

import csv
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairmean import advise, certify, data, dispersion, run
from fairmean.data import federation
from fairmean.theory import bounds, words
from fairmean.theory.certificate import Certificate
from fairmean.theory.softmax import minimise
from paper.figures import figure1, plots, save

ROOT = Path(__file__).parent.parent
RESULTS, PICTURES = ROOT / "results", ROOT / "docs" / "theory"
SOFTMAX: dict[str, Any] = {"theory": True, "model.name": "linear", "train.rounds": 500, "train.lr": 0.005}
MLP: dict[str, Any] = {"theory": True, "data.name": "fashion-mnist", "attack.name": "pairwise", "train.rounds": 400}
KAPPAS, TAUS = (0.25, 1.0, 4.0, 16.0, 64.0), (0.1, 0.3, 1.0, 3.0, 10.0)
ATTACKS = ("pairwise", "random", "random_class")


def store(name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """results/theory-<name>.csv."""
    rows = list(rows)
    with open(RESULTS / f"theory-{name}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    print(f"results/theory-{name}.csv: {len(rows)} rows", flush=True)


def load(name: str) -> list[dict[str, Any]]:
    """The rows of such a table, numbers as numbers."""

    def value(text: str) -> Any:
        try:
            return float(text or "nan")
        except ValueError:
            return text

    with open(RESULTS / f"theory-{name}.csv", newline="") as file:
        return [{key: value(text) for key, text in row.items()} for row in csv.DictReader(file)]


def minimisers(_: str, directions: int = 24) -> None:
    """Theorem 1 on Fashion-MNIST's first principal directions, ten clients, no attack."""
    clients = federation.build(data.load("fashion-mnist"), clients=10)
    x = clients.x.flatten(1).double()
    x = x - x.mean(0)
    axes = torch.linalg.eigh(x.T @ x / len(x)).eigenvectors[:, -directions:]
    x = x @ axes
    mine = [(x[a:b], clients.clean_y[a:b]) for a, b in pairwise(clients.offsets.tolist())]
    average = minimise(mine, 10)
    rows = []
    for kappa, tau in itertools.product(KAPPAS, TAUS):
        fair = minimise(mine, 10, kappa, tau, start=average.w)
        rows.append(
            {
                "kappa": kappa,
                "tau": tau,
                "gradient_norm_average": average.gradient_norm,
                "gradient_norm_fair": fair.gradient_norm,
                "curvature_fair": fair.curvature,
                "dispersion_average": dispersion(average.losses, tau).item(),
                "dispersion_fair": dispersion(fair.losses, tau).item(),
                "variance_average": average.losses.var(correction=0).item(),
                "variance_fair": fair.losses.var(correction=0).item(),
                "mean_average": average.losses.mean().item(),
                "mean_fair": fair.losses.mean().item(),
                "worst_average": average.losses.max().item(),
                "worst_fair": fair.losses.max().item(),
            }
        )
    store("minimisers", rows)


def certified(folder: str, **settings: Any) -> Certificate:
    """A run, and its certificate."""
    return certify(run({"run.dir": folder}, **settings).folder)


def attacks(folder: str) -> None:
    """Lemma 1, Lemma 2, Theorem 2 on whole runs of softmax regression: attack × δ × ρ."""
    cases: list[tuple[str, float, float]] = [("none", 0.0, 0.0)]
    cases += list(itertools.product(ATTACKS, (0.1, 0.2, 0.3, 0.4), (0.0, 0.25, 0.5, 1.0)))
    rows = []
    for attack, delta, rho in cases:
        settings = {"attack.name": attack, "attack.fraction": delta, "attack.rho": rho}
        c = certified(folder, **SOFTMAX, **settings)
        checks = {check.name: check for check in c.checks}
        error = c.columns["error"][: c.rounds]
        rows.append(
            {
                "attack": attack,
                "delta": delta,
                "rho": rho,
                "holds": c.holds,
                "largest_step_times_smoothness": c.path.excess,
                "step": c.step,
                "mean_squared_error": float((error**2).mean()),
                "largest_error": float(error.max()),
                "epsilon_path": c.path.radius,
                "epsilon_known": c.known.radius if c.known else float("nan"),
                "stationarity": c.stationarity,
                "bound_path": c.path.bound,
                "bound_known": c.known.bound if c.known else float("nan"),
                **{f"slack: {name}": check.slack for name, check in checks.items() if name[0] in "LT"},
            }
        )
    names = list(dict.fromkeys(key for row in rows[::-1] for key in row))
    store("attacks", [{name: row.get(name, "") for name in names} for row in rows])
    known = advise({"model.name": "linear"}).known_step(1.0, 1.0)
    assert known is not None
    rows = []
    for attack in ("none", *ATTACKS):
        c = certified(folder, **SOFTMAX | {"train.lr": known * (1 - 1e-9), "attack.name": attack})
        figures = {"step": c.step, "stationarity": c.stationarity, "bound_path": c.path.bound}
        bound = c.known.bound if c.known else float("nan")
        rows.append({"attack": attack, "holds": c.holds, "promised": c.promised, **figures, "bound_known": bound})
    store("promised", rows)


def training(folder: str) -> None:
    """Dispersion along training without attack; the MLP at Mean's step size, so that only the weighting differs."""
    settings = {"theory": True, "attack.name": "none", "train.rounds": 1500, "train.lr": 0.02}
    rows = []
    for kappa in (0.0, 1.0, 4.0, 16.0):
        c = certified(folder, **settings, **{"method.name": "fairmean-normalised", "method.kappa": kappa})
        for t in range(0, len(c.columns["round"]), 15):
            figures = {name: float(c.columns[name][t]) for name in ("mean_loss", "dispersion", "variance")}
            rows.append({"kappa": kappa, "round": int(c.columns["round"][t]), **figures})
    store("training", rows)


def mlp(folder: str) -> None:
    """The paper's MLP on all of Fashion-MNIST, two poisoned clients: a small step, and the paper's."""
    for name, lr in (("small-step", 0.005), ("paper-step", 0.1)):
        c = certified(folder, **MLP, **{"train.lr": lr})
        (RESULTS / f"theory-certificate-{name}.txt").write_text(
            words.page(c).replace(str(c.folder), f"runs/run/{c.folder.name}") + "\n"
        )
        columns, steps = c.columns, c.rounds
        delta = c.premises["delta"]
        radius = bounds.attack_radius(delta, 1.0, columns["poisoned_distance"], columns["regular_gradient"])
        total = np.cumsum(columns["step"][:steps])
        average = np.cumsum(columns["step"][:steps] * columns["gradient"][:steps] ** 2) / total
        far, steep = (np.maximum.accumulate(columns[n][:steps]) for n in ("poisoned_distance", "regular_gradient"))
        bound = 2 * columns["objective"][0] / total + bounds.attack_radius(delta, 1.0, far, steep) ** 2
        store(
            f"mlp-{name}",
            [
                {
                    "round": t,
                    "error": float(columns["error"][t]),
                    "radius": float(radius[t]),
                    "epsilon": c.path.radius,
                    "gradient": float(columns["gradient"][t]),
                    "stationarity": float(average[t]),
                    "bound": float(bound[t]),
                    "smoothness": float(columns["smoothness"][t]),
                    "objective": float(columns["objective"][t]),
                }
                for t in range(0, steps, 2)
            ],
        )
        print(words.page(c), flush=True)


def draw() -> None:
    """Five pictures."""
    plt = plots()

    def finish(figure: Any, name: str) -> None:
        print(*save(plt, figure, PICTURES, name, ["png"]))

    print(*figure1(PICTURES, ["png"]))

    rows = load("training")
    figure, axes = plt.subplots(1, 3, figsize=(10, 3))
    for kappa in dict.fromkeys(row["kappa"] for row in rows):
        mine = [row for row in rows if row["kappa"] == kappa]
        for axis, name in zip(axes, ("dispersion", "variance", "mean_loss"), strict=True):
            label = f"κ = {kappa:g}" if kappa else "Mean"
            axis.plot([r["round"] for r in mine], [r[name] for r in mine], label=label)
    for axis, title in zip(axes, ("dispersion D₁", "variance of the losses", "mean loss"), strict=True):
        axis.set(xlabel="round", title=title)
    axes[0].legend(frameon=False)
    finish(figure, "dispersion")

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    rows = load("mlp-small-step")
    t = [row["round"] for row in rows]
    left.plot(t, [row["error"] for row in rows], label="measured ‖e‖")
    left.plot(t, [row["radius"] for row in rows], label="Lemma 2 at that iterate")
    left.plot(t, [row["epsilon"] for row in rows], "k:", label="ε(δ,κ) of the whole path")
    left.set(xlabel="round", yscale="log", title="MLP, pairwise flips, δ = 0.2")
    left.legend(frameon=False)
    rows = load("attacks")
    for attack in ATTACKS:
        mine = [row for row in rows if row["attack"] == attack and row["rho"] == 1]
        right.plot([r["delta"] ** 2 for r in mine], [r["mean_squared_error"] for r in mine], "o-", label=attack)
    mine = [row for row in rows if row["attack"] == "pairwise" and row["rho"] == 1]
    right.plot([r["delta"] ** 2 for r in mine], [r["epsilon_path"] ** 2 for r in mine], "k:", label="ε² (pairwise)")
    right.plot([0.01, 0.16], [0.1, 1.6], color="0.7", linewidth=0.8, label="∝ δ²")
    right.set(xlabel="δ²", ylabel="mean ‖e‖²", xscale="log", yscale="log", title="softmax regression, ρ = 1")
    right.legend(frameon=False, fontsize=7)
    right.set_ylim(0.05, 400)
    finish(figure, "error")

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for axis, name, title in zip(axes, ("small-step", "paper-step"), ("lr = 0.005", "lr = 0.1"), strict=True):
        rows = load(f"mlp-{name}")
        t = [row["round"] + 1 for row in rows]
        axis.plot(t, [row["stationarity"] for row in rows], label="average ‖∇Φ_R‖²")
        axis.plot(t, [row["bound"] for row in rows], label="Theorem 2's bound")
        axis.set(xlabel="rounds T", xscale="log", yscale="log", title=f"MLP, pairwise flips, {title}")
    axes[0].legend(frameon=False)
    finish(figure, "stationarity")

    rows = load("minimisers")
    given = advise()
    maps: dict[str, Callable[[dict[str, Any]], float]] = {
        "dispersion at the minimiser, × Mean's": lambda r: r["dispersion_fair"] / r["dispersion_average"],
        "mean loss there, % above Mean's": lambda r: 100 * (r["mean_fair"] / r["mean_average"] - 1),
        "safe step 1/L_Φ (MLP, start)": lambda r: given.estimate.step(r["kappa"], r["tau"]),
    }
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2))
    for axis, (title, value) in zip(axes, maps.items(), strict=True):
        grid = np.array([[value(r) for r in rows if r["kappa"] == kappa] for kappa in KAPPAS])
        image = axis.imshow(np.log(grid), cmap="viridis", origin="lower", aspect="auto")
        for (i, j), number in np.ndenumerate(grid):
            colour = "black" if image.norm(np.log(number)) > 0.6 else "white"
            axis.text(j, i, f"{number:.2g}", ha="center", va="center", color=colour, fontsize=8)
        axis.set_xticks(range(len(TAUS)), [f"{tau:g}" for tau in TAUS])
        axis.set_yticks(range(len(KAPPAS)), [f"{kappa:g}" for kappa in KAPPAS])
        axis.set(xlabel="τ", ylabel="κ", title=title)
    finish(figure, "map")


def main() -> None:
    if sys.argv[1:] == ["draw"]:
        draw()
        return
    if sys.argv[1:2] != ["run"]:
        sys.exit(__doc__)
    parts: dict[str, Callable[[str], None]] = {
        "minimisers": minimisers,
        "attacks": attacks,
        "training": training,
        "mlp": mlp,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[2:] or parts:
            parts[name](folder)


if __name__ == "__main__":
    main()
