"""An objective of one's own, whole, in one file: on the command line, in a comparison, after an interruption.

That it is the same in every path is tested where all methods are (test_paths, test_fleet, test_bounded, test_cuda).
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import fairmean
from fairmean import CrossEntropy, Method, UserError, compose, method
from fairmean.experiments.identity import resolve
from fairmean.rules.scales import FairMean
from fairmean.rules.servers.means import Mean
from fairmean.terminal.main import main
from tests.engine.test_fleet import draws
from tests.engine.test_paths import Generalised, simulate

pytestmark = pytest.mark.usefixtures("here", "forget_modules", "registries")

GCE = """
from dataclasses import dataclass

import torch.nn.functional as F

import fairmean


@fairmean.register_objective("gce")
@dataclass(frozen=True)
class GeneralisedCrossEntropy(fairmean.Objective):
    '''ℓ = (1 − p_y^q)/q: cross-entropy for q → 0, the mean absolute error for q = 1.'''

    q: float = 0.7

    def losses(self, logits, y, context):
        return (1 - (-self.q * F.cross_entropy(logits, y, reduction="none")).exp()) / self.q
"""
QUICK = ["model.name=linear", "train.rounds=6", "train.device=cpu"]


def small(own, name):
    return {"data": {"name": own}, "model": {"name": "linear"}, "method": {"name": name, "objective": "gce"}}


def run_until(t, config):
    """A run that is interrupted after round t."""

    def stop(progress):
        if progress.round == t:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fairmean.run(config, report=stop)


def test_in_one_file(own, capsys):
    assert len(GCE.strip().splitlines()) <= 40
    Path("my_objective.py").write_text(GCE)
    words = ["--import", "my_objective", f"data.name={own}", *QUICK]
    assert main(["run", *words, "method.objective=gce", "method.q=0.5"]) == 0
    assert (
        main(
            [
                "compare",
                *words,
                "--methods",
                "fairmean,fairmean:objective=gce,krum:objective=gce:f=2",
                "--attacks",
                "none",
            ]
        )
        == 0
    )
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("fairmean", "krum"))]
    figures = {" ".join(row[:-3]): row[-3:] for row in rows}
    assert figures["fairmean"] != figures["fairmean objective=gce"]
    assert main(["list", "objectives", "--import", "my_objective"]) == 0
    assert "(1 − p_y^q)/q" in capsys.readouterr().out


def test_an_edited_objective_is_another_run(own):
    hashes = set()
    for text in (GCE, GCE.replace("1 - (", "1.0 - (")):
        Path("my_objective.py").write_text(text)
        fairmean.importing.import_module("my_objective")
        config = {"data": {"name": own}, "method": {"name": "fairmean", "objective": "gce"}}
        hashes.add(resolve(fairmean.experiments.config.parse(config)).hash())
    assert len(hashes) == 2


def test_an_interrupted_run_ends_as_if_it_had_not_been(own):
    Path("my_objective.py").write_text(GCE)
    fairmean.importing.import_module("my_objective")
    config = {
        "data": {"name": own},
        "model": {"name": "linear"},
        "method": {"name": "cwtm", "objective": "gce"},
        "train": {"rounds": 6},
    }
    whole = fairmean.run(config, run={"dir": "whole"})
    run_until(3, config)
    assert fairmean.run(config).table.read_bytes() == whole.table.read_bytes()


def test_a_small_q_is_cross_entropy():
    """q → 0, through every path of a small federation."""
    fed = draws()[0]
    plain, _ = simulate(fed, Method("a", FairMean(), Mean()))
    near, _ = simulate(fed, Method("b", FairMean(), Mean(), objective=Generalised(1e-7)))
    assert (plain.w - near.w).norm() <= 1e-5 * plain.w.norm()


def test_the_tilted_mean_is_an_objective():
    tilted = method("term-hierarchical", t_in=-2.0)
    assert tilted.objective.tilt == -2.0
    assert compose("none", "term-counts", objective="tilted", t_in=-2.0).objective == tilted.objective
    assert not tilted.objective.is_mean_cross_entropy
    assert method("fairmean").objective == CrossEntropy()
    logits, y = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    torch.testing.assert_close(tilted.objective.losses(logits, y, None), F.cross_entropy(logits, y, reduction="none"))


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ("return None", "returned nothing"),
        ("return logits", r"shape \(3, 4\), not \(3,\)"),
        ("return logits.detach()[:, 0]", "do not depend on the logits"),
        ("raise KeyError('lost')", r"failed \(KeyError: 'lost', at .*bad_objective"),
    ],
)
def test_an_objective_that_misbehaves_is_named(losses, says, own):
    text = GCE[: GCE.index("        return (1")] + f"        {losses}\n"
    Path("bad_objective.py").write_text(text)
    fairmean.importing.import_module("bad_objective")
    with pytest.raises(UserError, match=f"objective 'gce' .GeneralisedCrossEntropy. .*{says}"):
        fairmean.run(data={"name": own}, model={"name": "linear"}, method={"name": "fairmean", "objective": "gce"})
    assert not Path("runs").exists()


def test_what_the_theory_does_not_cover_is_said(own):
    Path("my_objective.py").write_text(GCE)
    fairmean.importing.import_module("my_objective")
    with pytest.raises(UserError, match="another objective"):
        fairmean.advise(
            {"data": {"name": own}, "model": {"name": "linear"}, "method": {"name": "fairmean", "objective": "gce"}}
        )
    with pytest.raises(UserError, match="unknown objective 'gcee': did you mean 'gce'"):
        compose("fairmean", objective="gcee")
    done = fairmean.run(small(own, "mean"), train={"rounds": 2}, theory=True)
    assert math.isfinite(done.summary["average"])
