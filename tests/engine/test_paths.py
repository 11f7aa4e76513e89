"""Every fast path equals the reference loop; poisoning, client order and κ = 0 behave as defined."""

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fairmean import LossRule, Method, Objective, Scale, compose, fair_objective, method
from fairmean.data import Dataset, load
from fairmean.data.federation import Federation, build
from fairmean.engine import Simulator, Training
from fairmean.engine.layers.linear import at_once
from fairmean.engine.net import Net
from fairmean.engine.scoring import relabelled
from fairmean.models import build as build_model
from fairmean.rules.named import named_methods
from fairmean.rules.scales import FairMean, Unscaled
from fairmean.rules.servers.means import Mean
from tests.own.small_losses import SmallLosses, SmallLossesTilted
from tests.own.turns import Judged, Trusted

MODES = {
    "full": {},
    "minibatch": {"batch": 16},
    "local": {"batch": 16, "local_steps": 3},
    "local-full": {"local_steps": 2, "local_lr": 0.03},
    "partial": {"participation": 0.5, "lr_decay": 0.9},
    "cosine": {"schedule": "cosine", "batch": 8},
}


@dataclass(frozen=True)
class Tilted(LossRule):
    """A rule on the second rung: λ ∝ exp(f)."""

    def weights(self, round):
        return torch.softmax(round.losses, 0)


@dataclass(frozen=True)
class Uncertain(Scale):
    """A scale that uses entropy, in the normalised form."""

    needs_entropy = True
    normalised = True

    def __call__(self, losses, means, context):
        return 1 + means["entropy"] / (1 + losses)


@dataclass(frozen=True)
class Generalised(Objective):
    """ℓ = (1 − p_y^q)/q: generalised cross-entropy (Zhang & Sabuncu 2018)."""

    q: float = 0.7

    def losses(self, logits, y, context):
        return (1 - (-self.q * F.cross_entropy(logits, y, reduction="none")).exp()) / self.q


@dataclass(frozen=True)
class Holiday(Scale):
    """Everybody is out in every other round."""

    normalised = True

    def __call__(self, losses, means, context):
        return torch.where(context.t % 2 == 1, 0.0, 1 + losses)


def with_one(name):
    """The method, assuming one poisoned client where it assumes any."""
    return method(name, **({"f": 1} if "f" in named_methods()[name].hyper else {}))


METHODS = {name: with_one(name) for name in named_methods()} | {
    "nnm+median": compose("fairmean", "median", pre=["clip", "nnm"], f=1, radius=0.5),
    "nnm+mean": compose("qffl", "mean", pre="nnm", f=1),
    "loss-rule": Method("loss-rule", Unscaled(), Tilted()),
    "entropy": Method("entropy", Uncertain(), Mean()),
    "entropy+loss": Method("entropy+loss", Uncertain(), Tilted()),
    "gce": Method("gce", FairMean(), Mean(), objective=Generalised()),
    "gce+loss": Method("gce+loss", Unscaled(), Tilted(), objective=Generalised(0.3)),
    "gce+krum": Method("gce+krum", FairMean(), method("krum", f=1).aggregator, objective=Generalised()),
    "gce+cwtm": Method("gce+cwtm", FairMean(), method("cwtm", f=1).aggregator, objective=Generalised()),
    "turns": Method("turns", Trusted(), Mean(), objective=Judged()),
    "turns+loss": Method("turns+loss", Trusted(), Tilted(), objective=Judged()),
    "turns+rfa": Method("turns+rfa", Trusted(), method("rfa").aggregator, objective=Judged()),
    "turns+median": Method("turns+median", Trusted(), method("median").aggregator, objective=Judged()),
    "turns+clipping": Method("turns+clipping", Trusted(), method("centered-clipping").aggregator, objective=Judged()),
    "holiday": Method("holiday", Holiday(), Mean()),
    "weights": Method("weights", FairMean(), Mean(), objective=SmallLosses()),
    "weights+loss": Method("weights+loss", Unscaled(), Tilted(), objective=SmallLossesTilted()),
    "weights+krum": Method("weights+krum", FairMean(), method("krum", f=1).aggregator, objective=SmallLosses()),
    "weights+cwtm": Method("weights+cwtm", FairMean(), method("cwtm", f=1).aggregator, objective=SmallLossesTilted()),
}


@pytest.fixture(scope="module")
def images():
    data = load("fashion-mnist-mini")
    return replace(data, train_x=data.train_x[:700], train_y=data.train_y[:700])


@pytest.fixture(scope="module", params=["pairwise", "furthest"])
def federation(images, request):
    return build(images, clients=6, attack=request.param, poisoned=np.array([4, 5]), rho=0.7, trust=60)


def small_cnn(shape, classes):
    return nn.Sequential(
        nn.Unflatten(1, (1, shape[0])),
        nn.Conv2d(1, 4, 5, stride=3),
        nn.ReLU(),
        nn.Dropout2d(0.3),
        nn.Flatten(),
        nn.Linear(4 * 8 * 8, 12),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(12, classes),
    )


def narrow(shape, classes):
    """The layers of the paper's MLP, a tenth as wide: where no kernel is chosen by width, they take the same paths."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, classes)
    )


NARROW = f"{__name__}:narrow"
MLP = "mlp" if torch.cuda.is_available() else NARROW


def simulate(federation, rule, rounds=3, model=MLP, dtype=torch.float64, **options):
    chosen = {key: options.pop(key) for key in list(options) if key in Training.__dataclass_fields__}
    net = build_model(model, federation.shape, federation.classes, 3)
    simulator = Simulator(
        federation, net, rule, Training(**{"lr": 0.1, "rounds": 10} | chosen), dtype=dtype, seed=3, **options
    )
    steps = [simulator.step(t) for t in range(rounds)]
    return simulator, steps[-1] if steps else None


@pytest.mark.parametrize("mode", ["full", "minibatch"])
@pytest.mark.parametrize("name", ["fairmean", "krum", "cwtm"])
def test_labels_that_follow_the_models_mistakes(images, name, mode):
    """Poisoned clients say at every step what the model would most easily mistake a sample for."""
    fed = build(images, clients=6, attack="adaptive", poisoned=np.array([4, 5]), rho=0.7)
    fast, slow = (simulate(fed, METHODS[name], engine=engine, **MODES[mode])[0] for engine in ("fast", "reference"))
    assert (fast.w - slow.w).norm() <= 1e-9 * slow.w.norm()
    outputs = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert relabelled(torch.tensor([0, 1, 2]), outputs, torch.tensor([0, 0, 0])).tolist() == [0, 2, 1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("model", [NARROW, pytest.param("mlp", marks=pytest.mark.exhaustive)], ids=["narrow", "mlp"])
def test_fast_equals_reference(federation, name, mode, model):
    rule = METHODS[name]
    # in float32 one round: over several, a choice (a label, a client to drop) can fall either way on a rounding error
    for dtype, tolerance, rounds in ((torch.float64, 1e-9, 3), (torch.float32, 1e-4, 1)):
        fast, a = simulate(federation, rule, rounds, model, dtype, chunk=100, **MODES[mode])
        slow, b = simulate(federation, rule, rounds, model, dtype, engine="reference", **MODES[mode])
        assert (a.clients == b.clients).all()
        assert (fast.w - slow.w).norm() <= tolerance * slow.w.norm()
        torch.testing.assert_close(a.losses, b.losses, rtol=tolerance, atol=tolerance)
        if b.weights is not None:
            torch.testing.assert_close(a.weights, b.weights, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["fairmean", "loss-rule", "qffl-normalised"])
def test_convolutions_and_dropout(federation, name, mode, monkeypatch):
    monkeypatch.setitem(build_model.__globals__["MODELS"], "small", small_cnn)
    fast, _ = simulate(federation, METHODS[name], model="small", chunk=50, **MODES[mode])
    slow, _ = simulate(federation, METHODS[name], model="small", engine="reference", **MODES[mode])
    assert (fast.w - slow.w).norm() <= 1e-9 * slow.w.norm()


def test_linear_layers_of_all_clients_at_once():
    """What a GPU does for clients with equally many rows."""
    x, delta = torch.randn(12, 5, dtype=torch.float64), torch.randn(12, 4, dtype=torch.float64)
    weight, bias = at_once(x, delta, 3, torch.float64)
    for k in range(3):
        rows = slice(4 * k, 4 * k + 4)
        torch.testing.assert_close(weight[k], delta[rows].T @ x[rows])
        torch.testing.assert_close(bias[k], delta[rows].sum(0))


def test_rows_of_a_matrix_as_parameters():
    net = Net(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)))
    matrix = torch.randn(5, len(net.flat))
    for i in range(4):
        for row, part in zip(matrix, net.rows(matrix, i), strict=True):
            assert torch.equal(net.view(row, i), part)


@pytest.mark.parametrize("name", ["loss-rule", "entropy+loss", "fairmean"])
def test_recomputed_forward_equals_kept(federation, name):
    kept, _ = simulate(federation, METHODS[name], chunk=64, memory=1.0)
    recomputed, _ = simulate(federation, METHODS[name], chunk=64, memory=0.0)
    torch.testing.assert_close(kept.w, recomputed.w, rtol=0, atol=0)


@pytest.mark.parametrize("mode", MODES)
def test_kappa_zero_is_mean_bit_for_bit(federation, mode):
    for engine in ("fast", "reference"):
        plain, _ = simulate(federation, method("mean"), dtype=torch.float32, engine=engine, **MODES[mode])
        fair, _ = simulate(federation, method("fairmean", kappa=0.0), dtype=torch.float32, engine=engine, **MODES[mode])
        assert torch.equal(plain.w, fair.w)


@pytest.mark.parametrize("name", ["mean", "fairmean", "qffl", "qffl-normalised"])
@pytest.mark.parametrize("mode", MODES)
def test_poisoned_client_is_an_honest_client_on_relabelled_data(images, name, mode):
    poisoned = build(images, clients=6, attack="random", poisoned=np.array([1, 4]))
    labels = images.train_y.copy()
    labels[poisoned.rows] = poisoned.y.numpy()
    owners = np.repeat(np.arange(6), poisoned.sizes)[np.argsort(poisoned.rows)]
    honest = build(replace(images, train_y=labels, train_clients=owners), partition_name="given", clients=6)
    relabelled = replace(honest, test_x=poisoned.test_x)  # test data follows labels: of no consequence for training
    assert relabelled.regular.all()
    assert (poisoned.y != poisoned.clean_y).any()
    one, _ = simulate(poisoned, method(name), **MODES[mode])
    other, _ = simulate(relabelled, method(name), **MODES[mode])
    clean, _ = simulate(build(images, clients=6), method(name), **MODES[mode])
    assert torch.equal(one.w, other.w)
    assert not torch.equal(one.w, clean.w)


def reorder(federation: Federation, order: list[int]) -> Federation:
    parts = [np.arange(federation.offsets[i], federation.offsets[i + 1]) for i in order]
    rows = torch.from_numpy(np.concatenate(parts))
    return replace(
        federation,
        x=federation.x[rows],
        y=federation.y[rows],
        dynamic=None if federation.dynamic is None else federation.dynamic[rows],
        offsets=np.cumsum([0, *map(len, parts)]),
        regular=federation.regular[order],
    )


@pytest.mark.parametrize(
    "name", [name for name in METHODS if not name.startswith(("turns", "fairmean-recess"))]
)  # by id
def test_client_order_does_not_matter(federation, name):
    order = [3, 0, 5, 1, 4, 2]
    one, a = simulate(federation, METHODS[name])
    other, b = simulate(reorder(federation, order), METHODS[name])
    assert (one.w - other.w).norm() <= 1e-9 * one.w.norm()
    if a.weights is not None:
        torch.testing.assert_close(b.weights, a.weights[order], rtol=1e-9, atol=1e-12)


def test_gradient_is_the_gradient_of_the_objective(federation):
    """One FairMean step against autograd on Σ φ(f_i)/n written out, at the initial model."""
    federation = replace(federation, dynamic=None)
    simulator, _ = simulate(federation, method("fairmean", kappa=3.0, tau=0.5), rounds=0)
    before = simulator.w.clone()
    simulator.step(0)
    net = build_model(MLP, federation.shape, 10, 3).double()
    losses = nn.functional.cross_entropy(net(federation.x.double()), federation.y, reduction="none")
    owner = torch.repeat_interleave(torch.arange(6), torch.from_numpy(federation.sizes))
    fair_objective(losses, owner, 3.0, 0.5).backward()
    expected = torch.cat([p.grad.flatten() for p in net.parameters()])
    torch.testing.assert_close((before - simulator.w) / 0.1, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", ["local", "partial"])
@pytest.mark.parametrize("name", ["fairmean", "bant", "fedmdfg", "centered-clipping", "turns", "turns+clipping"])
def test_resume_from_any_round_is_exact(federation, name, mode):
    """Model and state are all a run carries from round to round."""
    rule = METHODS[name]
    whole, _ = simulate(federation, rule, rounds=6, dtype=torch.float32, **MODES[mode])
    half, _ = simulate(federation, rule, rounds=3, dtype=torch.float32, **MODES[mode])
    again, _ = simulate(federation, rule, rounds=0, dtype=torch.float32, **MODES[mode])
    again.w.copy_(half.w)
    if name != "fairmean":
        again.step(3)
        assert not torch.equal(again.w, whole.w)  # the state matters
        again, _ = simulate(federation, rule, rounds=0, dtype=torch.float32, **MODES[mode])
    again.restore(half.snapshot(), 3)
    for t in range(3, 6):
        again.step(t)
    assert torch.equal(again.w, whole.w)
    assert all(torch.equal(again.state.rule[key], whole.state.rule[key]) for key in whole.state.rule)


def test_local_steps_draw_fresh_dropout_masks(federation, monkeypatch):
    monkeypatch.setitem(build_model.__globals__["MODELS"], "small", small_cnn)
    simulator, _ = simulate(federation, method("mean"), rounds=0, model="small", local_steps=3)
    clients = simulator.participants(0)
    assert len({simulator.feed(step, clients).key for step in range(3)}) == 3
    steps = [simulator.feed(step, clients) for step in range(3)]
    assert len({step.key for step in steps}) == 3


def test_a_far_off_model_is_no_reason_for_nan(federation):
    """Excess losses of hundreds at every client: the fused path stays finite, as the reference does."""
    far = replace(federation, x=federation.x * 1000)
    rule = method("fairmean-split")
    fast, _ = simulate(far, rule, rounds=1, dtype=torch.float32)
    slow, _ = simulate(far, rule, rounds=1, dtype=torch.float32, engine="reference")
    assert slow.w.isfinite().all()
    assert fast.w.isfinite().all()


class Reused(nn.Module):
    """A parameter that is never used, one that is used twice, and a shared dropout."""

    def __init__(self, shape, classes):
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(784, 16), nn.Linear(16, 16), nn.Linear(16, classes)
        self.unused = nn.Parameter(torch.ones(3))
        self.drop = nn.Dropout(0.2)
        self.body = nn.Sequential(nn.Flatten(), self.first, nn.ReLU(inplace=True), self.drop, self.twice, self.drop)

    def forward(self, x):
        return self.last(self.twice(self.body(x)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["fairmean", "krum", "cwtm", "term-hierarchical"])
def test_models_that_are_not_plain(federation, name, mode, monkeypatch):
    monkeypatch.setitem(build_model.__globals__["MODELS"], "reused", Reused)
    fast, _ = simulate(federation, METHODS[name], model="reused", chunk=100, **MODES[mode])
    slow, _ = simulate(federation, METHODS[name], model="reused", engine="reference", **MODES[mode])
    assert (fast.w - slow.w).norm() <= 1e-9 * slow.w.norm()
    assert not any(type(m) is nn.Dropout for m in fast.net.model.modules())


def test_evaluation_counts_hits_per_client(federation):
    simulator, _ = simulate(federation, method("mean"))
    clean, own = simulator.evaluate()
    simulator.net.model.eval()
    predicted = simulator.net.model(simulator.federation.test_x).argmax(1)
    for k in range(6):
        mine = slice(*federation.test_offsets[k : k + 2])
        assert clean[k] == pytest.approx(100 * (predicted[mine] == federation.test_y[mine]).double().mean().item())
    assert (clean[:4] == own[:4]).all()


def test_client_without_test_data_is_nan():
    x, y = np.zeros((40, 2), np.float32), np.arange(40) % 2
    tiny = Dataset("tiny", x, y, x[:2], y[:2], 2)
    simulator, _ = simulate(build(tiny, partition_name="iid", clients=10), method("mean"), model="linear")
    assert np.isnan(simulator.evaluate()[0]).sum() == 8
