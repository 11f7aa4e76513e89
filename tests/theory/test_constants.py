"""Constants: closed forms, power iteration, minimisers, advice, and the warning of a step that is too long."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

import fairmean
from fairmean import dispersion
from fairmean.data import load
from fairmean.data.federation import build
from fairmean.errors import UserError
from fairmean.experiments import run as experiment
from fairmean.models import build as build_model
from fairmean.terminal.main import main
from fairmean.theory.advice import down
from fairmean.theory.measure.curvature import Curves, power_iteration, random_start
from fairmean.theory.measure.jacobian import _of_linear_layers, _one_by_one, largest_jacobian
from fairmean.theory.softmax import curvature, is_softmax_regression, known, minimise


@pytest.fixture(scope="module")
def clients():
    """The embedded images on their first 12 principal directions, divided among six clients."""
    federation = build(load("fashion-mnist-mini"), clients=6)
    x = federation.x.flatten(1).double()
    x = x - x.mean(0)
    directions = torch.linalg.svd(x[::3], full_matrices=False).Vh[:12]
    x = x @ directions.T
    return [(x[a:b], federation.clean_y[a:b]) for a, b in pairwise(federation.offsets.tolist())]


@pytest.mark.parametrize("kappa", [0.5, 4.0, 64.0])
@pytest.mark.parametrize("tau", [0.1, 1.0, 10.0])
def test_theorem_1_at_minimisers(clients, kappa, tau):
    average = minimise(clients, 10)
    fair = minimise(clients, 10, kappa, tau, start=average.w)
    for found in (average, fair):
        assert found.gradient_norm <= 1e-8
        assert found.curvature > 0
    assert dispersion(fair.losses, tau) < dispersion(average.losses, tau)
    assert fair.losses.mean() >= average.losses.mean()


def test_a_minimiser_is_one(clients):
    found = minimise(clients, 10, 4.0, 0.5)
    for seed in range(3):
        step = 1e-3 * torch.randn(found.w.shape, generator=torch.Generator().manual_seed(seed)).double()
        moved = [
            torch.nn.functional.cross_entropy(torch.nn.functional.pad(x, (0, 1), value=1.0) @ (found.w + step).T, y)
            for x, y in clients
        ]
        f = torch.stack(moved)
        assert (f + 4.0 * (f - 0.5 * torch.log1p(f / 0.5))).mean().item() > found.objective


def test_classes_that_can_be_separated_have_no_minimiser():
    x = torch.tensor([[-1.0], [1.0]])
    with pytest.raises(UserError, match="separated"):
        minimise([(x, torch.tensor([0, 1]))], 2, steps=15)


def test_known_constants_bound_what_is_measured(clients):
    """Curvature of every client at random weights, and the closed form; both from the definitions."""
    model = build_model("linear", (12,), 10, 1)
    for x, y in clients[:2]:
        bound = curvature(x)
        for size in (0.0, 1.0, 10.0):
            torch.manual_seed(0)
            for p in model.parameters():
                p.data = size * torch.randn_like(p)
            here = Curves(model.double(), [(x, y)])
            hessian = torch.stack([here.product(0, v) for v in torch.eye(130, dtype=torch.float64)])
            assert torch.linalg.eigvalsh(hessian)[-1] <= bound * (1 + 1e-9)


def test_softmax_regression_is_recognised():
    assert is_softmax_regression(build_model("linear", (3, 4), 2, 1))
    assert not is_softmax_regression(build_model("mlp", (3, 4), 2, 1))
    assert not is_softmax_regression(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()))
    federation = build(load("fashion-mnist-mini"), clients=4)
    assert known(build_model("mlp", (28, 28), 10, 1), federation) is None


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_jacobians_of_linear_layers_are_those_of_every_logit(name):
    model = build_model(name, (5, 4), 3, 1).double()
    x = torch.randn(7, 5, 4, generator=torch.Generator().manual_seed(0)).double()
    slow, fast = _one_by_one(model, model, x), _of_linear_layers(model, model, x)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    largest = max(torch.linalg.eigvalsh(square)[-1].item() for square in slow) ** 0.5
    assert largest_jacobian(model, model, x) == pytest.approx(largest)


def test_jacobians_of_other_models():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 3))
    x = torch.randn(4, 1, 4, 4)
    assert _of_linear_layers(model, model, x) is None
    assert largest_jacobian(model, model, x) > 0
    twice = torch.nn.Linear(3, 3)
    assert (
        _of_linear_layers(torch.nn.Sequential(twice, twice), torch.nn.Sequential(twice, twice), x[:, 0, 0, :3]) is None
    )


def test_power_iteration():
    matrix = torch.diag(torch.tensor([1.0, -5.0, 3.0], dtype=torch.float64))
    found = power_iteration(lambda v: matrix @ v, random_start(matrix[0]), accuracy=1e-6, most=200)
    assert found.value == pytest.approx(5.0, rel=1e-4)
    assert found.settled
    assert found.vector[1].abs() == pytest.approx(1.0, abs=1e-3)
    assert power_iteration(lambda v: 0 * v, torch.ones(3)).value == 0


def test_hessian_products_are_differences_of_gradients():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    x, y = torch.randn(20, 4).double(), torch.randint(0, 3, (20,))
    curves = Curves(model, [(x[:12], y[:12]), (x[12:], y[12:])])
    v = torch.randn_like(curves.flat)
    start = [p.detach().clone() for p in curves.parameters]

    def shifted(h, what):
        at = 0
        for p, s in zip(curves.parameters, start, strict=True):
            p.data = s + h * v[at : at + p.numel()].view_as(p)
            at += p.numel()
        result = what()
        for p, s in zip(curves.parameters, start, strict=True):
            p.data = s.clone()
        return result

    h = 1e-5
    numeric = (shifted(h, lambda: curves.gradient(0)[1]) - shifted(-h, lambda: curves.gradient(0)[1])) / (2 * h)
    torch.testing.assert_close(curves.product(0, v), numeric, rtol=1e-6, atol=1e-9)

    def fair():
        pairs = [curves.gradient(i) for i in range(2)]
        return sum((1 + 2 * f / (f + 0.5)) * g for f, g in pairs) / 2

    pairs = [curves.gradient(i) for i in range(2)]
    losses, gradients = torch.stack([f for f, _ in pairs]), torch.stack([g for _, g in pairs])
    numeric = (shifted(h, fair) - shifted(-h, fair)) / (2 * h)
    torch.testing.assert_close(curves.fair_product(v, 2.0, 0.5, losses, gradients), numeric, rtol=1e-6, atol=1e-9)


def test_advice_agrees_with_closed_forms(here):
    given = fairmean.advise(samples=10**6, **{"model.name": "linear", "train.device": "cpu"})
    assert given.known is not None
    assert given.known.smoothness >= given.estimate.L
    assert np.sqrt(2) * given.known.gamma >= given.estimate.G
    assert given.estimate.gamma == pytest.approx(given.known.gamma, rel=1e-5)
    assert given.known_step(1.0, 1.0) <= given.estimate.safe_step <= given.estimate.edge
    assert given.estimate.radius(0.2, 1.0) > 2 * given.estimate.radius(0.1, 1.0)
    assert float(down(given.estimate.safe_step)) <= given.estimate.safe_step


@pytest.mark.parametrize(("value", "text"), [(0.01299, "0.012"), (1.0, "1"), (123.0, "1.2e+02"), (0.0, "0")])
def test_safe_steps_are_rounded_down(value, text):
    assert down(value) == text


def test_the_step_it_advises_is_inside_the_guarantee(here):
    settings = {"model.name": "linear", "train.device": "cpu", "train.rounds": 20}
    step = fairmean.advise(settings).estimate.safe_step
    # "safe at the start": the first step is; later curvature may be larger
    certificate = fairmean.certify(experiment.run(settings, **{"theory": True, "train.lr": step}).folder)
    assert certificate.columns["step_times_smoothness"][0] <= 1.01
    assert {check.name: check for check in certificate.checks}["descent"].holds


def test_the_command(here, capsys):
    words = ["advise", "model.name=linear", "train.device=cpu", "--samples", "50"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "safe at the start: train.lr=" in out
    assert "1/L_Φ at every w" in out
    assert main([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["grid"]) == 18
    assert main(["advise", "--samples", "0"]) == 2


def test_a_run_that_swings_is_warned_of(here, capsys):
    settings = {"model.name": "linear", "train.device": "cpu", "train.rounds": 30}
    wild = experiment.run(settings, **{"train.lr": 0.5})
    assert "times the bound 1/L_Φ" in wild.summary["warning"]
    for lr in (1e8, 1e30):  # nothing to estimate there, and no reason to end the run
        assert experiment.run(settings, **{"train.lr": lr, "train.dtype": "float64"}).summary["status"] == "finished"
    calm = experiment.run(settings, **{"train.lr": 0.02})
    assert "warning" not in calm.summary
    noisy = experiment.run(settings, **{"train.lr": 0.5, "train.batch": 8})
    assert "warning" not in noisy.summary
    assert main(["run", *(f"{key}={value}" for key, value in settings.items()), "train.lr=0.5"]) == 0
    assert "warning: the loss swings" in capsys.readouterr().out


def test_the_warning_survives_an_interruption(here):
    settings = {"model.name": "linear", "train.device": "cpu", "train.rounds": 30, "train.lr": 0.5}
    whole = experiment.run(settings, **{"run.dir": "whole"})
    for stop in (10, 28):

        def interrupt(progress, stop=stop):
            if progress.round == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            experiment.run(settings, report=interrupt, **{"run.dir": f"parts{stop}"})
        assert experiment.run(settings, **{"run.dir": f"parts{stop}"}).summary == whole.summary
