"""Fairness and robustness against the share of clients that takes part: results/participation.csv.

    nice python benchmarks/participation.py [--seeds 3] [--out results/participation.csv]

Embedded images of Fashion-MNIST, 20 clients of a Dirichlet 0.5 partition, four of them poisoned, the paper's MLP,
minibatches of 32 and 150 rounds. Rounds are as many for every rate, so a lower rate also sees fewer samples. Every
method sees the same draws and the same clients in every round.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path

import numpy as np
import torch

import fairmean

METHODS = ("mean", "fairmean", "fairmean-split", "rfa")
ATTACKS = ("none", "pairwise")
RATES = (0.1, 0.25, 0.5, 1.0)
PRESENCES = ("uniform", "markov", "power-of-choice")
FIELDS = ("presence", "participation", "attack", "method", "seed", "average", "variance", "worst", "idle_rounds")


def main() -> None:
    """Every combination, a row each; then means and 95 % intervals of the differences to Mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/participation.csv"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, chosen.out.open("w", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        for seed in range(1, chosen.seeds + 1):
            for presence in PRESENCES:
                for rate in RATES:
                    if rate == 1 and presence != "uniform":  # everybody takes part: the same run
                        continue
                    for attack in ATTACKS:
                        for method in METHODS:
                            rows.append(one(folder, seed, presence, rate, attack, method))
                            table.writerow(rows[-1])
                file.flush()
    print(summary(rows))


def one(folder: str, seed: int, presence: str, rate: float, attack: str, method: str) -> dict[str, object]:
    """The figures of one run."""
    ended = fairmean.run(
        seed=seed,
        partition={"clients": 20, "alpha": 0.5},
        attack={"name": attack, "clients": 4},
        method={"name": method},
        train={
            "rounds": 150,
            "batch": 32,
            "lr": 0.1,
            "device": "cpu",
            "participation": rate,
            "presence": presence,
        },
        run={"dir": folder, "eval_every": 150},
    ).summary
    setting = {"presence": presence, "participation": rate, "attack": attack, "method": method, "seed": seed}
    figures = {name: round(ended[name], 3) for name in ("average", "variance", "worst")}
    return setting | figures | {"idle_rounds": ended.get("idle_rounds", 0)}


def summary(rows: list[dict[str, object]]) -> str:
    """As a Markdown table: Mean's figures, and the other methods' differences to it with their 95 % intervals."""
    from scipy.stats import t as student

    lines = ["| presence | rate | attack | method | average | variance | worst |", "|---|---|---|---|---|---|---|"]
    keys = list(dict.fromkeys((row["presence"], row["participation"], row["attack"]) for row in rows))
    for key in keys:
        cell = [row for row in rows if (row["presence"], row["participation"], row["attack"]) == key]
        for method in METHODS:
            words = []
            for name in ("average", "variance", "worst"):
                mean = np.array([float(str(row[name])) for row in cell if row["method"] == "mean"])
                own = np.array([float(str(row[name])) for row in cell if row["method"] == method])
                values = own if method == "mean" else own - mean
                half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
                words.append(f"{values.mean():{'.1f' if method == 'mean' else '+.1f'}} ± {half:.1f}")
            lines.append(f"| {' | '.join(map(str, key))} | {method} | {' | '.join(words)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
