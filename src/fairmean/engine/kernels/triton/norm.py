"""The kernels of ``norm``. Import them where there is Triton."""

import triton
import triton.language as tl


@triton.jit
def _of_groups(values, B: tl.constexpr, G: tl.constexpr):
    """Each channel's share in the sum over its group, for B channels in groups of G."""
    sums = tl.sum(tl.reshape(values, (B // G, G)), 1)
    return tl.reshape(tl.broadcast_to(sums[:, None], (B // G, G)), (B,))


@triton.jit
def norm_forward(
    x, more, gamma, beta, out, mean, scale, count, eps,
    C: tl.constexpr, G: tl.constexpr, B: tl.constexpr, P: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """y = γ (x − μ) r + β, plus ``more`` if ADD, then ReLU if RELU; B channels of one image. Keeps μ and r of a group.

    An image has ``count`` ≤ P places of C channels each, in groups of G.
    """
    blocks: tl.constexpr = C // B
    image, first = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * B
    c = first + tl.arange(0, B)
    place = tl.arange(0, P)[:, None]
    at = image * count * C + place * C + c[None, :]
    inside = place < count
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    size = count * G
    mu = _of_groups(tl.sum(value, 0), B, G) / size
    value = tl.where(inside, value - mu[None, :], 0.0)
    r = 1.0 / tl.sqrt(_of_groups(tl.sum(value * value, 0), B, G) / size + eps)
    value = value * (r * tl.load(gamma + c))[None, :] + tl.load(beta + c)[None, :]
    if ADD:
        value += tl.load(more + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        value = tl.where(value != value, value, tl.maximum(value, 0.0))  # NaN stays
    tl.store(out + at, value, mask=inside)
    kept = image * (C // G) + c // G
    tl.store(mean + kept, mu, mask=c % G == 0)
    tl.store(scale + kept, r, mask=c % G == 0)


@triton.jit
def norm_backward(
    delta, x, out, gamma, beta, mean, scale, of_x, of_more, of_gamma, of_beta, count,
    C: tl.constexpr, G: tl.constexpr, B: tl.constexpr, P: tl.constexpr, ADD: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """From δ = ∂/∂y the gradients of x and ``more``, and of γ and β for every image (images × C)."""
    blocks: tl.constexpr = C // B
    image, first = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * B
    c = first + tl.arange(0, B)
    place = tl.arange(0, P)[:, None]
    at = image * count * C + place * C + c[None, :]
    inside = place < count
    kept = image * (C // G) + c // G
    r, g = tl.load(scale + kept), tl.load(gamma + c)
    hat = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - tl.load(mean + kept)[None, :]) * r[None, :]
    d = tl.load(delta + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        if ADD:
            d = tl.where(tl.load(out + at, mask=inside, other=0.0) > 0, d, 0.0)
        else:
            d = tl.where(hat * g[None, :] + tl.load(beta + c)[None, :] > 0, d, 0.0)
    if ADD:
        tl.store(of_more + at, d, mask=inside)
    b, a = tl.sum(d, 0), tl.sum(d * hat, 0)
    tl.store(of_beta + image * C + c, b)
    tl.store(of_gamma + image * C + c, a)
    size = count * G
    plain, along = _of_groups(b * g, B, G) / size, _of_groups(a * g, B, G) / size
    tl.store(of_x + at, r[None, :] * (d * g[None, :] - plain[None, :] - hat * along[None, :]), mask=inside)
