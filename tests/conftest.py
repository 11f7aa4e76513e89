"""What tests share: one thread, an empty working folder, tiny data, registries that are put back."""

from __future__ import annotations

import os
import sys

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # here, and in the processes that tests start

import numpy as np
import pytest
import torch
from hypothesis import settings

from fairmean.rules.aggregator import AGGREGATORS
from fairmean.rules.mixing import MIXINGS
from fairmean.rules.named import PAIRS
from fairmean.rules.objectives import OBJECTIVES
from fairmean.rules.optimisers import OPTIMISERS
from fairmean.rules.scales import SCALES

torch.set_num_threads(1)  # the work is tiny, and sums must not depend on what else the machine does
settings.register_profile("fairmean", deadline=None)  # nor may a test fail because the machine is busy
settings.load_profile("fairmean")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of data sets."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FAIRMEAN_DATA", str(folder))
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch, cache):
    """An empty working folder, and an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fairmean.experiments.environment._commit", lambda: None)  # it starts a process
    return tmp_path


@pytest.fixture(scope="session")
def own(tmp_path_factory):
    """A tiny data set, so that many runs cost little."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(400, 6)).astype(np.float32), np.arange(400) % 4
    x[np.arange(400), y] += 2
    file = tmp_path_factory.mktemp("data") / "own.npz"
    np.savez(file, x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    return str(file)


@pytest.fixture(scope="session")
def judged(tmp_path_factory):
    """Runs that predict numbers or one of two classes, with named clients; and one with samples held out."""
    from tests.judged import made

    return made(tmp_path_factory.mktemp("judged"))


@pytest.fixture
def forget_modules(tmp_path, monkeypatch):
    """Users' modules are imported from the working folder; the next test's has the same name."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:  # a library that is first needed here is not imported twice
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def registries():
    """What a test registers is gone after it."""
    kept = [(registry, dict(registry)) for registry in (AGGREGATORS, MIXINGS, OBJECTIVES, OPTIMISERS, SCALES, PAIRS)]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)
