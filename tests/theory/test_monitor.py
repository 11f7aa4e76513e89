"""The monitor's figures equal a plain computation from the definitions; it changes nothing; it resumes exactly."""

import csv
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fairmean.errors import UserError
from fairmean.experiments import run as experiment
from fairmean.experiments.building import build_simulator
from fairmean.experiments.config import gather, parse
from fairmean.experiments.identity import resolve
from fairmean.experiments.study import compare
from fairmean.theory.certificate import read
from fairmean.theory.measure.curvature import Curves, power_iteration, random_start
from fairmean.theory.measure.monitor import MEASURED, Monitor
from fairmean.transform import dispersion, marginal_weight, phi

pytestmark = pytest.mark.usefixtures("here")

SMALL = {
    "theory": True,
    "train.device": "cpu",
    "train.rounds": 4,
    "partition.clients": 5,
    "attack.clients": [1, 4],
    "attack.rho": 0.7,
    "model.name": "linear",
}


def config(**settings):
    return resolve(parse(gather(None, SMALL | settings)))


def table(folder):
    with open(folder / "theory.csv", newline="") as file:
        return list(csv.DictReader(file))


def by_hand(simulator, w, kappa, tau, previous=None):
    """Everything from the definitions, client by client, in plain PyTorch; the direction is the mean of a(f) g."""
    federation, net = simulator.federation, simulator.net
    names = [name for name, _ in net.model.named_parameters()]

    def loss_and_gradient(client, labels):
        rows = slice(*federation.offsets[client : client + 2].tolist())
        parameters = [view.clone().requires_grad_() for view in net.views(w)]
        logits = functional_call(net.model, dict(zip(names, parameters, strict=True)), (federation.x[rows],))
        loss = F.cross_entropy(logits, labels[rows])
        return loss.detach(), torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    n, regular = federation.clients, torch.from_numpy(federation.regular)
    f, g = map(torch.stack, zip(*(loss_and_gradient(i, federation.y) for i in range(n)), strict=True))
    clean = torch.stack([loss_and_gradient(i, federation.clean_y)[1] for i in range(n)])
    a = marginal_weight(f, kappa, tau)
    mean, fair = g[regular].mean(0), (a[:, None] * g)[regular].mean(0)
    direction = (a[:, None] * g).mean(0)
    values = {
        "clients": n,
        "poisoned": int((~regular).sum()),
        "objective": phi(f[regular], kappa, tau).mean(),
        "mean_loss": f[regular].mean(),
        "largest_loss": f[regular].max(),
        "dispersion": dispersion(f[regular], tau),
        "variance": f[regular].var(correction=0),
        "gradient": fair.norm(),
        "direction": direction.norm(),
        "error": (direction - fair).norm(),
        "regular_gradient": g[regular].norm(dim=1).max(),
    }
    if not regular.all():
        values |= {
            "poisoned_distance": (g[~regular] - mean).norm(dim=1).max(),
            "clean_distance": (clean[~regular] - mean).norm(dim=1).max(),
            "relabelling_shift": (g[~regular] - clean[~regular]).norm(dim=1).max(),
        }
    mine = (a[:, None] * g)[regular].sum(0) / a[regular].sum()
    values |= {
        "poisoned_share": a[~regular].sum() / a.sum(),
        "moved": (direction * n / a.sum() - mine).norm(),
        "poisoned_reach": (g[~regular] - mine).norm(dim=1).max() if not regular.all() else 0.0,
        "own_direction": mine.norm(),
    }
    if previous is not None:
        w0, g0, fair0 = previous
        values["secant"] = (g - g0)[regular].norm(dim=1).max() / (w - w0).norm()
        values["objective_secant"] = (fair - fair0).norm() / (w - w0).norm()
    return values, (w.clone(), g, fair), direction


@pytest.mark.parametrize("attack", ["none", "pairwise", "random"])
@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_measured_is_what_the_definitions_say(attack, model, own):
    settings = {
        "data.name": own,
        "train.dtype": "float64",
        "model.name": model,
        "attack.name": attack,
        "method.kappa": 2.0,
    }
    simulator = build_simulator(config(**settings))
    simulator.watch(Monitor, 2)
    previous = None
    for t in range(3):
        w = simulator.w.clone()
        expected, previous, direction = by_hand(simulator, w, 2.0, 1.0, previous)
        measured = dict(zip(MEASURED, simulator.step(t).measured.tolist(), strict=True))
        for name, value in expected.items():
            assert measured[name] == pytest.approx(float(value), rel=1e-8, abs=1e-14), name
        assert measured["departure"] <= 1e-14
        assert measured["step"] == pytest.approx(0.1)
        torch.testing.assert_close(simulator.w, w - 0.1 * direction, rtol=1e-9, atol=1e-12)
        assert math.isnan(measured["secant"]) == (t == 0)
        assert math.isnan(measured["jacobian"]) == (t == 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
@pytest.mark.parametrize("name", ["fairmean", "krum"])
def test_a_gpu_measures_the_same(name):
    simulators = [
        build_simulator(config(**{"train.dtype": "float64", "method.name": name, "train.device": device}))
        for device in ("cpu", "cuda")
    ]
    for simulator in simulators:
        simulator.watch(Monitor, 1)
    for t in range(3):
        here, there = (simulator.step(t).measured for simulator in simulators)
        torch.testing.assert_close(there.cpu(), here, rtol=1e-8, atol=1e-14, equal_nan=True)


def test_jacobian_of_softmax_regression_is_the_largest_input():
    simulator = build_simulator(config(**{"train.dtype": "float64", "model.name": "linear"}))
    simulator.watch(Monitor, 1)
    x = simulator.federation.x.flatten(1)
    assert simulator.monitor.jacobian().item() == pytest.approx((x.square().sum(1).max() + 1).sqrt().item())


@pytest.mark.parametrize("name", ["fairmean", "mean", "fairmean-normalised", "krum", "median"])
def test_watching_changes_nothing(name):
    plain, watched = (build_simulator(config(**{"method.name": name, "train.dtype": "float64"})) for _ in range(2))
    watched.watch(Monitor, 1)
    for t in range(3):
        plain.step(t)
        measured = dict(zip(MEASURED, watched.step(t).measured.tolist(), strict=True))
    assert (plain.w - watched.w).norm() <= 1e-9 * plain.w.norm()
    assert (measured["departure"] < 1e-9) == (name not in ("krum", "median"))


def test_the_normalised_form_has_a_shorter_step():
    simulator = build_simulator(config(**{"method.name": "fairmean-normalised", "train.dtype": "float64"}))
    simulator.watch(Monitor, 1)
    step = simulator.step(0)
    weights = marginal_weight(step.losses, 1.0, 1.0)
    assert step.measured[MEASURED.index("step")] == pytest.approx(0.1 / weights.mean().item())


@pytest.mark.parametrize(
    "settings",
    [
        {"train.batch": 16},
        {"train.participation": 0.6},
        {"attack.name": "furthest"},
        {"method.name": "term-hierarchical"},
    ],
    ids=str,
)
def test_other_modes_are_measured_too(settings):
    result = experiment.run(SMALL | {"model.name": "linear"}, **settings)
    rows = table(result.folder)
    assert [int(row["round"]) for row in rows] == [0, 1, 2, 3, 4]
    static = not any(key.startswith("train.") for key in settings)
    assert all((row["secant"] != "") == static for row in rows[1:])
    assert all(float(row["gradient"]) > 0 for row in rows)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_curvature_is_that_of_the_steepest_regular_client(model, own):
    simulator = build_simulator(config(**{"data.name": own, "model.name": model}))
    simulator.watch(Monitor, 1)
    for t in range(2):
        simulator.step(t)
    fed = simulator.federation
    measured = dict(zip(MEASURED, simulator.look(2).tolist(), strict=True))["curvature"]
    parts = [slice(*fed.offsets[i : i + 2].tolist()) for i in range(5) if fed.regular[i]]
    curves = Curves(simulator.net.model, [(fed.x[part], fed.y[part]) for part in parts])
    found = [power_iteration(partial(curves.product, i), random_start(simulator.w), 60, 1e-3) for i in range(3)]
    largest = max(eigen.value for eigen in found)
    assert 0.9 * largest <= measured <= 1.02 * largest


def test_what_is_summed_up_on_the_way():
    """L, α L_Φ and both sides of Theorem 2, from the other columns."""
    folder = experiment.run(SMALL, **{"train.rounds": 6, "train.lr_decay": 0.9, "model.name": "linear"}).folder
    c = {name: values[:-1] for name, values in read(folder)[0].items()}  # the last row has no step
    c["secant"] = np.fmax(c["secant"], c["curvature"])
    L, G, A = (np.fmax.accumulate(np.nan_to_num(c[n])) for n in ("secant", "regular_gradient", "poisoned_distance"))
    np.testing.assert_allclose(c["step"], 0.1 * 0.9 ** np.arange(6))
    np.testing.assert_allclose(c["smoothness"], L)
    np.testing.assert_allclose(c["step_times_smoothness"], c["step"] * (2 * L + G**2))
    total = c["step"].cumsum()
    np.testing.assert_allclose(c["stationarity"], (c["step"] * c["gradient"] ** 2).cumsum() / total)
    epsilon = 0.4 * (2 * A + 2 * G)
    np.testing.assert_allclose(c["bound"], 2 * c["objective"][0] / total + epsilon**2)


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_an_interrupted_run_has_the_same_table(stop, monkeypatch):
    whole = experiment.run(SMALL, **{"run.dir": "whole"})

    def interrupt(progress):
        if progress.round == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment.run(SMALL, report=interrupt, **{"run.dir": "parts"})
    parts = experiment.run(SMALL, **{"run.dir": "parts"})
    assert (parts.folder / "theory.csv").read_bytes() == (whole.folder / "theory.csv").read_bytes()
    assert parts.summary == whole.summary


def test_a_run_without_theory_has_no_such_table():
    result = experiment.run(SMALL | {"theory": False, "model.name": "linear"})
    assert not list(result.folder.glob("theory*"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"train.local_steps": 2}, "train.local_steps = 2"),
        ({"train.local_epochs": 1, "train.batch": 32}, "train.local_epochs = 1"),
        ({"train.weight_decay": 1.0}, "train.weight_decay = 1.0"),
        ({"train.engine": "reference"}, "train.engine=fast"),
    ],
)
def test_what_cannot_be_watched(settings, says):
    with pytest.raises(UserError, match=says):
        experiment.run(SMALL | settings)


def test_a_comparison_is_watched_run_by_run():
    settings = {key: value for key, value in SMALL.items() if key != "attack.rho"} | {"model.name": "linear"}
    found = compare(methods=["mean", "fairmean"], attacks=["pairwise"], together=4, **settings)
    for record in found.records:
        assert (np.genfromtxt(f"{record['folder']}/theory.csv", delimiter=",", names=True)["error"][:4] > 0).all()
