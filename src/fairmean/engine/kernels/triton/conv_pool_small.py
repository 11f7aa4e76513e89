"""The kernels of ``squares``. Import it where there is Triton."""

import triton
import triton.language as tl


@triton.jit
def square_forward(
    rows, weights, out, place, count,
    UNITS: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """relu of the largest of four products, and which of them it was (4: none, it is not positive)."""
    m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, WIDE)
    a = tl.load(rows + m[:, None] * DEPTH + k[None, :], mask=(m[:, None] < count) & (k[None, :] < DEPTH), other=0.0)
    at = weights + n[None, :] * DEPTH + k[:, None]
    inside = (n[None, :] < UNITS) & (k[:, None] < DEPTH)
    best = tl.dot(a, tl.load(at, mask=inside, other=0.0))
    which = tl.zeros((ROWS, COLUMNS), dtype=tl.int32)
    for s in tl.static_range(1, 4):
        value = tl.dot(a, tl.load(at + s * UNITS * DEPTH, mask=inside, other=0.0))
        more = (value > best) | (value != value)
        best = tl.where(more, value, best)
        which = tl.where(more, s, which)
    zero = best <= 0
    to = m[:, None] * UNITS + n[None, :]
    there = (m[:, None] < count) & (n[None, :] < UNITS)
    tl.store(out + to, tl.where(zero, 0.0, best), mask=there)
    tl.store(place + to, tl.where(zero, 4, which).to(tl.uint8), mask=there)


@triton.jit
def square_backward(
    rows, gradient, place, out, first, length, share,
    UNITS: tl.constexpr, DEPTH: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Σ over a share of a client's squares of δ_s xᵀ, where δ_s is the gradient if the maximum was at place s."""
    client, part = tl.program_id(0), tl.program_id(1)
    n = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, WIDE)
    last = first + (client + 1) * length
    begin = first + client * length + part * share
    end = tl.minimum(begin + share, last)
    sum0 = tl.zeros((COLUMNS, WIDE), dtype=tl.float32)
    sum1 = tl.zeros((COLUMNS, WIDE), dtype=tl.float32)
    sum2 = tl.zeros((COLUMNS, WIDE), dtype=tl.float32)
    sum3 = tl.zeros((COLUMNS, WIDE), dtype=tl.float32)
    for start in range(begin, end, ROWS):
        m = (start + tl.arange(0, ROWS)).to(tl.int64)
        inside = m < end
        a = tl.load(rows + m[:, None] * DEPTH + k[None, :], mask=inside[:, None] & (k[None, :] < DEPTH), other=0.0)
        at = m[:, None] * UNITS + n[None, :]
        there = inside[:, None] & (n[None, :] < UNITS)
        g = tl.load(gradient + at, mask=there, other=0.0)
        w = tl.load(place + at, mask=there, other=4).to(tl.int32)
        sum0 += tl.dot(tl.trans(tl.where(w == 0, g, 0.0).to(g.dtype)), a)
        sum1 += tl.dot(tl.trans(tl.where(w == 1, g, 0.0).to(g.dtype)), a)
        sum2 += tl.dot(tl.trans(tl.where(w == 2, g, 0.0).to(g.dtype)), a)
        sum3 += tl.dot(tl.trans(tl.where(w == 3, g, 0.0).to(g.dtype)), a)
    to = out + (client * tl.num_programs(1) + part).to(tl.int64) * (4 * UNITS * DEPTH) + n[:, None] * DEPTH + k[None, :]
    within = (n[:, None] < UNITS) & (k[None, :] < DEPTH)
    tl.store(to, sum0, mask=within)
    tl.store(to + UNITS * DEPTH, sum1, mask=within)
    tl.store(to + 2 * UNITS * DEPTH, sum2, mask=within)
    tl.store(to + 3 * UNITS * DEPTH, sum3, mask=within)
