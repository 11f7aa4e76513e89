"""The oracle is Mean on the regular clients alone, and is offered to nobody as a method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fairmean
from fairmean.engine import Simulator
from fairmean.experiments.building import build_model, build_simulator
from fairmean.experiments.config import gather, parse
from fairmean.experiments.identity import resolve
from fairmean.rules.named import named_methods
from paper.oracle import oracle, told

SETTINGS = {
    "method.name": "mean",
    "model.name": "linear",
    "attack.name": "pairwise",
    "train.rounds": 5,
    "train.device": "cpu",
    "train.dtype": "float64",
    "attack.clients": [2, 7],
}


def simulator(**more):
    return build_simulator(resolve(parse(gather(None, SETTINGS | more))))


def test_it_equals_training_without_the_poisoned_clients():
    """Against a federation from which their samples were cut out."""
    whole = told(simulator())
    fed = whole.federation
    regular = np.flatnonzero(fed.regular)
    rows, test_rows = (
        np.concatenate([np.arange(at[c], at[c + 1]) for c in regular]) for at in (fed.offsets, fed.test_offsets)
    )
    sizes, test_sizes = fed.sizes[regular], np.diff(fed.test_offsets)[regular]
    cut = replace(
        fed,
        x=fed.x[rows],
        y=fed.y[rows],
        clean_y=fed.clean_y[rows],
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        regular=np.ones(len(regular), dtype=bool),
        test_x=fed.test_x[test_rows],
        test_y=fed.test_y[test_rows],
        test_own_y=fed.test_own_y[test_rows],
        test_offsets=np.concatenate([[0], np.cumsum(test_sizes)]),
        rows=fed.rows[rows],
        test_rows=fed.test_rows[test_rows],
    )
    config = resolve(parse(gather(None, SETTINGS)))
    alone = Simulator(
        cut, build_model(config, cut), whole.method, whole.training, seed=config.seed, dtype=torch.float64
    )
    for t in range(5):
        one, other = whole.step(t), alone.step(t)
        assert one.clients.tolist() == regular.tolist()
        np.testing.assert_allclose(one.weights, other.weights)
    torch.testing.assert_close(whole.w, alone.w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(whole.test()[0][regular], alone.test()[0])


@pytest.mark.usefixtures("here")
def test_poisoned_labels_do_not_matter_to_it_and_do_to_mean():
    records = [oracle(SETTINGS | {"attack.name": attack}) for attack in ("pairwise", "random")]
    assert records[0]["average"] == records[1]["average"]
    assert records[0]["method"] == "oracle: mean, poisoned dropped"
    assert records[0]["status"] == "finished"
    means = [fairmean.run(SETTINGS | {"attack.name": attack}).summary["average"] for attack in ("pairwise", "random")]
    assert means[0] != means[1]


def test_some_clients_and_minibatches():
    part = told(simulator(**{"train.participation": 0.3, "train.batch": 8}))
    usual = simulator(**{"train.participation": 0.3, "train.batch": 8})
    for t in range(5):
        wanted = [c for c in usual.participants(t).tolist() if c not in (2, 7)]
        assert part.step(t).clients.tolist() == wanted


def test_it_is_no_method():
    assert not any("oracle" in name for name in named_methods())
    for file in Path(fairmean.__file__).parent.joinpath("terminal", "completions").iterdir():
        assert "oracle" not in file.read_text()
    with pytest.raises(fairmean.UserError, match="unknown method 'oracle'"):
        fairmean.method("oracle")
