"""Stands in for fairmean.experiments.reading until it is there."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fairmean.experiments.folder import RunFolder
from fairmean.theory.certificate import certify


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        tree = tomllib.loads((self.folder / "config.toml").read_text())
        self.settings: dict[str, Any] = {}
        for key, value in tree.items():
            if isinstance(value, dict):
                self.settings |= {f"{key}.{k}": v for k, v in value.items()}
            else:
                self.settings[key] = value
        self.summary = RunFolder(self.folder).summary() or {}
        self.status = self.summary.get("status", "interrupted")
        self.environment = json.loads((self.folder / "environment.json").read_text())
        data = np.genfromtxt(self.folder / "clients.csv", delimiter=",", skip_header=1)
        names = ["round", "client", "regular", "loss", "weight", "accuracy", "own_accuracy"]
        self.columns = dict(zip(names, data.T, strict=True))
        for name in ("round", "client"):
            self.columns[name] = self.columns[name].astype(int)
        arrays = np.load(self.folder / "partition.npz")
        from fairmean.experiments.config import parse
        from fairmean.experiments.run import build_federation
        fed = build_federation(parse(tree))
        n, owner = fed.clients, np.repeat(np.arange(fed.clients), fed.sizes)
        def count(y):
            table = np.zeros((n, fed.classes), int)
            np.add.at(table, (owner, y.numpy()), 1)
            return table
        self.partition = SimpleNamespace(
            sizes=np.diff(arrays["offsets"]), test_sizes=np.diff(arrays["test_offsets"]), regular=arrays["regular"],
            classes=count(fed.y), clean_classes=count(fed.clean_y))
        self.certificate = certify(self.folder) if (self.folder / "theory.csv").exists() else None

    @property
    def accuracy(self):
        return np.array(self.summary["accuracy"], dtype=float)

    @property
    def regular(self):
        return self.partition.regular


def load(folder):
    return Run(Path(folder))
