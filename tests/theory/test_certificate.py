"""Certificates: runs inside the guarantee hold, and each kind of violation is found in the round where it happens."""

import json
from dataclasses import dataclass

import pytest
import torch

from fairmean import CoordinateRule, Scale, experiment, register, register_scale
from fairmean.aggregators import AGGREGATORS
from fairmean.cli import main
from fairmean.errors import Diverged, UserError
from fairmean.methods import PAIRS
from fairmean.scales import SCALES
from fairmean.theory import words
from fairmean.theory.certificate import certify

SOFTMAX = {"theory": True, "model.name": "linear", "train.device": "cpu", "train.rounds": 12, "train.lr": 8e-4}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def registries():
    """What a test registers is gone after it."""
    kept = [(registry, dict(registry)) for registry in (AGGREGATORS, SCALES, PAIRS)]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)


def checked(settings, **more):
    return certify(experiment.run(settings, **more).folder)


def named(certificate):
    return {check.name: check for check in certificate.checks}


@pytest.mark.parametrize("attack", ["none", "pairwise", "random", "random_class", "furthest"])
@pytest.mark.parametrize(("rho", "fraction"), [(0.0, 0.2), (0.5, 0.4), (1.0, 0.1)])
def test_softmax_regression_is_inside_the_guarantee(attack, rho, fraction):
    settings = {"attack.name": attack, "attack.rho": rho, "attack.fraction": fraction}
    certificate = checked(SOFTMAX | settings)
    assert certificate.holds
    assert certificate.covered
    assert certificate.known is not None
    assert certificate.step <= certificate.known.safe_step
    assert certificate.path.L <= certificate.known.L
    assert certificate.path.radius <= certificate.known.radius
    names = named(certificate)
    expected = {"Algorithm 1", "eq. 4, lower", "eq. 4, upper", "eq. 6", "eq. 7, lower", "eq. 7, upper", "Lemma 1, G"}
    expected |= {"Lemma 2", "Assumption 1", "L_Φ", "step size", "descent", "Theorem 2"}
    if attack != "none":
        expected |= {"Lemma 1, shift", "Lemma 1, A"}
    assert set(names) == expected
    assert names["Theorem 2"].rounds == 12
    assert names["Theorem 2"].slack > 1


@pytest.mark.parametrize("method", ["mean", "fairmean-normalised"])
def test_rules_of_the_same_kind_are_covered(method):
    certificate = checked(SOFTMAX | {"method.name": method})
    assert certificate.holds
    assert certificate.covered


def test_a_step_twenty_times_too_long():
    safe = checked(SOFTMAX)
    assert safe.holds
    certificate = checked(SOFTMAX, **{"train.lr": 20 * safe.path.safe_step, "train.rounds": 40})
    names = named(certificate)
    assert names["step size"].broken == 0
    assert names["step size"].left > 10
    assert names["descent"].broken is not None
    assert not certificate.covered
    text = words.page(certificate)
    assert "too long from round 0 on" in text
    assert f"or rose, in {names['descent'].share:.0%} of the rounds, first in round" in text


def test_an_unbounded_scale(registries):
    @register_scale("leaky")
    @dataclass(frozen=True)
    class Leaky(Scale):
        """s = 1 + κ f/τ: what FairMean would be without its bound."""

        kappa: float = 1.0
        tau: float = 1.0

        def __call__(self, losses, entropies):
            return 1 + self.kappa * losses / self.tau

    names = named(certificate := checked(SOFTMAX | {"method.name": "leaky+mean"}))
    assert names["eq. 4, upper"].broken == 0
    assert names["Algorithm 1"].broken == 0
    assert names["eq. 4, upper"].left > 2
    assert not certificate.covered
    assert "outside [1, 2]" in words.page(certificate)


def test_a_client_that_sends_anything_it_likes(registries):
    @register("intruded", reference="a test")
    @dataclass(frozen=True)
    class Intruded(CoordinateRule):
        """The mean, but client 9 sends a vector of its own from the fourth round on."""

        def init(self, n):
            return {"t": torch.zeros(())}

        def __call__(self, round, state):
            messages = round.messages.clone()
            if state["t"] >= 3:
                messages[9] = 1e3 * torch.ones_like(messages[9])
            return messages.mean(0), {"t": state["t"] + 1}

    certificate = checked(SOFTMAX | {"method.name": "fairmean+intruded"})
    names = named(certificate)
    assert names["Algorithm 1"].broken == 3
    assert names["Lemma 2"].broken == 3
    assert not certificate.covered
    text = words.page(certificate)
    assert "departed from FairMean's from round 3 on" in text
    assert "further than poisoned labels can" in text


def test_another_rule_is_told_apart():
    certificate = checked(SOFTMAX | {"method.name": "qffl"})
    assert named(certificate)["Algorithm 1"].broken == 0
    assert "are not FairMean's" in words.page(certificate)


def test_a_diverged_run_has_a_certificate():
    with pytest.raises(Diverged):
        experiment.run(SOFTMAX, **{"train.lr": 1e38, "train.rounds": 30, "run.name": "lost", "model.name": "mlp"})
    (folder,) = [path.parent for path in experiment.Path("runs/lost").glob("*/theory.csv")]
    certificate = certify(folder)
    assert not certificate.holds
    assert named(certificate)["descent"].broken is not None


def test_minibatches_leave_out_what_they_must():
    certificate = checked(SOFTMAX, **{"train.batch": 8})
    assert not {"L_Φ", "descent", "Theorem 2", "step size"} & set(named(certificate))
    assert {"Lemma 2", "eq. 6"} <= set(named(certificate))
    assert "train.batch = 8" in words.page(certificate)


def test_the_command(capsys):
    folder = str(experiment.run(SOFTMAX).folder)
    assert main(["check", folder]) == 0
    out = capsys.readouterr().out
    assert "every inequality held" in out
    assert "known beforehand" in out
    assert main(["check", folder, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["holds"] is True
    assert {check["name"] for check in record["checks"]} >= {"Lemma 2", "Theorem 2"}
    far = str(experiment.run(SOFTMAX, **{"train.lr": 1.0}).folder)
    assert main(["check", far]) == 1


def test_what_cannot_be_checked(capsys, tmp_path):
    plain = experiment.run(SOFTMAX | {"theory": False}).folder
    with pytest.raises(UserError, match=r"run it again: fairmean run .*theory=true"):
        certify(plain)
    assert main(["check", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_an_unfinished_run_is_checked_as_far_as_it_went():
    def interrupt(progress):
        if progress.round == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run(SOFTMAX, report=interrupt)
    (folder,) = [path.parent for path in experiment.Path("runs").glob("*/*/theory.csv.part")]
    certificate = certify(folder)
    assert certificate.rounds == 7
    assert certificate.holds
