"""A model as the engine uses it: parameters and gradients are views of two flat vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fairmean.engine.kernels.swap import accelerate, quicken
from fairmean.engine.precision import Precision, matmul_tf32
from fairmean.models import Dropout

_CPU_CHUNK = 24 * 2**20  # activations of one chunk should stay in the last-level cache
_CUDA_CHUNK = 4 * 2**30
_NOTHING = nullcontext()


class Chunk(NamedTuple):
    """A number of rows, and what one row costs."""

    rows: int
    bytes_per_row: int


class Net:
    """``flat`` holds all parameters; the module's own parameters are views of it.

    Gradients are wherever backward passes put them: in tensors of their own, which saves copying them, or, after
    ``aim``, in a flat vector. ``layers`` are the column slices of the modules that own parameters (weight and bias
    together). Convolution weights lie in channels-last order, which is faster on CPUs and on tensor cores. Parameters
    that are frozen (requires_grad is False) are part of ``flat``, and their gradient is zero. ``swap``: layers of the
    model may be replaced by faster ones that compute the same.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        precision: Precision | None = None,
        swap: bool = True,
    ) -> None:
        self.precision = precision or Precision(dtype, dtype)
        self.model = model.to(device=device, dtype=dtype)
        if swap and torch.device(device).type == "cuda":
            accelerate(self.model, self.precision)
        elif swap and dtype == torch.float32:
            quicken(self.model)
        if not self.model.training:  # the whole model was left in eval(); parts of it alone are kept so
            self.model.train()
        self._parameters = parameters = list(model.parameters())
        self.channels_last = any(p.dim() == 4 for p in parameters)
        ends = torch.tensor([0, *(p.numel() for p in parameters)]).cumsum(0).tolist()
        self._slices = [slice(a, b) for a, b in pairwise(ends)]
        self.flat = torch.empty(ends[-1], device=device, dtype=dtype)
        for parameter, view in zip(parameters, self.views(self.flat), strict=True):
            view.copy_(parameter.data)
        self.move(self.flat)
        self._scratch: dict[str, Tensor] = {}
        self._names = [name for name, _ in model.named_parameters()]
        self._leaves: list[Tensor] | None = None
        self.trained = [parameter.requires_grad for parameter in parameters]
        self._owners = [name.rpartition(".")[0] for name, _ in model.named_parameters()]
        self.layers = self._layer_slices()
        self._dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
        self.random = bool(self._dropouts)

    def move(self, flat: Tensor) -> None:
        """Let the parameters live in this vector, which holds their values."""
        self.flat = flat
        for parameter, view in zip(self._parameters, self.views(flat), strict=True):
            parameter.data = view

    def scratch(self, purpose: str, n: int) -> Tensor:
        """Room for n vectors like ``flat``, kept from one use for this purpose to the next."""
        known = self._scratch.get(purpose)
        if known is None or len(known) < n:
            known = self._scratch[purpose] = self.flat.new_empty(n, len(self.flat))
        return known[:n]

    def views(self, flat: Tensor) -> list[Tensor]:
        """A flat vector as tensors shaped like the parameters."""
        return [self.view(flat, i) for i in range(len(self._parameters))]

    def view(self, flat: Tensor, i: int) -> Tensor:
        """The i-th parameter's part of a flat vector, shaped like it."""
        shape, part = self._parameters[i].shape, flat[self._slices[i]]
        if self.channels_last and len(shape) == 4:
            o, c, h, w = shape
            return part.view(o, h, w, c).permute(0, 3, 1, 2)
        return part.view(shape)

    def rows(self, matrix: Tensor, i: int) -> Tensor:
        """The i-th parameter's part of every row of a matrix n×d: n × its shape."""
        shape, part = self._parameters[i].shape, matrix[:, self._slices[i]]
        if self.channels_last and len(shape) == 4:
            o, c, h, w = shape
            return part.view(-1, o, h, w, c).permute(0, 1, 4, 2, 3)
        return part.view(-1, *shape)

    def output_rows(self, messages: Tensor) -> Tensor:
        """The output layer's part of messages n×d, one row per class with its bias: n×K×p."""
        last = [i for i, name in enumerate(self._owners) if name == self._owners[-1]]
        parts = []
        for i in last:
            shape = self._parameters[i].shape
            parts.append(messages[:, self._slices[i]].reshape(len(messages), shape[0], -1))
        return torch.cat(parts, 2)

    def aim(self, grad: Tensor) -> None:
        """Let backward passes add into this flat vector, until ``forget``."""
        for parameter, view in zip(self._parameters, self.views(grad), strict=True):
            parameter.grad = view

    def held(self, direction: Tensor) -> Tensor:
        """A flat direction with zeros for frozen parameters."""
        if all(self.trained):
            return direction
        direction = direction.clone()
        for part, trained in zip(self._slices, self.trained, strict=True):
            if not trained:
                direction[part] = 0
        return direction

    def forget(self) -> None:
        """No gradient; the next backward pass makes new ones."""
        for parameter in self._parameters:
            parameter.grad = None

    def accumulate(self, losses: Tensor, weights: Tensor) -> None:
        """Add the gradient of Σ weights·losses to what is there."""
        if self._leaves is None:
            losses.backward(weights)  # type: ignore[no-untyped-call]
            return
        live = [(p, leaf) for p, leaf in zip(self._parameters, self._leaves, strict=True) if leaf.requires_grad]
        grads = torch.autograd.grad(losses, [leaf for _, leaf in live], weights, allow_unused=True)
        for (parameter, _), grad in zip(live, grads, strict=True):
            if parameter.grad is None:
                parameter.grad = grad
            elif grad is not None:
                parameter.grad.add_(grad)

    def with_gradients(self) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters that have a gradient, and those gradients, wherever they are."""
        live = [p for p in self._parameters if p.grad is not None]
        return list[Tensor](live), [p.grad for p in live if p.grad is not None]

    def flat_gradient(self) -> Tensor:
        """The gradient as one vector, zero where there is none."""
        flat = torch.zeros_like(self.flat)
        for parameter, view in zip(self._parameters, self.views(flat), strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
        return flat

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, the model is in eval(); afterwards every module is in the mode it was in."""
        training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True

    def layout(self, x: Tensor) -> Tensor:
        """Inputs in the memory layout the model likes."""
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x

    def mask(self, rows: Tensor, key: int | Tensor) -> None:
        """Decide the dropout masks of the next forward pass."""
        for dropout in self._dropouts:
            dropout.rows, dropout.key = rows, key

    def logits(self, x: Tensor, rows: Tensor, key: int | Tensor, exact: bool = False) -> Tensor:
        """A forward pass; ``rows`` and ``key`` decide the dropout masks. ``exact``: at the parameters' precision."""
        self.mask(rows, key)
        if exact or not self.precision.mixed:
            return self._call(x)
        with torch.autocast(x.device.type, dtype=self.precision.storage, cache_enabled=False):
            logits = self._call(x)
        return logits.to(self.flat.dtype)

    def _call(self, x: Tensor) -> Tensor:
        if self._leaves is None:
            logits: Tensor = self.model(x)
            return logits
        named = dict(zip(self._names, self._leaves, strict=True))
        return functional_call(self.model, named, (x,))  # type: ignore[no-any-return]

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Passes inside differentiate tensors made here and now, on the current stream, as CUDA graphs demand."""
        views = zip(self._parameters, self.views(self.flat), strict=True)
        self._leaves = [view.detach().requires_grad_(p.requires_grad) for p, view in views]
        try:
            yield
        finally:
            self._leaves = None

    def passes(self) -> AbstractContextManager[None]:
        """Around forward and backward passes: products at the precision that was asked for."""
        if self.flat.device.type == "cpu":  # where there is no choice, and no time to lose
            return _NOTHING
        return matmul_tf32(self.precision.tf32)

    def chunk_rows(self, x: Tensor) -> Chunk:
        """How many samples to push through at a time, and the bytes of activations a sample leaves."""
        both = self._saved_bytes(x, 2)
        if self.precision.mixed:  # then copies of the weights are kept, however many samples there are
            both = self._saved_bytes(x, 4) - both
        per_sample = max(1, both // 2)
        room = _CUDA_CHUNK if x.device.type == "cuda" else _CPU_CHUNK
        most = 2**20 if x.device.type == "cuda" else 8192
        return Chunk(max(16, min(room // per_sample, most)), per_sample)

    def _saved_bytes(self, x: Tensor, count: int) -> int:
        """What a forward pass of so many samples keeps for the backward pass."""
        seen: dict[int, Tensor] = {}

        def pack(saved: Tensor) -> Tensor:
            seen[saved.data_ptr()] = saved
            return saved

        own = {p.data_ptr() for p in self._parameters}
        sample = self.layout(x[:1].expand(count, *x.shape[1:]).contiguous())
        rows = torch.arange(count, device=x.device)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            F.log_softmax(self.logits(sample, rows, 0), -1)
        return sum(saved.numel() * saved.element_size() for at, saved in seen.items() if at not in own)

    def _layer_slices(self) -> tuple[slice, ...]:
        spans: dict[str, list[slice]] = {}
        for name, part in zip(self._owners, self._slices, strict=True):
            spans.setdefault(name, []).append(part)
        return tuple(slice(parts[0].start, parts[-1].stop) for parts in spans.values())
