"""What libraries are slow at in a model, swapped for our own: on a GPU, and on some CPUs."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from fairmean.cpu_products import helps
from fairmean.engine.kernels.conv_pool import PooledConv
from fairmean.engine.kernels.dropout import FusedDropout
from fairmean.engine.kernels.norm import FusedBlock, FusedNorm
from fairmean.engine.kernels.pool import NarrowConv, PooledReLU
from fairmean.engine.kernels.quick_linear import QuickLinear
from fairmean.engine.precision import Precision
from fairmean.models import Dropout
from fairmean.models.images import Block


def quicken(model: nn.Module) -> None:
    """Swap the Linear layers of a model on a CPU where oneDNN multiplies faster; parameters and their names stay."""
    if not helps():
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _bare(child):
                setattr(parent, name, QuickLinear.like(child))


def _bare(layer: nn.Module) -> bool:
    """Whether nothing hangs on a layer: hooks, parametrizations or other modules, and buffers."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return not any(hooks) and not layer._modules and not layer._buffers and set(layer._parameters) == {"weight", "bias"}


def accelerate(model: nn.Module, precision: Precision) -> None:
    """Swap layers of a model on a GPU; parameters and their names stay."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return
    for chain in [m for m in model.modules() if type(m) is nn.Sequential]:
        for i, (child, after) in enumerate(pairwise(list(chain))):
            if type(child) is nn.MaxPool2d and type(after) is nn.ReLU and PooledReLU.takes(child):
                chain[i], chain[i + 1] = PooledReLU(), nn.Identity()
            elif type(child) is nn.GroupNorm and type(after) is nn.ReLU and FusedNorm.takes(child):
                chain[i], chain[i + 1] = FusedNorm.like(child, relu=True), nn.Identity()
    first = next((m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)), None)
    for parent in list(model.modules()):
        following = dict(pairwise(parent._modules)) if type(parent) is nn.Sequential else {}
        for name, child in list(parent.named_children()):
            if type(child) is Block:
                setattr(parent, name, FusedBlock.like(child) or child)
            elif type(child) is nn.GroupNorm and FusedNorm.takes(child) and type(parent) is not Block:
                setattr(parent, name, FusedNorm.like(child))
            elif type(child) is Dropout:
                setattr(parent, name, FusedDropout.like(child))
            elif type(child) is nn.Conv2d and precision.mixed:
                pool = parent._modules.get(following.get(name, ""))
                if isinstance(pool, PooledReLU) and PooledConv.takes(child, child is first):
                    setattr(parent, name, PooledConv.like(child))
                    setattr(parent, following[name], nn.Identity())
                elif child is first and NarrowConv.takes(child):
                    setattr(parent, name, NarrowConv.like(child))
