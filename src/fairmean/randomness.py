"""Named random streams, all derived from one seed; the global generators are never touched.

Set-up draws (partition, poisoning, initialisation, participation) use a generator of their own. Draws that recur
every round (batches, dropout) are *hashes* of (stream, round, row): they need no state, so a resumed run, a reordered
loop and a batched run see the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MASK = 0xFFFFFFFF
Ints = TypeVar("Ints", Tensor, NDArray[np.int64])


def derive(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream called ``names``, a function of the run's seed and the names alone."""
    text = ":".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *names: object) -> np.random.Generator:
    """A generator for one stream."""
    return np.random.default_rng(derive(seed, *names))


def are_few(n: int, count: int) -> bool:
    """Whether ``drawn`` takes so few of so many that NumPy does it without going over all of them."""
    return n > 10_000 and count < n // 50


def drawn(random: np.random.Generator, n: int, count: int) -> NDArray[np.int64]:
    """``count`` different ones of 0 … n−1, in order."""
    if are_few(n, count):
        return np.sort(random.choice(n, count, replace=False, shuffle=False))
    return np.sort(random.permutation(n)[:count])


@contextmanager
def global_stream(seed: int, *names: object) -> Iterator[None]:
    """Code that only knows torch's global CPU generator (``nn.Module`` constructors) draws from this stream."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(seed, *names))
        yield


def hash32(x: Ints) -> Ints:
    """A bijective 32-bit mixing function, elementwise on int64 arrays or tensors (murmur3's finaliser)."""
    x = x & _MASK
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)


def hash32_(x: Tensor) -> Tensor:
    """``hash32`` of an int32 tensor's 32 bits, in place; half the memory, and a product that every CPU has."""
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    x *= _signed(0x85EBCA6B)
    x ^= (x >> 13).bitwise_and_(0x7FFFF)
    x *= _signed(0xC2B2AE35)
    x ^= (x >> 16).bitwise_and_(0xFFFF)
    return x


def _signed(x: int) -> int:
    """The signed number with the same 32 bits."""
    return x - ((x >> 31) << 32)
