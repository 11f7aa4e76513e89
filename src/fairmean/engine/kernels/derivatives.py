"""Kernels of ours have first derivatives alone. Whoever wants second ones gets them from the library's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

_second = False


@contextmanager
def second_derivatives() -> Iterator[None]:
    """Inside, forward passes leave the kernels aside."""
    global _second
    before, _second = _second, True
    try:
        yield
    finally:
        _second = before


def second_wanted() -> bool:
    """Whether a layer must leave its kernels aside."""
    return _second


def first_alone(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass that refuses to be differentiated: ``once_differentiable`` may silently drop terms."""

    @wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("this pass cannot be differentiated twice: do the forward pass in second_derivatives()")
        return backward(ctx, *gradients)

    return checked
