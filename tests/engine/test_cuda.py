"""On a GPU every method gives what it gives on the CPU, in every training mode; skipped where there is none."""

from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fairmean import GramRule, LossRule, Method
from fairmean.data import load
from fairmean.data.federation import build
from fairmean.engine.fleet.fleet import Fleet
from fairmean.engine.kernels.conv_pool import PooledConv
from fairmean.engine.kernels.dropout import FusedDropout
from fairmean.engine.kernels.local_update import add_products
from fairmean.engine.kernels.norm import FusedNorm
from fairmean.engine.kernels.pool import NarrowConv, PooledReLU
from fairmean.engine.kernels.swap import accelerate
from fairmean.engine.layers.hooks import Capture
from fairmean.engine.net import Net
from fairmean.engine.precision import PRECISIONS
from fairmean.engine.server import ServerState
from fairmean.engine.simulator import on
from fairmean.models import Dropout
from fairmean.models import build as build_model
from fairmean.rules.scales import Unscaled
from fairmean.theory.measure.curvature import Curves
from tests.engine.test_paths import METHODS, MODES, simulate, small_cnn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.fixture(scope="module", params=["pairwise", "furthest"])
def federation(request):
    data = load("fashion-mnist-mini")
    return build(data, clients=6, attack=request.param, poisoned=np.array([4, 5]), rho=0.7, trust=60)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", METHODS)
def test_cuda_equals_cpu(federation, name, mode):
    here, a = simulate(federation, METHODS[name], **MODES[mode])
    there, b = simulate(federation, METHODS[name], device="cuda", **MODES[mode])
    assert there.w.is_cuda
    assert (there.w.cpu() - here.w).norm() <= 1e-9 * here.w.norm()
    torch.testing.assert_close(b.losses.cpu(), a.losses, rtol=1e-9, atol=1e-9)
    if a.weights is not None:
        torch.testing.assert_close(b.weights.cpu(), a.weights, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(there.evaluate(), here.evaluate())


@pytest.mark.parametrize("name", ["fairmean", "krum", "cwtm"])
def test_convolutions_and_dropout(federation, name, monkeypatch):
    monkeypatch.setitem(simulate.__globals__["build_model"].__globals__["MODELS"], "small", small_cnn)
    here, _ = simulate(federation, METHODS[name], model="small")
    there, _ = simulate(federation, METHODS[name], model="small", device="cuda")
    # convolution weights lie in another order on the CPU: compare as parameters
    for p, q in zip(here.net.model.parameters(), there.net.model.parameters(), strict=True):
        torch.testing.assert_close(q.cpu(), p, rtol=1e-8, atol=1e-10)


def test_resume_on_cuda(federation):
    whole, _ = simulate(federation, METHODS["bant"], rounds=4, device="cuda", dtype=torch.float32)
    half, _ = simulate(federation, METHODS["bant"], rounds=2, device="cuda", dtype=torch.float32)
    again, _ = simulate(federation, METHODS["bant"], rounds=0, device="cuda", dtype=torch.float32)
    again.w.copy_(half.w)
    again.state = ServerState(*(on(part, "cpu") for part in half.state))
    for t in (2, 3):
        again.step(t)
    assert torch.equal(again.w, whole.w)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pooling_kernel(dtype):
    """Values and gradients of relu(max_pool2d), ties and zeros included."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (5, 7, 12, 6), generator=draw).to("cuda", dtype).requires_grad_()
    ours, theirs = PooledReLU()(x), torch.relu(torch.nn.functional.max_pool2d(x, 2))
    weights = torch.randn(ours.shape, generator=draw).to("cuda", dtype)
    assert torch.equal(ours, theirs)
    assert torch.equal(*(torch.autograd.grad(y, x, weights)[0] for y in (ours, theirs)))
    assert PooledReLU()(torch.full((1, 1, 2, 2), torch.nan, device="cuda")).isnan().all()


def test_narrow_convolution():
    draw = torch.Generator().manual_seed(0)
    plain = torch.nn.Conv2d(3, 64, 5).cuda()
    narrow, x = NarrowConv.like(plain), torch.randn(9, 3, 32, 32, generator=draw).cuda()
    weights = torch.randn(9, 64, 28, 28, generator=draw).cuda()
    exact = torch.autograd.grad(plain(x), list(plain.parameters()), weights)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = narrow(x)
    assert out.dtype == torch.bfloat16
    assert (out - plain(x)).norm() <= 1e-2 * plain(x).norm()
    for ours, theirs in zip(
        torch.autograd.grad(out, list(narrow.parameters()), weights.bfloat16()), exact, strict=True
    ):
        assert (ours - theirs).norm() <= 1e-2 * theirs.norm()


@pytest.mark.parametrize(
    ("channels", "units", "side", "bias"),
    [(3, 64, 5, True), (1, 20, 3, False), (3, 70, 5, True), (64, 64, 5, True), (16, 24, 3, False), (8, 72, 3, True)],
)
def test_pooled_convolution(channels, units, side, bias):
    """Values, gradients, and every client's gradients, for clients of one size and of several."""
    draw, wide = torch.Generator().manual_seed(0), channels >= 8
    plain, x = torch.nn.Conv2d(channels, units, side, bias=bias), torch.empty(40, channels, 16, 17)  # an odd side
    for values in (x, *(p.data for p in plain.parameters())):
        if wide:  # small whole numbers: sums are exact in bfloat16, and so is which of four is the largest
            values.copy_(torch.randint(-1, 2, values.shape, generator=draw))
        else:
            values.normal_(generator=draw)
    pooled, x = PooledConv.like(plain.cuda()), x.cuda().bfloat16().requires_grad_(wide)
    rounded = deepcopy(plain).double()
    rounded.weight.data = plain.weight.data.bfloat16().double()
    if bias:
        rounded.bias.data = plain.bias.data.bfloat16().double()
    there = x.detach().double().requires_grad_()
    exact = torch.relu(torch.nn.functional.max_pool2d(rounded(there), 2))
    weights = torch.randn(exact.shape, generator=draw).bfloat16().cuda()

    def theirs(rows, *more):
        wanted = [*more, *rounded.parameters()]
        return torch.autograd.grad(exact[rows], wanted, weights[rows].double(), retain_graph=True)

    def near(ours, right):
        assert (ours - right).norm() <= 4e-3 * right.norm()

    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = pooled(x)
    assert (out - exact).norm() <= 4e-3 * exact.norm()
    inputs = [x] if x.requires_grad else []
    found = torch.autograd.grad(out, [*inputs, *pooled.parameters()], weights)
    for ours, right in zip(found, theirs(slice(None), *([there] if inputs else [])), strict=True):
        near(ours, right)
    pooled.capturing = True
    with torch.autocast("cuda", dtype=torch.bfloat16):
        pooled(x)
    for bounds in ([0, 10, 20, 30], [0, 1, 32, 40]):
        found = pooled.client_gradients(weights, bounds)
        for k in range(3):
            for ours, right in zip(found, theirs(slice(bounds[k], bounds[k + 1])), strict=False):
                near(ours[k], right)
    assert torch.equal(pooled(x.float()), PooledReLU()(plain(x.float())))  # at full precision by the library
    assert pooled.kept is None


def test_fused_dropout_has_the_same_masks():
    for p in (0.2, 0.5, 0.37):
        plain = Dropout(p, 2 * 0x632BE5AB)
        fused = FusedDropout.like(plain)
        rows, x = torch.arange(49_000, 49_300), torch.randn(300, 384, requires_grad=True)
        there = x.detach().cuda().requires_grad_()
        plain.rows, plain.key = rows, 0xFFFFFF01
        fused.rows, fused.key = rows.cuda(), torch.tensor(0xFFFFFF01, device="cuda")
        a, b = plain(x), fused(there)
        torch.testing.assert_close(b.cpu(), a)
        (of_a,), (of_b,) = torch.autograd.grad(a.sum(), x), torch.autograd.grad(b.sum(), there)
        torch.testing.assert_close(of_b.cpu(), of_a)


def test_accelerated_model_is_the_model():
    x = torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    plain, swapped = (build_model("cnn", (3, 32, 32), 10, 1).cuda().eval() for _ in range(2))
    accelerate(swapped, PRECISIONS["float32"])
    assert sum(isinstance(m, PooledReLU) for m in swapped) == 2
    torch.testing.assert_close(swapped(x), plain(x))
    assert list(dict(swapped.named_parameters())) == list(dict(plain.named_parameters()))
    mixed = build_model("cnn", (3, 32, 32), 10, 1).cuda().eval()
    accelerate(mixed, PRECISIONS["bfloat16"])
    kinds = [type(m) for m in mixed]
    assert [kinds.count(kind) for kind in (PooledConv, PooledReLU, FusedDropout)] == [2, 0, 2]
    for dropout in (m for m in mixed if isinstance(m, FusedDropout)):
        dropout.rows, dropout.key = torch.arange(20, device="cuda"), 1
    torch.testing.assert_close(mixed(x), plain(x))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (mixed(x) - plain(x)).norm() <= 2e-2 * plain(x).norm()
    assert list(dict(mixed.named_parameters())) == list(dict(plain.named_parameters()))


@dataclass(frozen=True)
class Solving(GramRule):
    """A rule of a user's that can be vmapped, but not recorded in a CUDA graph: a solver looks at numbers."""

    def weights(self, round):
        ridge = round.gram + torch.eye(len(round.gram), dtype=torch.float64, device=round.gram.device)
        weights = torch.linalg.solve(ridge, torch.ones_like(round.losses))
        return weights / weights.sum()


@dataclass(frozen=True)
class SolvingLosses(LossRule):
    """The same on the rung of losses."""

    def weights(self, round):
        ridge = torch.outer(round.losses, round.losses) + torch.eye(len(round.losses)).to(round.losses)
        weights = torch.linalg.solve(ridge, torch.ones_like(round.losses))
        return weights / weights.sum()


@pytest.mark.parametrize("model", ["mlp", "small"], ids=["stacked", "graphed"])
@pytest.mark.parametrize("kind", [Solving, SolvingLosses])
def test_a_rule_that_a_graph_cannot_hold(federation, kind, model, monkeypatch):
    """Beside rules that it can hold: all go on, and give what they give alone."""
    monkeypatch.setitem(simulate.__globals__["build_model"].__globals__["MODELS"], "small", small_cnn)
    rules = [Method("solving", Unscaled(), kind()), METHODS["fairmean"], METHODS["krum"]]
    alone = [simulate(federation, rule, 4, model=model, device="cuda")[0] for rule in rules]
    together = [simulate(federation, rule, 0, model=model, device="cuda")[0] for rule in rules]
    fleet = Fleet(together)
    for _ in fleet.rounds(0, 4, lambda t: False, lambda t: False):
        pass
    torch.cuda.synchronize()
    for one, other in zip(alone, together, strict=True):
        assert (one.w - other.w).norm() <= 1e-8 * one.w.norm()


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_local_update(precision):
    """Weights that lie in the rows of a larger matrix, as in a stack; as exact as the precision promises."""
    models, rows, units, features, runs = 48, 37, 200, 784, 24
    draw = torch.Generator().manual_seed(0)
    P, scale = torch.randn(models, 160_000, generator=draw).cuda(), torch.randn(runs, generator=draw).cuda()
    slope, below = (torch.randn(models, rows, wide, generator=draw).cuda() for wide in (units, features))
    end = units * features
    weight, bias = P[:, :end].view(models, units, features), P[:, end : end + units]
    slopes = slope.double() * scale.double().repeat(models // runs)[:, None, None]
    steps = torch.bmm(slopes.transpose(1, 2), below.double())
    exact, exact_bias, rest = weight.double() + steps, bias.double() + slopes.sum(1), P[:, end + units :].clone()
    add_products(weight, bias, slope, below, scale, PRECISIONS[precision])
    assert (weight - exact).norm() <= (1e-6 if precision == "float32" else 2e-3) * exact.norm()
    assert (bias - exact_bias).norm() <= 1e-6 * exact_bias.norm()
    assert torch.equal(P[:, end + units :], rest)


@pytest.mark.parametrize("name", ["cnn", "resnet18"])
def test_curvature_leaves_the_kernels_aside(name):
    """They have no second derivatives."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4, 3, 32, 32, generator=draw).cuda().contiguous(memory_format=torch.channels_last)
    clients, plain = [(x, torch.arange(4, device="cuda"))], build_model(name, (3, 32, 32), 10, 1).cuda()
    net = Net(build_model(name, (3, 32, 32), 10, 1), "cuda", precision=PRECISIONS["bfloat16"])
    assert any(isinstance(part, FusedNorm | PooledConv) for part in net.model.modules())
    v = torch.randn(len(net.flat), generator=draw).cuda()
    known, right = Curves(net.model, clients).product(0, v), Curves(plain, clients).product(0, v)
    assert (known - right).norm() <= 1e-3 * right.norm()


@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16"])
def test_residual_network(dtype):
    """Gradients of a ResNet-18 with normalisation in one pass, of all clients and of each, are as exact as PyTorch's.

    The network magnifies what rounding does to the inputs of its convolutions: in tf32 the gradient of the first one
    is wrong by 0.08, whoever computes it, and in bfloat16 by 0.2.
    """
    x = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    x = x.contiguous(memory_format=torch.channels_last)
    exact = build_model("resnet18", (3, 32, 32), 10, 1).double().cuda()
    right = []
    for k in range(3):
        value = exact(x[2 * k : 2 * k + 2].double()).square().sum()
        right.append(torch.autograd.grad(value, list(exact.parameters())))

    def errors(swap):
        net = Net(build_model("resnet18", (3, 32, 32), 10, 1), "cuda", precision=PRECISIONS[dtype], swap=swap)
        assert sum(isinstance(part, FusedNorm) for part in net.model.modules()) == (20 if swap else 0)
        capture, rows, got = Capture(net), torch.arange(6, device="cuda"), net.flat.new_empty(3, len(net.flat))
        assert capture.fits(x)
        with net.passes(), capture.recording():
            losses = net.logits(x, rows, 0).square().sum(1)
            capture.gradients(losses, torch.ones_like(losses), [0, 2, 4, 6], got)
        assert not (swap and capture._plain)
        each = [[(net.view(got[k], i) - one).norm() / one.norm() for i, one in enumerate(right[k])] for k in range(3)]
        return torch.tensor(each)

    ours = errors(swap=True)
    assert ours.max() <= (1e-5 if dtype == "float32" else 2 * errors(swap=False).max())
