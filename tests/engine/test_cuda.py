"""On a GPU every method gives what it gives on the CPU, in every training mode; skipped where there is none."""

import numpy as np
import pytest
import torch

from fairmean.data import load
from fairmean.engine.convolution import NarrowConv, PooledReLU, accelerate
from fairmean.engine.precision import PRECISIONS
from fairmean.federation import build
from fairmean.models import build as build_model
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
    again.state = {key: value.cpu() for key, value in half.state.items()}
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


def test_accelerated_model_is_the_model():
    x = torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    plain, swapped = (build_model("cnn", (3, 32, 32), 10, 1).cuda().eval() for _ in range(2))
    accelerate(swapped, PRECISIONS["float32"])
    assert sum(isinstance(m, PooledReLU) for m in swapped) == 2
    torch.testing.assert_close(swapped(x), plain(x))
    assert list(dict(swapped.named_parameters())) == list(dict(plain.named_parameters()))
