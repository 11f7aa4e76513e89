"""The idea of fairmean-recess in one picture, from the stored runs.

python -m paper.recess_picture measure     what clients would measure that were never in recess; appends to a file
python -m paper.recess_picture draw        the picture
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fairmean.engine.batch import Feeder
from fairmean.engine.paths.per_client import broadcast_statistics
from fairmean.experiments.building import build_federation, build_simulator
from paper.figures import plots
from paper.recess import FILE, FIRST, PAGE, PARTS, RESULTS, append, configured, read

FIGURE = PAGE.parent / "recess" / "idea.png"
TRAINING = RESULTS / "recess-without.csv"
WITHOUT_RECESS, WITHOUT_SHARES = f"{FIRST}:begin=0.69:until=0.6901", f"{FIRST}:rare=0.999:seldom=0.000001"
SHOWN = (
    (WITHOUT_RECESS, "asked while\nit trains"),
    (WITHOUT_SHARES, "after a recess,\nwithout label shares"),
    (FIRST, "after a recess,\nwith label shares"),
)
Points = tuple[list[float], list[float]]


def measure(draws: int = 10) -> None:
    """ẽ of every client at the last model of runs in which nobody rests to speak of: those of the ablations."""
    part, known = PARTS["ablations"], {int(row["seed"]) for row in read(TRAINING)}
    for seed in sorted(set(range(part.first, part.first + draws)) - known):
        config = configured(part.settings["pairwise"], WITHOUT_RECESS, seed)
        simulator = build_simulator(config, build_federation(config))
        for t in range(simulator.training.rounds):
            simulator.step(t)
        batch = Feeder(simulator.federation, 0, seed)(0, np.arange(simulator.federation.clients))
        context = replace(simulator.context(simulator.training.rounds, batch), looks=False)  # everybody is asked
        means = broadcast_statistics(simulator.net, batch, simulator.chunk, simulator.method, context)[1]
        for i, excess in enumerate(means["excess"].tolist()):
            row = {"seed": seed, "client": i, "poisoned": int(not simulator.federation.regular[i])}
            append(TRAINING, (*row, "excess"), {**row, "excess": round(excess, 4)})


def points(rows: Sequence[Mapping[str, str]], method: str) -> Points:
    """The excess at the end of regular and of poisoned clients, under pairwise flips, in all draws of the ablations."""
    found: Points = [], []
    if method == WITHOUT_RECESS:
        for client in read(TRAINING):
            found[int(client["poisoned"])].append(float(client["excess"]))
        return found
    for row in rows:
        if (row["part"], row["setting"], row["method"]) == ("ablations", "pairwise", method):
            poisoned = set(json.loads(row["poisoned"]))
            for i, excess in enumerate(json.loads(row["excess"])):
                found[i in poisoned].append(excess)
    return found


def draw(rows: Sequence[Mapping[str, str]], file: Path) -> None:
    """Left: who rests when. Right: what clients measure, in three ways."""
    plt = plots()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), width_ratios=(4, 5))
    first, last, clients, cycles = 17.0, 70.0, 10, 2
    rest = (last - first) / (clients * cycles)
    for client in range(clients):
        left.barh(client, 100, height=0.6, color="0.88")
        for cycle in range(cycles):
            turn = (client + cycle * (client // clients)) % clients
            left.barh(client, rest, left=first + (cycle * clients + turn) * rest, height=0.6, color="C0")
    left.invert_yaxis()
    left.set(xlabel="% of the run", ylabel="client", yticks=range(clients), title="clients take turns in recess")
    left.text(85, 4.5, "everybody trains", ha="center", va="center", rotation=90, color="0.35", fontsize=9)
    left.set_xlim(0, 100)
    random = np.random.default_rng(0)
    for place, (method, _) in enumerate(SHOWN):
        for values, colour, shift, label in zip(
            points(rows, method), ("0.45", "C3"), (-0.17, 0.17), ("right labels", "flipped labels"), strict=True
        ):
            x = place + shift + random.uniform(-0.1, 0.1, len(values))
            right.scatter(x, values, s=14, color=colour, alpha=0.7, linewidths=0, label=None if place else label)
    right.axhline(0, color="k", linewidth=0.6)
    right.set_yscale("symlog", linthresh=0.5, linscale=0.6)
    right.set_yticks([-0.5, 0, 0.5, 1, 2, 5], ["−0.5", "0", "0.5", "1", "2", "5"])
    right.minorticks_off()
    right.set_xticks(range(len(SHOWN)), [label for _, label in SHOWN], fontsize=9)
    right.set(ylabel="excess ẽ of a client", title="what the model says of a client's labels")
    right.legend(frameon=False, fontsize=9, loc="lower right", ncols=2)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    file.parent.mkdir(exist_ok=True)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("measure", "draw"))
    torch.set_num_threads(1)
    if parser.parse_args().verb == "measure":
        measure()
    else:
        draw(read(FILE), FIGURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
