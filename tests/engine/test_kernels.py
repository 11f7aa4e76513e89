"""The kernels of convolutions, normalisation and dropout in Triton's interpreter, without a GPU.

Where Triton is installed, and a NumPy before 2.4, since Triton's interpreter (3.6) does not know newer ones:

    TRITON_INTERPRET=1 python -m pytest -W ignore::DeprecationWarning tests/engine/test_kernels.py
"""

import os
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("for Triton's interpreter: set TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton")

from fairmean.engine.kernels import conv_pool_small as squares
from fairmean.engine.kernels import conv_weight_grad as taps
from fairmean.engine.kernels.conv_pool import PooledConv
from fairmean.engine.kernels.derivatives import second_derivatives
from fairmean.engine.kernels.dropout import FusedDropout
from fairmean.engine.kernels.local_update import launch
from fairmean.engine.kernels.norm import FusedBlock, FusedNorm
from fairmean.engine.kernels.pool import pool, unpool
from fairmean.engine.kernels.swap import accelerate
from fairmean.engine.layers.hooks import Capture
from fairmean.engine.net import Net
from fairmean.engine.precision import Precision
from fairmean.models import Dropout, images
from fairmean.models.images import Block

HALF = Precision(torch.float32, torch.float16)
BOUNDS = ([0, 2, 4, 6], [0, 1, 4, 7])


def near(ours, theirs):
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize(("units", "channels", "side", "image"), [(64, 3, 5, 12), (20, 1, 3, 10), (70, 3, 4, 9)])
def test_squares(units, channels, side, image):
    layer, x = nn.Conv2d(channels, units, side), torch.randn(7, channels, image, image)
    exact = torch.relu(F.max_pool2d(layer(x), 2))
    out, rows, place = squares.forward(x, layer.weight.detach(), layer.bias.detach(), torch.float32)
    near(out.permute(0, 3, 1, 2), exact)
    delta = torch.randn_like(exact)
    for bounds in BOUNDS:
        found = squares.gradients(rows, place, delta, bounds, layer.weight.shape)
        for k in range(3):
            part = slice(bounds[k], bounds[k + 1])
            right = torch.autograd.grad(exact[part], list(layer.parameters()), delta[part], retain_graph=True)
            for ours, theirs in zip(found, right, strict=True):
                near(ours[k], theirs)


@pytest.mark.parametrize(("units", "channels", "side"), [(64, 64, 5), (72, 8, 3), (24, 16, 3)])
def test_taps(units, channels, side):
    layer = nn.Conv2d(channels, units, side)
    x = torch.randn(7, channels, 10, 10).contiguous(memory_format=torch.channels_last)
    out = layer(x)
    delta = torch.randn_like(out).contiguous(memory_format=torch.channels_last)
    for bounds in BOUNDS:
        found = taps.gradients(x, delta, bounds, layer.weight.shape)
        for k in range(3):
            part = slice(bounds[k], bounds[k + 1])
            right = torch.autograd.grad(out[part], list(layer.parameters()), delta[part], retain_graph=True)
            for ours, theirs in zip(found, right, strict=True):
                near(ours[k], theirs)


def test_pooling_with_a_bias():
    x, bias = torch.randint(-3, 4, (5, 7, 12, 6)).float().requires_grad_(), torch.randn(7)
    exact = torch.relu(F.max_pool2d(x, 2) + bias[:, None, None])
    out, place = pool(x.detach(), bias)
    near(out, exact)
    delta = torch.randn_like(exact)
    near(unpool(delta, place), torch.autograd.grad(exact, x, delta)[0])


@pytest.mark.parametrize("p", [0.2, 0.5, 0.37])
def test_dropout(p):
    plain = Dropout(p, 2 * 0x632BE5AB)
    fused, x = FusedDropout.like(plain), torch.randn(40, 37, requires_grad=True)
    for layer in (plain, fused):
        layer.rows, layer.key = torch.arange(49_990, 50_030), 0xFFFFFF01
    a, b = plain(x), fused(x)
    torch.testing.assert_close(b, a)
    delta = torch.randn_like(a)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, delta)[0] for y in (b, a)))


@pytest.mark.parametrize(("image", "sides"), [(32, (5, 5)), (32, (3, 3)), (33, (4, 3)), (32, (3, 1))])
def test_gradients_of_clients_can_be_captured(image, sides):
    """Also with odd sides, and with a layer that no kernel takes."""
    first, second = sides
    features = ((image - first + 1) // 2 - second + 1) // 2
    layers = [nn.Conv2d(3, 8, first), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(8, 16, second), nn.MaxPool2d(2), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * features**2, 10))
    accelerate(model, HALF)
    assert isinstance(model[0], PooledConv)
    assert Capture(Net(model, precision=HALF)).fits(torch.randn(4, 3, image, image))


NORMS = [(64, 32, 8, True, False), (64, 32, 7, True, True), (128, 32, 5, False, False), (32, 8, 6, False, True)]


@pytest.mark.parametrize(("channels", "groups", "side", "relu", "shortcut"), NORMS)
def test_normalisation(channels, groups, side, relu, shortcut):
    """With what follows it, and the gradients of γ and β for every image."""
    plain = nn.GroupNorm(groups, channels)
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    x, more = (
        torch.randn(3, channels, side, side).contiguous(memory_format=torch.channels_last).requires_grad_()
        for _ in range(2)
    )
    fused, given = FusedNorm.like(plain, relu), (x, more) if shortcut else (x,)
    assert fused._block(*given, *([] if shortcut else [None]))
    value = plain(x) + more if shortcut else plain(x)
    exact = torch.relu(value) if relu else value
    ours, delta = fused(*given), torch.randn_like(exact)
    near(ours, exact)
    for found, right in zip(
        torch.autograd.grad(ours, [*given, *fused.parameters()], delta),
        torch.autograd.grad(exact, [*given, *plain.parameters()], delta, retain_graph=True),
        strict=True,
    ):
        near(found, right)
    fused.capturing = True
    torch.autograd.grad(fused(*given), x, delta)
    for k in range(3):
        _, *right = torch.autograd.grad(exact[k], [x, *plain.parameters()], delta[k], retain_graph=True)
        for found, one in zip(fused.kept, right, strict=True):
            near(found[k], one)


def test_second_derivatives():
    """The kernels refuse, and stay aside where they are told to."""
    plain = nn.GroupNorm(4, 8)
    fused, x, delta = (
        FusedNorm.like(plain, relu=True),
        torch.randn(2, 8, 5, 5).requires_grad_(),
        torch.randn(2, 8, 5, 5),
    )
    x = x.contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="twice"):
        torch.autograd.grad(fused(x), fused.weight, delta, create_graph=True)
    with second_derivatives():
        value = fused(x)
    found, right = (
        torch.autograd.grad(torch.autograd.grad(y, plain.weight, delta, create_graph=True)[0].square().sum(), x)[0]
        for y in (value, torch.relu(plain(x)))
    )
    near(found, right)


def test_infinity_stays_in_its_place():
    """ReLU makes −∞ a zero, and leaves NaN as it is."""
    fused = FusedNorm.like(nn.GroupNorm(4, 8), relu=True)
    x, more = (torch.randn(1, 8, 4, 4).contiguous(memory_format=torch.channels_last) for _ in range(2))
    more[0, 0, 0, 0], more[0, 0, 0, 1] = -torch.inf, torch.nan
    out = fused(x, more)
    assert out[0, 0, 0, 0] == 0
    assert out[0, 0, 0, 1].isnan()
    assert out.isnan().sum() == 1


def test_gradients_of_clients_of_a_residual_network(monkeypatch):
    monkeypatch.setattr(images, "_GROUPS", 4)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(4, 8), nn.ReLU(), Block(8, 16, 2), nn.Flatten())
    plain = deepcopy(model)
    accelerate(model, Precision(torch.float32, torch.float32))
    assert [type(part) for part in model[1:4]] == [FusedNorm, nn.Identity, FusedBlock]
    assert list(dict(model.named_parameters())) == list(dict(plain.named_parameters()))
    x = torch.randn(4, 3, 10, 10).contiguous(memory_format=torch.channels_last)
    near(model(x), plain(x))
    net = Net(model)
    capture = Capture(net)
    assert capture.fits(x)
    assert not capture._plain
    frozen = nn.Sequential(FusedNorm.like(nn.GroupNorm(4, 8), relu=True), nn.Conv2d(8, 2, 3), nn.Flatten())
    assert Capture(Net(frozen)).fits(torch.randn(4, 8, 6, 6))  # nothing below the normalisation is trained


def test_local_update():
    """Tiles that do not fit, rows in two parts, a scale for each run."""
    models, rows, units, features, runs = 6, 37, 70, 150, 3
    P, scale = torch.randn(models, 20_000), torch.randn(runs)
    before, end = P.clone(), units * features
    weight, bias = P[:, :end].view(models, units, features), P[:, end : end + units]
    slope, below = torch.randn(models, rows, units), torch.randn(models, rows, features)
    launch(weight, bias, slope, below, scale, "ieee")
    slope = slope * scale.repeat(models // runs)[:, None, None]
    near(weight.flatten(1), before[:, :end] + torch.bmm(slope.transpose(1, 2), below).flatten(1))
    near(bias, before[:, end : end + units] + slope.sum(1))
    assert torch.equal(P[:, end + units :], before[:, end + units :])
