"""The kernels of ``convolution``: images lie as (sample, row, column, channel). Import it where there is Triton."""

import triton
import triton.language as tl


@triton.jit
def _corner(o, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Where the first of the four values of output ``o`` lies; the image has even sides and this width."""
    p = o // CHANNELS
    half = WIDTH // 2
    return ((p // half * 2) * WIDTH + p % half * 2).to(tl.int64) * CHANNELS + o % CHANNELS


@triton.jit
def pool_forward(
    x, bias, out, place, count,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BIASED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """relu of the maximum of four and a bias, and which of them it was (4: none, it is not positive)."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = o < count
    at = x + _corner(o, CHANNELS, WIDTH)
    best = tl.load(at, mask=inside, other=0.0)
    which = tl.zeros((BLOCK,), dtype=tl.int32)
    for k in tl.static_range(1, 4):
        value = tl.load(at + (k // 2 * WIDTH + k % 2) * CHANNELS, mask=inside, other=0.0)
        more = (value > best) | (value != value)
        best = tl.where(more, value, best)
        which = tl.where(more, k, which)
    if BIASED:
        best = best + tl.load(bias + o % CHANNELS, mask=inside, other=0.0)
    zero = best <= 0
    tl.store(out + o, tl.where(zero, 0.0, best), mask=inside)
    tl.store(place + o, tl.where(zero, 4, which).to(tl.uint8), mask=inside)


@triton.jit
def pool_backward(gradient, place, out, count, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The gradient at the place of the maximum, zero at the other three."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = o < count
    g = tl.load(gradient + o, mask=inside, other=0.0)
    which = tl.load(place + o, mask=inside, other=4).to(tl.int32)
    at = out + _corner(o, CHANNELS, WIDTH)
    for k in tl.static_range(4):
        tl.store(at + (k // 2 * WIDTH + k % 2) * CHANNELS, tl.where(which == k, g, 0.0), mask=inside)


@triton.jit
def patches(
    x, out, count,
    HIGH: tl.constexpr, WIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    ACROSS: tl.constexpr, SIZE: tl.constexpr, DEPTH: tl.constexpr, STRIDE: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """One patch per row in the order (row, column, channel), then a 1, then zeros."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.arange(0, COLUMNS)
    inner = (j // ACROSS) * (WIDTH * CHANNELS) + j % ACROSS
    sample, rest = m // (HIGH * WIDE), m % (HIGH * WIDE)
    start = ((sample * HEIGHT + rest // WIDE * STRIDE) * WIDTH + rest % WIDE * STRIDE) * CHANNELS
    inside = m[:, None] < count
    value = tl.load(x + start[:, None].to(tl.int64) + inner[None, :], mask=inside & (j[None, :] < SIZE), other=0.0)
    value = tl.where(j[None, :] == SIZE, 1.0, value)
    tl.store(out + m.to(tl.int64)[:, None] * DEPTH + j[None, :], value, mask=inside & (j[None, :] < DEPTH))
