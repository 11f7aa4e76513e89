"""The kernel of ``taps``. Import it where there is Triton."""

import triton
import triton.language as tl


@triton.jit
def tap_gradients(
    x, delta, out, bias, first, length, share,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
    UNITS: tl.constexpr, ACROSS: tl.constexpr, DEPTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Σ over a share of a client's places of δ patchᵀ, for some columns of the patches; and Σ δ."""
    client, part = tl.program_id(0), tl.program_id(1)
    blocks: tl.constexpr = (DEPTH + COLUMNS - 1) // COLUMNS
    column, k = tl.program_id(2) % blocks, tl.arange(0, COLUMNS)
    k = column * COLUMNS + k
    n = tl.program_id(2) // blocks * OUTPUTS + tl.arange(0, OUTPUTS)
    inner = (k // ACROSS) * (WIDTH * CHANNELS) + k % ACROSS
    last = first + (client + 1) * length
    begin = first + client * length + part * share
    end = tl.minimum(begin + share, last)
    sums = tl.zeros((OUTPUTS, COLUMNS), dtype=tl.float32)
    total = tl.zeros((OUTPUTS,), dtype=tl.float32)
    for start in range(begin, end, ROWS):
        m = start + tl.arange(0, ROWS)
        inside = m < end
        sample, rest = m // (HIGH * WIDE), m % (HIGH * WIDE)
        at = ((sample.to(tl.int64) * HEIGHT + rest // WIDE) * WIDTH + rest % WIDE) * CHANNELS
        a = tl.load(x + at[:, None] + inner[None, :], mask=inside[:, None] & (k[None, :] < DEPTH), other=0.0)
        here = delta + m.to(tl.int64)[:, None] * UNITS + n[None, :]
        d = tl.load(here, mask=inside[:, None] & (n[None, :] < UNITS), other=0.0)
        sums += tl.dot(tl.trans(d), a)
        total += tl.sum(d.to(tl.float32), 0)
    place = (client * tl.num_programs(1) + part).to(tl.int64) * UNITS + n
    tl.store(out + place[:, None] * DEPTH + k[None, :], sums, mask=(n[:, None] < UNITS) & (k[None, :] < DEPTH))
    if column == 0:
        tl.store(bias + place, total, mask=n < UNITS)
