"""The kernel of ``kernels.gated_product``. Import it where there is Triton."""

import triton
import triton.language as tl


@triton.jit
def layer(
    a, b, gate, out, rows, units, depth,
    a_row, a_run, b_run, b_k, b_unit, out_row, out_run,
    MASK: tl.constexpr, ROWS: tl.constexpr, UNITS: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One tile: ROWS samples of one run by UNITS units."""
    run = tl.program_id(0)
    n = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(2) * UNITS + tl.arange(0, UNITS)
    k = tl.arange(0, K)
    long = n.to(tl.int64)[:, None]
    total = tl.zeros((ROWS, UNITS), dtype=tl.float32)
    for start in range(0, depth, K):
        at = start + k
        left_at = a + long * a_row + run * a_run + at[None, :]
        left = tl.load(left_at, mask=(n[:, None] < rows) & (at[None, :] < depth), other=0.0)
        right_at = b + run * b_run + at[:, None] * b_k + j[None, :] * b_unit
        right = tl.load(right_at, mask=(at[:, None] < depth) & (j[None, :] < units), other=0.0)
        total = tl.dot(left, right, total)
    place = long * out_row + run * out_run + j[None, :]
    inside = (n[:, None] < rows) & (j[None, :] < units)
    if MASK:  # noqa: SIM108
        total = tl.where(tl.load(gate + place, mask=inside, other=0.0) > 0, total, 0.0)
    else:
        total = tl.maximum(total, 0.0)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)
