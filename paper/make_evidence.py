"""The runs behind docs/evidence.md: made on a GPU, part by part, and merged into results/.

    python -m paper.make_evidence tune fashion-mnist --methods mean,fedavg
    python -m paper.make_evidence run fashion-mnist --methods mean,fedavg --seeds 1001-1020
    python -m paper.make_evidence three fashion-mnist                 three poisoned clients, pairwise (claim P8)
    python -m paper.make_evidence map fashion-mnist                   κ × τ at Mean's step (question Q3)
    python -m paper.make_evidence merge fashion-mnist PART ...        parts that other machines made, into results/

``--out FOLDER`` writes the part there instead of merging it, ``--tuning TABLE`` runs what was tuned just now. Then:
fairmean reproduce evidence.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter
from pathlib import Path
from typing import Any

from fairmean.experiments.config import literal
from paper import evidence, tuning
from paper.claims import THREE_POISONED

RESULTS = Path(__file__).parent.parent / "results"
KAPPAS, TAUS = (0.25, 1.0, 4.0, 16.0, 64.0), (0.1, 0.3, 1.0, 3.0, 10.0)
MAPPED = ("none", "pairwise")


def grid(dataset: str) -> dict[str, str]:
    """fairmean-normalised over κ × τ at Mean's step size, and Mean itself."""
    step = evidence.TUNED[dataset]["mean"].rpartition("train.lr=")[2]
    specs = [f"fairmean-normalised:kappa={k}:tau={t}:train.lr={step}" for k, t in itertools.product(KAPPAS, TAUS)]
    return {spec: spec for spec in [*specs, f"mean:train.lr={step}"]}


def merge(file: Path, dataset: str, records: list[dict[str, Any]]) -> None:
    """Into a long table; a row for the same method, attack and draw is replaced."""
    old = evidence.read(file, dataset).records if file.exists() else []
    rows = {(row["method"], row["attack"], row["seed"]): row for row in [*old, *records]}
    settings = {(row["method"], row["spec"], row["dtype"], row["rounds"]) for row in rows.values()}
    mixed = sorted(name for name, n in Counter(method for method, *_ in settings).items() if n > 1)
    if mixed:
        raise SystemExit(f"{file}: would mix settings, precision or rounds of {', '.join(mixed)}")
    order = [*evidence.TUNED.get(dataset, ()), *dict.fromkeys(row["method"] for row in rows.values())]
    attacks = [*evidence.ATTACKS, THREE_POISONED]
    ordered = sorted(rows.values(), key=lambda r: (order.index(r["method"]), attacks.index(r["attack"]), r["seed"]))
    evidence.write(file, ordered)


def merge_tuning(file: Path, dataset: str, records: list[dict[str, Any]]) -> None:
    """The same for a table of the tuning; settings that the grids no longer have are dropped."""
    rows = [*(tuning.read(file) if file.exists() else []), *records]
    registered = set(tuning.specs(dataset, records=rows))
    kept = {
        (row["method"], row["spec"], row["seed"]): row for row in rows if (row["method"], row["spec"]) in registered
    }
    tuning.write(file, kept.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tune", "run", "three", "map", "merge"))
    parser.add_argument("dataset", choices=tuple(tuning.SETTINGS))
    parser.add_argument("more", nargs="*", metavar="key=value or PART")
    parser.add_argument("--methods")
    parser.add_argument("--attacks", help="with run: only these")
    parser.add_argument("--seeds", help="as 1001-1020")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tuning", type=Path, help="settings of methods that were tuned just now, from this table")
    a = parser.parse_intermixed_args()
    files = {"tune": f"tuning-{a.dataset}.csv", "map": f"map-{a.dataset}.csv.gz"}
    file = (a.out or RESULTS) / files.get(a.what, f"evidence-{a.dataset}.csv.gz")
    if a.what == "merge":
        for part in map(Path, a.more):
            if part.name.startswith("tuning-"):
                merge_tuning(RESULTS / f"tuning-{a.dataset}.csv", a.dataset, tuning.read(part))
            else:
                kind = "map" if part.name.startswith("map-") else "evidence"
                merge(RESULTS / f"{kind}-{a.dataset}.csv.gz", a.dataset, evidence.read(part, a.dataset).records)
        return
    settings = {key: literal(value) for key, _, value in (word.partition("=") for word in a.more)}
    if set(settings) - {"run.dir", "train.device", "data.path"} and a.out is None:
        parser.error("changed settings go into a folder of their own: name it with --out")
    methods = a.methods.split(",") if a.methods else None
    first, _, last = (a.seeds or "").partition("-")
    seeds = list(range(int(first), int(last or first) + 1)) if a.seeds else list(evidence.DRAWS.get(a.dataset, ()))
    if a.tuning:
        fresh = tuning.choose(tuning.read(a.tuning))
        evidence.TUNED[a.dataset] = evidence.TUNED.get(a.dataset, {}) | fresh
    began = time.time()
    if a.what == "tune":
        stored = RESULTS / file.name
        there = tuning.read(stored) if stored.exists() else []
        records = tuning.run(a.dataset, methods, known=there, seeds=seeds if a.seeds else None, **settings)
        merge_tuning(file, a.dataset, records)
    else:
        if a.what == "map":
            records = evidence.run(a.dataset, grid(a.dataset), seeds=seeds[:5], attacks=MAPPED, **settings)
        elif a.what == "three":
            options: dict[str, Any] = {"seeds": seeds, "attacks": [THREE_POISONED]}
            records = evidence.run(a.dataset, methods or ["mean", "fedavg", "qffl", "fairmean"], **options, **settings)
        else:
            attacks = a.attacks.split(",") if a.attacks else evidence.ATTACKS
            records = evidence.run(a.dataset, methods, seeds=seeds, attacks=attacks, **settings)
        merge(file, a.dataset, records)
    print(
        f"{a.what} {a.dataset} {a.methods or 'all'}: {len(records)} runs in {time.time() - began:.1f} s → {file}",
        flush=True,
    )


if __name__ == "__main__":
    main()
