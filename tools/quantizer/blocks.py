"""Encoders of GGUF block types: float32 [rows, cols] to bytes [rows, bytes of a row].

The search is our own and minimises the squared error of each block, with no importance matrix: a few
candidates for the scale, nearest codes for each, the scale that fits these codes best.
"""

import numpy as np

from . import grid as grids
from .numbers import f16_bytes, to_f16

F32 = np.float32
BATCH = 1 << 14  # super-blocks at a time


def _blocks(w, size):
    return np.ascontiguousarray(w, F32).reshape(-1, size)


def q8_0(w):
    """32 elements: d f16, 32 int8. The quotient uses the unrounded d."""
    x = _blocks(w, 32)
    d = np.abs(x).max(axis=1, keepdims=True) / F32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(d > 0, F32(1) / d, F32(0))
    scaled = x * inverse
    codes = np.trunc(scaled + np.copysign(F32(0.5), scaled)).astype(np.int8)  # halves away from zero
    return np.concatenate([f16_bytes(d[:, 0]), codes.view(np.uint8)], axis=1).reshape(len(w), -1)


def _divide(a, b):
    """a / b where b is above 0, else 0."""
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


# -- Q4_K: 8 blocks of 32, x = d sc q - dmin mn, q of 4 bits, sc and mn of 6 --


def _fit_affine(x, q):
    """The scale and the offset (of at least 0) for which scale q - offset is nearest to x."""
    n = F32(x.shape[-1])
    sq, sqq = q.sum(-1), (q * q).sum(-1)
    sx, sqx = x.sum(-1), (q * x).sum(-1)
    det = n * sqq - sq * sq
    scale, offset = _divide(n * sqx - sq * sx, det), _divide(sq * sqx - sqq * sx, det)
    below = offset < 0
    return np.where(below, _divide(sqx, sqq), scale), np.where(below, F32(0), offset)


def _q4_k_batch(x):
    x = x.reshape(len(x), 8, 32)
    low = np.minimum(x.min(-1), 0)
    span = x.max(-1) - low
    best = np.full(span.shape, np.inf, F32)
    scale, offset = np.zeros_like(span), np.zeros_like(span)
    for steps in np.arange(14.0, 16.5, 0.25, dtype=F32):
        inverse = _divide(np.full_like(span, steps), span)
        q = np.clip(np.rint((x - low[..., None]) * inverse[..., None]), 0, 15)
        s, o = _fit_affine(x, q)
        error = ((s[..., None] * q - o[..., None] - x) ** 2).sum(-1)
        better = error < best
        best, scale, offset = (np.where(better, new, old) for new, old in
                               ((error, best), (s, scale), (o, offset)))
    scale = np.maximum(scale, 0)
    d = to_f16(scale.max(-1, keepdims=True) / F32(63)).astype(F32)
    dmin = to_f16(offset.max(-1, keepdims=True) / F32(63)).astype(F32)
    sc = np.clip(np.rint(_divide(scale, np.broadcast_to(d, scale.shape))), 0, 63)
    mn = np.clip(np.rint(_divide(offset, np.broadcast_to(dmin, offset.shape))), 0, 63)
    step, low = (d * sc)[..., None], (dmin * mn)[..., None]
    q = np.clip(np.rint(_divide(x + low, np.broadcast_to(step, x.shape))), 0, 15).astype(np.uint8)
    sc, mn = sc.astype(np.uint8), mn.astype(np.uint8)
    packed = np.concatenate([sc[:, :4] | (sc[:, 4:] >> 4) << 6, mn[:, :4] | (mn[:, 4:] >> 4) << 6,
                             (sc[:, 4:] & 15) | (mn[:, 4:] & 15) << 4], axis=1)
    pairs = q.reshape(len(x), 4, 2, 32)
    return np.concatenate([f16_bytes(d[:, 0]), f16_bytes(dmin[:, 0]), packed,
                           (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(x), 128)], axis=1)


# -- Q3_K: 16 blocks of 16, x = d sc q, q in -4..3, sc in -32..31 --


def _q3_k_batch(x):
    x = x.reshape(len(x), 16, 16)
    at = np.abs(x).argmax(-1)[..., None]
    top = np.take_along_axis(x, at, -1)[..., 0]  # with its sign: it becomes -4
    best = np.full(top.shape, -1, F32)
    scale = np.zeros_like(top)
    for steps in np.arange(-4.9, -3.05, 0.15, dtype=F32):
        inverse = np.divide(steps, top, out=np.zeros_like(top), where=top != 0)
        q = np.clip(np.rint(x * inverse[..., None]), -4, 3)
        sqx, sqq = (q * x).sum(-1), (q * q).sum(-1)
        gain = _divide(sqx * sqx, sqq)  # how much the fit takes off the squared error
        better = gain > best
        best, scale = np.where(better, gain, best), np.where(better, _divide(sqx, sqq), scale)
    widest = np.take_along_axis(scale, np.abs(scale).argmax(-1)[:, None], -1)
    d = to_f16(widest / F32(-32)).astype(F32)  # the widest becomes -32
    sc = np.divide(scale, d, out=np.zeros_like(scale), where=d != 0)
    sc = np.clip(np.rint(sc), -32, 31)
    step = np.broadcast_to((d * sc)[..., None], x.shape)
    q = np.divide(x, step, out=np.zeros_like(x), where=step != 0)
    q = (np.clip(np.rint(q), -4, 3) + 4).astype(np.uint8).reshape(len(x), 2, 4, 32)
    bits = np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1)
    high = ((q >> 2) << bits).sum(axis=(1, 2), dtype=np.uint8)
    low = ((q & 3) << (2 * bits[:, :1])).sum(axis=2, dtype=np.uint8).reshape(len(x), 64)
    sc = (sc + 32).astype(np.uint8)
    fours = (sc >> 4).reshape(len(x), 4, 4)
    packed = np.concatenate([(sc[:, :8] & 15) | (sc[:, 8:] & 15) << 4,
                             (fours << (2 * np.arange(4, dtype=np.uint8)).reshape(1, 4, 1))
                             .sum(axis=1, dtype=np.uint8)], axis=1)
    return np.concatenate([high, low, packed, f16_bytes(d[:, 0])], axis=1)


# -- IQ2_XXS: 8 blocks of 32, x = d (1/2 + s) / 4 * (+-) one of 256 points for each 8 elements --

def _iq2_xxs_signs(x):
    """Sign masks with an even number of negatives, and x with these signs taken off. Where the
    number is odd the element that matters least, the smallest, gets the wrong sign."""
    negative = x < 0
    odd = negative.sum(-1) % 2 == 1
    least = np.abs(x).argmin(-1)
    flipped = np.take_along_axis(negative, least[..., None], -1)[..., 0] ^ odd
    np.put_along_axis(negative, least[..., None], flipped[..., None], -1)
    mask = (negative << np.arange(8)).sum(-1).astype(np.uint32)
    return mask & 127, np.where(negative, -x, x)


def _iq2_xxs_batch(x):
    grid = grids.iq2_xxs()
    size = (grid * grid).sum(-1)
    mask, x = _iq2_xxs_signs(x.reshape(-1, 8, 4, 8))
    products = (x.reshape(-1, 8) @ grid.T).reshape(*x.shape[:3], 256)

    def nearest(step):
        """Points for blocks of this step: the index of each, and the squared error less x^2."""
        step = step[..., None, None]
        cost = step * step * size - 2 * step * products
        index = cost.argmin(-1)
        return index, np.take_along_axis(cost, index[..., None], -1)[..., 0].sum(-1)

    def fit(index):
        """The step that fits these points best."""
        return _divide(np.take_along_axis(products, index[..., None], -1)[..., 0].sum(-1),
                       size[index].sum(-1))

    peak = np.abs(x).max(axis=(2, 3))
    best = np.full(peak.shape, np.inf, F32)
    step = np.zeros_like(peak)
    for part in (0.55, 0.7, 0.85, 1.0):
        tried = fit(nearest(peak * F32(part / 43))[0])
        _, cost = nearest(tried)
        better = cost < best
        best, step = np.where(better, cost, best), np.where(better, tried, step)

    d = to_f16(step.max(-1, keepdims=True) / F32(15.5 / 4)).astype(F32)
    middle = np.rint(_divide(4 * step, np.broadcast_to(d, step.shape)) - F32(0.5))
    best = np.full(peak.shape, np.inf, F32)
    scale, index = np.zeros_like(step), np.zeros(x.shape[:3], np.int64)
    for near in (-1, 0, 1):
        s = np.clip(middle + near, 0, 15).astype(F32)
        tried, cost = nearest(d * (s + F32(0.5)) * F32(0.25))
        better = cost < best
        best, scale = np.where(better, cost, best), np.where(better, s, scale)
        index = np.where(better[..., None], tried, index)

    words = (mask << (7 * np.arange(4, dtype=np.uint32))).sum(-1, dtype=np.uint32)
    words |= scale.astype(np.uint32) << 28
    blocks = np.concatenate([index.astype(np.uint8), words[..., None].view(np.uint8)], axis=2)
    return np.concatenate([f16_bytes(d[:, 0]), blocks.reshape(len(blocks), 64)], axis=1)


def _super_blocks(batch, size):
    def encode(w):
        x = _blocks(w, 256)
        parts = [batch(x[i : i + size]) for i in range(0, len(x), size)]
        return np.concatenate(parts).reshape(len(w), -1)

    return encode


q4_k = _super_blocks(_q4_k_batch, BATCH)
q3_k = _super_blocks(_q3_k_batch, BATCH)
iq2_xxs = _super_blocks(_iq2_xxs_batch, BATCH // 16)

# name: (type number of GGUF, elements and bytes of a block, encoder)
TYPES = {
    "Q8_0": (8, 32, 34, q8_0),
    "Q3_K": (11, 256, 110, q3_k),
    "Q4_K": (12, 256, 144, q4_k),
    "IQ2_XXS": (16, 256, 66, iq2_xxs),
}
