"""Products of float32 matrices by oneDNN: the same numbers as PyTorch's own, wherever a round takes them."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fairmean import cpu_products
from fairmean.cpu_products import add_products, linear, matmul, quick
from fairmean.data import load
from fairmean.data.federation import build
from fairmean.engine import Simulator, Training
from fairmean.engine.fleet.fleet import Fleet
from fairmean.engine.kernels import swap
from fairmean.engine.kernels.derivatives import second_derivatives
from fairmean.engine.kernels.quick_linear import QuickLinear
from fairmean.engine.net import Net
from fairmean.models import build as build_model
from fairmean.rules.products import gram
from tests.engine.test_paths import METHODS

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="this PyTorch has no oneDNN",
)
ROUNDS = {
    "full": {},
    "batches": {"batch": 32},
    "epochs": {"batch": 32, "local_epochs": 2},
    "momentum": {"batch": 32, "local_steps": 3, "client_momentum": 0.9, "weight_decay": 0.05, "proximal": 0.3},
}


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    """Small products, too, and on every processor."""
    monkeypatch.setattr(cpu_products, "_LEAST", 0)
    monkeypatch.setattr(cpu_products, "helps", lambda: True)
    monkeypatch.setattr(swap, "helps", lambda: True)


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def near(found, right):
    return (found.double() - right).norm() <= 1e-6 * right.norm()


@pytest.mark.parametrize("turned", [False, True])
def test_matrices_wherever_they_lie(turned):
    a, b = draw(40, 5, 30)[:, 2], draw(30, 3, 20)[:, 1]
    if turned:
        a, b = draw(30, 5, 40)[:, 2].t(), draw(20, 3, 30)[:, 1].t()
    assert quick(a, b)
    assert near(matmul(a, b), a.double() @ b.double())
    room = torch.empty(40, 7, 20)[:, 3]
    matmul(a, b, out=room)
    assert near(room, a.double() @ b.double())


def test_what_is_mapped_or_differentiated_is_left_to_the_library():
    a, b = draw(3, 40, 30), draw(30, 20)
    torch.testing.assert_close(torch.func.vmap(lambda one: matmul(one, b))(a), a @ b)
    a.requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(matmul(a[0], b).sum(), a)[0][0], b.sum(1).expand(40, -1))
    many = draw(70, 500)
    right = many.double() @ many.double().T
    assert near(gram(many), right)
    assert near(torch.func.vmap(gram)(many[None])[0], right)


def test_matrices_with_gaps_are_copied_and_others_are_not():
    """oneDNN is a thousand times slower at a second matrix that lies with gaps."""
    rows, columns = draw(20, 30), draw(30, 20).t()
    assert cpu_products._dense(rows) is rows
    assert cpu_products._dense(columns) is columns
    for gaps in (draw(20, 4, 30)[:, 1], draw(30, 4, 20)[:, 1].t()):
        assert cpu_products._dense(gaps).is_contiguous()
        assert torch.equal(cpu_products._dense(gaps), gaps)


def test_batches_wherever_they_lie():
    a, b = draw(40, 5, 30).transpose(0, 1), draw(5, 20, 30).transpose(1, 2)
    right = torch.bmm(a.double(), b.double())
    assert near(matmul(a, b), right)
    room = torch.empty(40, 5, 20).transpose(0, 1)
    assert near(matmul(a, b, out=room), right)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_layers_of_all_clients_and_of_each(bias, relu):
    x, b = draw(3, 8, 30), draw(3, 20) if bias else None
    for weight in (draw(20, 30), draw(3, 20, 30)):
        own = None if b is None else b[0] if weight.dim() == 2 else b[:, None]
        right = x.double() @ weight.double().transpose(-1, -2) + (0 if own is None else own.double())
        found = linear(x, weight, own if weight.dim() == 2 else b, relu=relu)
        assert near(found, right.relu() if relu else right)


@pytest.mark.parametrize("shrink", [1.0, 0.9])
def test_sums_are_added_in_place(shrink):
    a, b = draw(3, 20, 8), draw(3, 8, 30)
    start, room = draw(20, 30), torch.full((3, 20, 30), torch.nan)
    steps = torch.bmm(a.double(), b.double())
    add_products(start.expand(3, -1, -1), a, b, shrink, -0.5, room)
    right = shrink * start.double() - 0.5 * steps
    assert near(room, right)
    add_products(room, a, b, shrink, 2.0, room)
    assert near(room, shrink * right + 2 * steps)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(9,), (4, 6)])
def test_a_layer_and_its_gradients(bias, shape):
    plain = nn.Linear(30, 20, bias=bias)
    layer, x = QuickLinear.like(plain), draw(*shape, 30).requires_grad_()
    exact, there = nn.Linear(30, 20, bias=bias).double(), x.detach().double().requires_grad_()
    exact.load_state_dict(plain.state_dict())
    assert list(dict(layer.named_parameters())) == list(dict(plain.named_parameters()))
    out, right, slope = layer(x), exact(there), draw(*shape, 20)
    assert "_Linear" in type(out.grad_fn).__name__
    assert near(out.detach(), right.detach())
    found = torch.autograd.grad(out, [x, *layer.parameters()], slope)
    wanted = torch.autograd.grad(right, [there, *exact.parameters()], slope.double())
    assert all(near(a, b) for a, b in zip(found, wanted, strict=True))
    plain.weight.requires_grad_(False)
    assert torch.autograd.grad(layer(x), x, slope)[0].shape == x.shape


def test_what_it_leaves_to_the_library(monkeypatch):
    plain = nn.Linear(30, 20)
    layer, x = QuickLinear.like(plain), draw(9, 30)
    with second_derivatives():
        gradient = torch.autograd.grad(layer(x).square().sum(), layer.weight, create_graph=True)[0]
    assert torch.autograd.grad(gradient.square().sum(), layer.weight)[0].isfinite().all()
    with pytest.raises(RuntimeError, match="second_derivatives"):
        torch.autograd.grad(layer(x).square().sum(), layer.weight, create_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(x), plain(x))
    together = torch.func.vmap(torch.func.grad(lambda row: layer(row).sum()))(x)
    torch.testing.assert_close(together, plain.weight.sum(0).expand(9, -1))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert torch.equal(layer(x), plain(x))
    assert layer.double()(x.double()).dtype == torch.float64


def test_which_layers_of_a_model_are_swapped():
    def model():
        layers = [nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)]
        layers[2].register_forward_hook(lambda *_: None)
        return nn.Sequential(nn.utils.parametrizations.weight_norm(layers[0]), *layers[1:])

    def kinds(net):
        return [isinstance(layer, QuickLinear) for layer in net.model][::2]

    names = list(dict(model().named_parameters()))
    quick_net = Net(model())
    assert list(dict(quick_net.model.named_parameters())) == names
    assert kinds(quick_net) == [False, False, True]
    assert kinds(Net(model(), swap=False)) == kinds(Net(model(), dtype=torch.float64)) == [False] * 3


@pytest.fixture(scope="module")
def federation():
    data = load("fashion-mnist-mini")
    data = replace(data, train_x=data.train_x[:500], train_y=data.train_y[:500])
    return build(data, clients=5, attack="pairwise", poisoned=[4], trust=60)


def trained(federation, name, engine="fast", **training):
    model = build_model("mlp", (28, 28), 10, 0)
    known = Training(lr=0.01, rounds=3, **training)
    simulator = Simulator(federation, model, METHODS[name], known, seed=1, dtype=torch.float32, engine=engine)
    for t in range(3):
        simulator.step(t)
    return simulator


@pytest.mark.parametrize("mode", ROUNDS)
@pytest.mark.parametrize("name", ["mean", "fairmean", "term", "krum", "cwtm"])
def test_rounds_are_those_of_the_reference(federation, name, mode):
    here, there = (trained(federation, name, engine, **ROUNDS[mode]) for engine in ("fast", "reference"))
    assert any(isinstance(layer, QuickLinear) for layer in here.net.model)
    assert not any(isinstance(layer, QuickLinear) for layer in there.net.model)
    assert (here.w - there.w).norm() <= 1e-4 * there.w.norm()
    again = trained(federation, name, **ROUNDS[mode])
    assert torch.equal(again.w, here.w)


def test_runs_that_advance_together(federation):
    alone = [trained(federation, name) for name in ("mean", "krum")]
    model = [build_model("mlp", (28, 28), 10, 0) for _ in alone]
    together = [
        Simulator(federation, one, run.method, run.training, seed=1, dtype=torch.float32)
        for one, run in zip(model, alone, strict=True)
    ]
    fleet = Fleet(together)
    assert len(fleet.parts) == 1
    for _ in fleet.rounds(0, 3, lambda t: False, lambda t: False):
        pass
    for a, b in zip(together, alone, strict=True):
        assert (a.w - b.w).norm() <= 1e-4 * b.w.norm()


@pytest.mark.parametrize("name", ["cnn", "lstm", "transformer"])
def test_other_models(name):
    """The gradients of a model whose Linear layers are swapped are those of the same one in float64."""
    shape, known = ((3, 32, 32), {}) if name == "cnn" else ((12,), {"task": "next-token", "vocabulary": 9})
    x = draw(6, *shape) if name == "cnn" else torch.randint(0, 9, (6, 12), generator=torch.Generator().manual_seed(0))
    net, exact = Net(build_model(name, shape, 9, 1, **known)), build_model(name, shape, 9, 1, **known).double()
    assert any(isinstance(layer, QuickLinear) for layer in net.model.modules())
    net.model.eval()
    exact.eval()
    net.accumulate(net.model(x).square().flatten(1).sum(1), torch.ones(6))
    exact(x.double() if name == "cnn" else x).square().sum().backward()
    for ours, theirs in zip(net.model.parameters(), exact.parameters(), strict=True):
        assert (ours.grad - theirs.grad).norm() <= 1e-4 * theirs.grad.norm()


def test_where_it_helps(monkeypatch):
    monkeypatch.undo()
    cpu_products.helps.cache_clear()
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    for capability, maker, helps in (
        ("AVX512", "vendor_id\t: AuthenticAMD", True),
        ("AVX512", "vendor_id\t: GenuineIntel", False),
        ("AVX2", "vendor_id\t: AuthenticAMD", False),
    ):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda c=capability: c)
        monkeypatch.setattr(cpu_products, "_maker", lambda m=maker: m)
        assert cpu_products.helps() is helps
        cpu_products.helps.cache_clear()
