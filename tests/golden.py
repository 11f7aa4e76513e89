"""The results that fairmean's numerics version stands for, measured and stored.

    python -m tests.golden      stores today's results; refuses to, while they differ under the same version

Draws (partitions, labels, batches) are whole numbers and are compared by digest. Trained parameters are compared as a
few figures, to seven digits: less would not notice a change, more would notice another processor.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairmean.engine import Simulator
from fairmean.experiments.building import build_simulator
from fairmean.experiments.config import gather, parse
from fairmean.experiments.identity import NUMERICS, resolve
from fairmean.rules.named import named_methods

FILE = Path(__file__).with_name("golden.json")
DIGITS = 1e-7
ROUNDS = 3
SMALL = {"model.name": "mlp", "train.dtype": "float64", "train.device": "cpu", "train.lr": 0.05, "partition.clients": 6}
MODES: dict[str, dict[str, Any]] = {
    "batches": {"train.batch": 8},
    "local steps": {"train.local_steps": 3, "train.batch": 8, "train.local_lr": 0.02},
    "participation": {"train.participation": 0.5},
    "cosine": {"train.schedule": "cosine"},
    "decay": {"train.lr_decay": 0.9},
    "iid": {"partition.name": "iid"},
    "shards": {"partition.name": "shards"},
    "no attack": {"attack.name": "none"},
    "random": {"attack.name": "random", "attack.rho": 0.7},
    "random class": {"attack.name": "random_class", "attack.pick": "random"},
    "targeted": {"attack.name": "targeted"},
    "furthest": {"attack.name": "furthest"},
    "reference": {"train.engine": "reference"},
    "float32": {"train.dtype": "float32"},
    "the usual excess all along": {"method.name": "fairmean-recess", "method.until_asked": False},
    "images and dropout": {"data.name": "images.npz", "model.name": "cnn", "partition.min_size": 2, "train.batch": 4},
}


def write_data(folder: Path) -> None:
    """Vectors and images, the same everywhere."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(240, 6)).astype(np.float32), np.arange(240) % 4
    x[np.arange(240), y] += 2
    np.savez(folder / "vectors.npz", x_train=x[:180], y_train=y[:180], x_test=x[180:], y_test=y[180:])
    images = draw.integers(0, 256, size=(60, 16, 16, 3), dtype=np.uint8)
    names = np.arange(60) % 3
    np.savez(folder / "images.npz", x_train=images[:40], y_train=names[:40], x_test=images[40:], y_test=names[40:])


def measured(folder: Path) -> dict[str, Any]:
    """Every named method, and every mode of training with FairMean."""
    write_data(folder)
    methods = {name: {"method.name": name} for name in named_methods()}
    return {name: _figures(folder, settings) for name, settings in (methods | MODES).items()}


def _figures(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    chosen = {"data.name": "vectors.npz", **SMALL, **settings}
    chosen["data.name"] = str(folder / chosen["data.name"])
    simulator = build_simulator(resolve(parse(gather({}, chosen))))
    losses = [torch.as_tensor(simulator.step(t).losses).sum().item() for t in range(ROUNDS)]
    w = simulator.w.double()
    pattern = torch.cos(torch.arange(len(w), dtype=torch.float64))
    return {
        "draws": _draws(simulator),
        "losses": losses,
        "parameters": [w.norm().item(), (w * pattern).sum().item()],
        "accuracy": float(np.nanmean(simulator.evaluate()[0])),
    }


def _draws(simulator: Simulator) -> str:
    """Who owns which sample with which label, and which samples the third step takes."""
    fed = simulator.federation
    batch = simulator.feed(2, simulator.participants(2))
    sha = hashlib.sha256()
    for array in (fed.rows, fed.offsets, fed.y.numpy(), fed.test_rows, fed.test_own_y.numpy(), batch.rows.numpy()):
        sha.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
    return sha.hexdigest()[:16]


def differing(stored: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The names whose results are not those that are stored."""

    def same(name: str) -> bool:
        if name not in stored or name not in found:
            return False
        a, b = stored[name], found[name]
        rtol = 1e-4 if name == "float32" else DIGITS
        figures = ("losses", "parameters", "accuracy")
        return a["draws"] == b["draws"] and all(np.allclose(a[key], b[key], rtol=rtol, atol=0) for key in figures)

    return [name for name in stored.keys() | found.keys() if not same(name)]


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder))
    if FILE.exists():
        known = json.loads(FILE.read_text())
        changed = [name for name in differing(known["results"], found) if name in known["results"] and name in found]
        if changed and known["numerics"] == NUMERICS:
            print(f"results changed ({', '.join(sorted(changed))}): raise NUMERICS in fairmean/runs/identity.py first")
            return 1
    FILE.write_text(json.dumps({"numerics": NUMERICS, "results": found}, indent=1) + "\n")
    print(f"{len(found)} results of numerics version {NUMERICS} are in {FILE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
