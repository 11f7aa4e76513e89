"""Server optimisers: their formulas, in every path; one of one's own, whole, in one file."""

from pathlib import Path

import pytest
import torch

import fairmean
from fairmean import Server, UserError, gathered
from fairmean.engine.fleet.cuda_graph import Graphed
from fairmean.engine.fleet.fleet import Fleet
from fairmean.rules.optimisers import optimiser
from fairmean.terminal.main import main
from tests.engine.test_fleet import DEVICES, advance, draws
from tests.engine.test_paths import METHODS, MODES, simulate, small_cnn
from tests.own import lion

OPTIMISERS = {name: optimiser(name) for name in ("momentum", "adam", "yogi")} | {"lion": lion.Lion()}
RULES = ["mean", "fairmean-split", "term", "loss-rule", "krum", "fedmgda+", "median", "centered-clipping", "turns"]


def directions(chosen, rounds=6):
    """What a server makes of random gradients of two clients, round after round; and those gradients' means."""
    random = torch.Generator().manual_seed(1)
    server = Server("mean", chosen)
    state, taken, given = server.init(2, 5, dtype=torch.float64), [], []
    for _ in range(rounds):
        G = torch.randn(2, 5, generator=random, dtype=torch.float64)
        update = server.update(gathered(G, torch.ones(2)), state, lr=0.1)
        state = update.state
        taken.append(update.direction)
        given.append(G.mean(0))
    return taken, given


def test_momentum_is_that_of_torch():
    taken, given = directions("momentum")
    w = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    ours = torch.zeros(5, dtype=torch.float64)
    for d, g in zip(taken, given, strict=True):
        w.grad = g
        theirs.step()
        ours -= 0.1 * d
        torch.testing.assert_close(ours, w.detach())


@pytest.mark.parametrize("name", ["adam", "yogi"])
def test_adam_and_yogi_as_printed(name):
    """Reddi et al. 2021, Algorithm 2: no correction of bias, v = τ² at the start, τ beside the root."""
    taken, given = directions(name)
    m, v = torch.zeros(5, dtype=torch.float64), torch.full((5,), 1e-6, dtype=torch.float64)
    for d, g in zip(taken, given, strict=True):
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g**2 if name == "adam" else v - 0.01 * g**2 * torch.sign(v - g**2)
        torch.testing.assert_close(d, m / (v**0.5 + 1e-3))


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("mode", ["full", "local", "partial"])
def test_fast_equals_reference(name, mode):
    fed, chosen = draws()[1], {"optimiser": OPTIMISERS[name], "lr": 0.01}
    for rule in RULES:
        fast, _ = simulate(fed, METHODS[rule], 4, chunk=100, **chosen, **MODES[mode])
        slow, _ = simulate(fed, METHODS[rule], 4, engine="reference", **chosen, **MODES[mode])
        assert (fast.w - slow.w).norm() <= 1e-9 * slow.w.norm(), rule


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["pooled", "single"])
def test_together_equals_alone(device, kind):
    """Runs with several optimisers in one stack."""
    rules = [rule for rule in RULES if kind == "single" or METHODS[rule].rung <= 1]
    fed, known = draws(device)[0], {"lr": 0.01, "device": device}
    pairs = [(METHODS[rule], chosen) for rule in rules for chosen in (None, *OPTIMISERS.values())]
    group = [simulate(fed, rule, 0, optimiser=chosen, **known)[0] for rule, chosen in pairs]
    advance(Fleet(group), 5)
    for simulator, (rule, chosen) in zip(group, pairs, strict=True):
        alone, _ = simulate(fed, rule, 5, optimiser=chosen, **known)
        assert (simulator.w - alone.w).norm() <= 1e-9 * alone.w.norm(), (rule.name, chosen)
        for key, value in alone.state.optimiser.items():
            torch.testing.assert_close(simulator.state.optimiser[key], value, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RULES)
def test_graph_equals_plain(device, name, monkeypatch):
    monkeypatch.setitem(simulate.__globals__["build_model"].__globals__["MODELS"], "small", small_cnn)
    fed = draws(device)[1]
    for chosen in ("momentum", "lion"):
        known = {"model": "small", "device": device, "optimiser": OPTIMISERS[chosen], "lr": 0.01}
        graphed, _ = simulate(fed, METHODS[name], 0, **known)
        fleet = Fleet([graphed])
        if device == "cpu":
            fleet.parts = [(Graphed(graphed), [0])]
        advance(fleet, 6, 100)
        plain, _ = simulate(fed, METHODS[name], 6, **known)
        assert (graphed.w - plain.w).norm() <= 1e-9 * plain.w.norm()


def test_the_servers_step_is_its_own():
    fed = draws()[0]
    both, _ = simulate(fed, METHODS["mean"], 3, lr=0.1, local_steps=2)
    own, _ = simulate(fed, METHODS["mean"], 3, lr=0.1, local_steps=2, server_lr=0.05)
    same, _ = simulate(fed, METHODS["mean"], 3, lr=0.05, local_lr=0.1, local_steps=2)
    assert torch.equal(own.w, same.w)
    assert not torch.equal(own.w, both.w)


@pytest.mark.usefixtures("here", "forget_modules", "registries")
def test_in_one_file(own, capsys):
    Path("my_lion.py").write_text(Path(lion.__file__).read_text())
    words = ["--import", "my_lion", f"data.name={own}", "model.name=linear", "train.rounds=6"]
    assert main(["run", *words, "server.name=lion", "server.beta1=0.5", "server.lr=0.001"]) == 0
    assert main(["compare", *words, "--methods", "mean,mean:server.name=lion", "--attacks", "none"]) == 0
    assert "server.name=lion" in capsys.readouterr().out
    assert main(["list", "optimisers", "--import", "my_lion"]) == 0
    assert "sign(β₁m" in capsys.readouterr().out
    config = next(Path("runs/run").rglob("config.toml")).read_text()
    assert "sha256" in config.partition("[server]")[2].partition("[train]")[0]
    (Path("my_lion.py")).write_text(Path(lion.__file__).read_text().replace("return step", "return [step]"))
    assert main(["run", *words, "server.name=lion"]) == 2
    assert "server optimiser 'lion' (Lion) returned" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"name": "momentun"}, "unknown server optimiser 'momentun': did you mean 'momentum'"),
        ({"name": "momentum", "beta": 2.0}, "server.beta = 2.0: must be between 0 and 1"),
        ({"name": "momentum", "bta": 0.5}, "unknown hyper-parameter of the server optimiser momentum 'bta'"),
        ({"beta": 0.5}, "'plain' has no hyper-parameters"),
        ({"lr": -1.0}, "server.lr = -1.0: must be a finite number > 0"),
        ({"name": "adam", "sha256": "0"}, "server 'adam': its source"),
    ],
)
def test_mistakes_are_named(own, settings, says):
    with pytest.raises(UserError, match=says):
        fairmean.run(data={"name": own}, model={"name": "linear"}, server=settings)


@pytest.mark.usefixtures("here")
def test_what_speaks_of_plain_steps_says_so(own):
    config = {"data": {"name": own}, "model": {"name": "linear"}, "server": {"name": "momentum"}}
    with pytest.raises(UserError, match=r"server\.name=plain"):
        fairmean.run(config, theory=True)
    with pytest.raises(UserError, match=r"server\.name=plain"):
        fairmean.advise(config)
