"""The kernel of ``dropout``. Import it where there is Triton."""

import triton
import triton.language as tl


@triton.jit
def _hash32(x):
    """``randomness.hash32``, in 32 bits."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def masked(x, seeds, out, count, UNITS: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """x where hash(hash(seed of the row) + unit's number) is large enough, scaled; else 0."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = o < count
    seed = tl.load(seeds + o // UNITS, mask=inside, other=0).to(tl.uint32)
    unit = (o % UNITS).to(tl.uint32) * 0x9E3779B1
    keep = _hash32(_hash32(seed) + unit) >= LEAST
    value = tl.load(x + o, mask=inside, other=0.0)
    tl.store(out + o, tl.where(keep, value * SCALE, 0.0 * value), mask=inside)
