"""A federation through Flower's messages gives what the simulator gives: parameters, tables, memories."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord

import fairmean
from fairmean import cpu_products
from fairmean.flower import FairStrategy
from tests.flower import mini, own_parts
from tests.flower.local_grid import LocalGrid

METHODS = [
    "mean", "fedavg", "fairmean:kappa=4", "fairmean-split", "qffl:q=2", "fairmean-recess", "rested+mean",
    "mean:objective=forgiving", "fairmean-normalised:objective=forgiving",  # rung 0
    "drfl", "term", "rested+drfl:objective=forgiving",  # rung 1
    "krum:f=1", "fairmean+nnm+mean:f=1", "rested+faba:f=1",  # rung 2
    "median", "centered-clipping", "fairmean-split+median", "lfighter", "fedlf",  # rung 3, one with a state
]  # fmt: skip


@pytest.fixture(autouse=True)
def products_alike(monkeypatch):
    """A node multiplies smaller matrices than the simulator; let both do it by the same library, whatever the size."""
    monkeypatch.setattr(cpu_products, "helps", lambda: False)


def federated(method, **more):
    """The run of a method on a grid without processes, and its strategy."""
    settings = {"clients": 4, "lr": 0.05, "lr_decay": 0.95, "startup": 0, "min_clients": 1, **more}
    strategy = FairStrategy(method, **settings)
    strategy.start(LocalGrid.honest(mini.make_model, mini.load_data), ArrayRecord(mini.make_model().state_dict()), 5)
    return strategy


def same(run, w, folder, told):
    """Whether a federation's model and table are those of a run of the simulator."""
    np.testing.assert_allclose(w, _w(run.folder), rtol=0, atol=1e-5)
    table = fairmean.load(folder).columns
    if not told:
        assert len(table["round"]) == 0
        return
    for name, values in run.columns.items():
        np.testing.assert_allclose(table[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def _w(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["w"]


@pytest.mark.parametrize("method", METHODS)
def test_parameters_and_table(method, here, registries):
    own_parts.register()
    run = mini.simulated(method)
    strategy = federated(method, report="clients")
    same(run, strategy.w, strategy.record.recorder.run.folder, True)


@pytest.mark.parametrize("method", METHODS[:9])
def test_sums_alone_give_the_same(method, here, registries):
    own_parts.register()
    run = mini.simulated(method)
    strategy = federated(method)
    same(run, strategy.w, strategy.record.recorder.run.folder, False)
