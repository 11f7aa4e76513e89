"""The kernel of ``local_update``. Import it where there is Triton."""

import triton
import triton.language as tl


@triton.jit
def add_products(
    weight, bias, slope, below, scale, rows, units, features, across, up, of_model, of_bias, runs,
    PARTS: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, UNITS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """W[b] += s δ[b]ᵀ h[b] and bias[b] += s Σ δ[b], with s = scale[b % runs]: a tile of one model's weights."""
    tile = tl.program_id(0)
    b, row, column = (tile // (up * across)).to(tl.int64), tile // across % up, tile % across
    u, f = row * UNITS + tl.arange(0, UNITS), column * FEATURES + tl.arange(0, FEATURES)
    total = tl.zeros((UNITS, FEATURES), dtype=tl.float32)
    alone = tl.zeros((UNITS,), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        r = part * ROWS + tl.arange(0, ROWS)
        inside = (u[:, None] < units) & (r[None, :] < rows)
        d = tl.load(slope + b * rows * units + r[None, :] * units + u[:, None], mask=inside, other=0.0)
        inside = (r[:, None] < rows) & (f[None, :] < features)
        h = tl.load(below + b * rows * features + r[:, None] * features + f[None, :], mask=inside, other=0.0)
        total = tl.dot(d, h, total, input_precision=PRECISION)
        alone += tl.sum(d, 1)
    s = tl.load(scale + b % runs)
    at = weight + b * of_model + u[:, None] * features + f[None, :]
    inside = (u[:, None] < units) & (f[None, :] < features)
    tl.store(at, tl.load(at, mask=inside) + s * total, mask=inside)
    if BIASED and column == 0:
        at_bias = bias + b * of_bias + u
        tl.store(at_bias, tl.load(at_bias, mask=u < units) + s * alone, mask=u < units)
