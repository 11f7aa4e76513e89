"""On a GPU every method gives what it gives on the CPU, in every training mode; skipped where there is none."""

import numpy as np
import pytest
import torch

from fairmean.data import load
from fairmean.federation import build
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
