"""Worst-group accuracy when some groups are mislabelled: FairMean's group forms, GroupDRO, a JTT-like rule, plain ERM.

    python benchmarks/groups.py tune             step sizes and main parameters, on validation data of other draws
    python benchmarks/groups.py run              the reported draws, with what was chosen
    python benchmarks/groups.py show             the tables, from the stored rows

Two data sets: the clients of the embedded Fashion-MNIST images (10 groups, Dirichlet 0.5, two of them mislabelled), and
the table ``fair`` of statsmodels (does a woman have an affair, by occupation: 5 groups, one mislabelled). Accuracy is
on true labels and over the regular groups. Every method has the same number of steps, batches of one size, plain SGD
with a cosine schedule, and one rule by which its step size and main parameter are chosen: the best worst-group accuracy
on held-out training data, without mislabelled groups, averaged over three draws that are not reported. The images are
divided a second time, with Dirichlet 0.1, where groups own classes; the settings are those chosen for 0.5.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fairmean.data import load
from fairmean.data.federation import build
from fairmean.errors import UserError
from fairmean.randomness import generator, global_stream
from fairmean.torch.groups import GroupFairMean
from fairmean.torch.robust_groups import GroupRecess, GroupSplit

RESULTS = Path(__file__).parent.parent / "results"
STEPS, BATCH = 1000, 128
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
TUNING, REPORTED = range(901, 904), range(1, 21)
PARAMETERS: dict[str, tuple[float, ...]] = {
    "ERM": (0.0,),
    "GroupDRO": (0.001, 0.01, 0.1),  # η, the step of the groups' weights
    "JTT-like": (2.0, 5.0, 20.0),  # how often a sample counts that the first model had wrong
    "GroupFairMean": (1.0, 4.0, 16.0),  # κ
    "GroupSplit": (16.0,),  # κ, set beforehand as in the federated rule
    "GroupRecess": (16.0,),
    "ERM, mislabelled groups left out": (0.0,),  # what only an oracle can do
}


@dataclass
class Task:
    """Training data with labels as given, test data with true labels, and which groups are regular."""

    x: Tensor
    y: Tensor
    group: NDArray[np.int64]
    test_x: Tensor
    test_y: Tensor
    test_group: NDArray[np.int64]
    regular: NDArray[np.bool_]
    classes: int
    hidden: int

    def held_out(self, draw: int) -> Task:
        """A quarter of the training data in place of the test data."""
        order = generator(draw, "held out").permutation(len(self.group))
        held, kept = order[: len(order) // 4], order[len(order) // 4 :]
        return Task(
            self.x[kept], self.y[kept], self.group[kept], self.x[held], self.y[held], self.group[held], self.regular,
            self.classes, self.hidden,
        )  # fmt: skip


def fashion(draw: int, attack: str, alpha: float = 0.5) -> Task:
    """Clients as groups; the last two of ten are mislabelled."""
    fed = build(
        load("fashion-mnist-mini"),
        partition_seed=draw,
        partition_options={"alpha": alpha},
        attack=attack,
        poisoned=np.array([8, 9]) if attack != "none" else None,
        seed=draw,
    )
    group, test_group = (np.repeat(np.arange(10), np.diff(o)) for o in (fed.offsets, fed.test_offsets))
    return Task(fed.x.flatten(1), fed.y, group, fed.test_x.flatten(1), fed.test_y, test_group, fed.regular, 10, 100)


def affairs(draw: int, attack: str) -> Task:
    """Occupations as groups (those with at least 100 women), no input; in one, drawn at random, labels are flipped."""
    try:
        import statsmodels.api as sm
    except ImportError:
        raise UserError("the table 'fair' comes with statsmodels: pip install statsmodels") from None

    frame = sm.datasets.fair.load_pandas().data
    frame = frame[frame["occupation"] >= 2]
    y = torch.from_numpy((frame["affairs"].to_numpy() > 0).astype(np.int64))
    group = frame["occupation"].to_numpy().astype(np.int64) - 2
    columns = frame[["rate_marriage", "age", "yrs_married", "children", "religious", "educ"]].to_numpy()
    jobs = np.eye(6)[frame["occupation_husb"].to_numpy().astype(int) - 1]
    x = np.concatenate([(columns - columns.mean(0)) / columns.std(0), jobs], 1).astype(np.float32)
    random = generator(draw, "affairs")
    order = random.permutation(len(y))
    train, test = order[: int(0.6 * len(y))], order[int(0.6 * len(y)) :]
    regular = np.ones(5, bool)
    labels = y.clone()
    if attack != "none":
        bad = int(random.integers(5))
        regular[bad] = False
        rows = np.flatnonzero(group == bad)
        labels[rows] = 1 - labels[rows]
    inputs = torch.from_numpy(x)
    return Task(inputs[train], labels[train], group[train], inputs[test], y[test], group[test], regular, 2, 32)


TASKS: dict[str, tuple[Callable[[int, str], Task], tuple[str, ...]]] = {
    "fashion-mnist-mini": (fashion, ("none", "pairwise", "random")),
    "statsmodels fair": (affairs, ("none", "pairwise")),
    "fashion-mnist-mini, own classes": (
        lambda draw, attack: fashion(draw, attack, 0.1),
        ("none", "pairwise", "random"),
    ),
}
LIKE = {"fashion-mnist-mini, own classes": "fashion-mnist-mini"}  # not tuned again


def uniform(n: int, random: np.random.Generator) -> Iterator[Tensor]:
    """Batches drawn without putting back, epoch after epoch."""
    order = np.zeros(0, dtype=np.int64)
    while True:
        while len(order) < BATCH:
            order = np.concatenate([order, random.permutation(n)])
        yield torch.from_numpy(order[:BATCH].copy())
        order = order[BATCH:]


def balanced(group: NDArray[np.int64], random: np.random.Generator) -> Iterator[Tensor]:
    """Every group with the same probability, as the authors of GroupDRO draw."""
    sizes = np.bincount(group)
    share = 1 / sizes[group]
    while True:
        yield torch.from_numpy(random.choice(len(group), BATCH, p=share / share.sum()))


Criterion = Callable[[Tensor, Tensor, Tensor], Tensor]


def train(task: Task, draw: int, lr: float, batches: Iterator[Tensor], criterion: Criterion) -> nn.Module:
    """SGD with a cosine schedule; ``criterion`` gets logits, labels and the batch's rows."""
    with global_stream(draw, "initialisation"):
        model = nn.Sequential(nn.Linear(task.x.shape[1], task.hidden), nn.ReLU(), nn.Linear(task.hidden, task.classes))
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(STEPS):
        optimiser.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * step / STEPS)) / 2
        rows = next(batches)
        torch.autograd.backward(criterion(model(task.x[rows]), task.y[rows], rows))
        optimiser.step()
        optimiser.zero_grad()
    return model


def fit(method: str, parameter: float, lr: float, task: Task, draw: int) -> nn.Module:
    """The model of one method."""
    random, n = generator(draw, "batches"), len(task.y)
    group = torch.from_numpy(task.group)
    if method.startswith("ERM"):
        rows = np.arange(n) if method == "ERM" else np.flatnonzero(task.regular[task.group])
        batches = (torch.from_numpy(rows)[batch] for batch in uniform(len(rows), random))
        return train(task, draw, lr, batches, lambda logits, y, rows: F.cross_entropy(logits, y))
    if method == "GroupDRO":
        q = torch.full((len(task.regular),), 1 / len(task.regular))

        def worst(logits: Tensor, y: Tensor, rows: Tensor) -> Tensor:
            nonlocal q
            losses, index = F.cross_entropy(logits, y, reduction="none"), group[rows]
            counts = torch.bincount(index, minlength=len(q))
            means = torch.zeros(len(q)).index_add(0, index, losses) / counts.clamp(min=1)
            q = q * torch.exp(parameter * means.detach())
            q = q / q.sum()
            return (q * means).sum()

        return train(task, draw, lr, balanced(task.group, random), worst)
    if method == "JTT-like":
        first = train(task, draw, lr, uniform(n, random), lambda logits, y, rows: F.cross_entropy(logits, y))
        with torch.no_grad():
            weight: Tensor = 1 + (parameter - 1) * (first(task.x).argmax(1) != task.y).float()

        def again(logits: Tensor, y: Tensor, rows: Tensor) -> Tensor:
            total: Tensor = (weight[rows] * F.cross_entropy(logits, y, reduction="none")).sum()
            return total / weight[rows].sum()

        return train(task, draw, lr, uniform(n, random), again)
    if method == "GroupFairMean":
        fair = GroupFairMean(group, kappa=parameter)
        return train(
            task, draw, lr, uniform(n, random),
            lambda logits, y, rows: fair(F.cross_entropy(logits, y, reduction="none"), group[rows]),
        )  # fmt: skip
    robust = (
        GroupSplit(group, parameter)
        if method == "GroupSplit"
        else GroupRecess(group, parameter, steps=STEPS, classes=task.classes, seed=draw)
    )
    return train(
        task, draw, lr, uniform(n, random),
        lambda logits, y, rows: robust(F.cross_entropy(logits, y, reduction="none"), group[rows], logits, y),
    )  # fmt: skip


def accuracies(method: str, parameter: float, lr: float, task: Task, draw: int) -> tuple[float, float]:
    """The mean over regular groups, and the worst of them, in %; nothing where the training diverged."""
    try:
        model = fit(method, parameter, lr, task, draw)
    except UserError:
        return 0.0, 0.0
    with torch.no_grad():
        right = (model(task.test_x).argmax(1) == task.test_y).numpy()
    each = [100 * right[task.test_group == g].mean() for g in np.flatnonzero(task.regular)]
    return float(np.mean(each)), float(np.min(each))


def tune() -> None:
    """All settings × the tuning draws; written row by row."""
    with (RESULTS / "groups-tuning.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["data", "method", "parameter", "lr", "draw", "average", "worst"])
        for data, (make, _) in TASKS.items():
            for draw in () if data in LIKE else TUNING:
                task = make(draw, "none").held_out(draw)
                for method, parameters in PARAMETERS.items():
                    if "left out" in method:
                        continue
                    for parameter in parameters:
                        for lr in RATES:
                            average, worst = accuracies(method, parameter, lr, task, draw)
                            table.writerow([data, method, parameter, lr, draw, f"{average:.2f}", f"{worst:.2f}"])
                            file.flush()


def chosen() -> dict[tuple[str, str], tuple[float, float]]:
    """(parameter, lr) of each method on each data set: the best worst-group accuracy, averaged over the draws."""
    scores: dict[tuple[str, str], dict[tuple[float, float], list[float]]] = {}
    try:
        rows = list(csv.DictReader((RESULTS / "groups-tuning.csv").read_text().splitlines()))
    except FileNotFoundError:
        raise UserError("results/groups-tuning.csv is missing: python benchmarks/groups.py tune") from None
    for row in rows:
        setting = float(row["parameter"]), float(row["lr"])
        scores.setdefault((row["data"], row["method"]), {}).setdefault(setting, []).append(float(row["worst"]))
    best = {key: max(values, key=lambda setting, v=values: np.mean(v[setting])) for key, values in scores.items()}  # type: ignore[misc]
    best |= {
        (data, method): best[LIKE[data], method] for data in LIKE for source, method in best if source == LIKE[data]
    }
    return best | {(data, "ERM, mislabelled groups left out"): best[data, "ERM"] for data in TASKS}


def run(only: str) -> None:
    """The reported draws; with ``only``, those of one data set are added to the table."""
    settings = chosen()
    with (RESULTS / "groups.csv").open("a" if only else "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        if not only:
            table.writerow(["data", "attack", "method", "parameter", "lr", "draw", "average", "worst"])
        for data, (make, attacks) in TASKS.items():
            if only not in ("", data):
                continue
            for draw in REPORTED:
                for attack in attacks:
                    task = make(draw, attack)
                    for method in PARAMETERS:
                        parameter, lr = settings[data, method]
                        average, worst = accuracies(method, parameter, lr, task, draw)
                        table.writerow([data, attack, method, parameter, lr, draw, f"{average:.2f}", f"{worst:.2f}"])
                        file.flush()


def show() -> None:
    """Worst group (and average), mean over draws; the difference to ERM of the same draws ± 95 %."""
    from scipy.stats import t

    rows = list(csv.DictReader((RESULTS / "groups.csv").read_text().splitlines()))
    settings = chosen()
    for data, (_, attacks) in TASKS.items():
        print(
            f"\n| {data} | setting | " + " | ".join(f"{attack}: worst | to ERM | average" for attack in attacks) + " |"
        )
        print("|---" * (2 + 3 * len(attacks)) + "|")
        for method in PARAMETERS:
            cells = []
            for attack in attacks:
                pick = {
                    name: {r["draw"]: (float(r["worst"]), float(r["average"])) for r in rows
                           if (r["data"], r["attack"], r["method"]) == (data, attack, name)}
                    for name in (method, "ERM")
                }  # fmt: skip
                gain = np.array([pick[method][d][0] - pick["ERM"][d][0] for d in pick[method]])
                half = t.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / math.sqrt(len(gain))
                worst, average = np.mean(list(pick[method].values()), axis=0)
                cells += [
                    f"{worst:.1f}",
                    "" if method == "ERM" else f"{gain.mean():+.1f} ± {half:.1f}",
                    f"{average:.1f}",
                ]
            parameter, lr = settings[data, method]
            print(f"| {method} | {parameter:g}, lr {lr:g} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["tune", "run", "show"])
    parser.add_argument("--only", default="", choices=["", *TASKS], help="run: add the draws of this data set")
    arguments = parser.parse_args()
    verb = arguments.verb
    torch.set_num_threads(1)
    started = time.process_time()
    {"tune": tune, "run": lambda: run(arguments.only), "show": show}[verb]()
    if verb != "show":
        print(f"{time.process_time() - started:.0f} s of one core")


if __name__ == "__main__":
    main()
