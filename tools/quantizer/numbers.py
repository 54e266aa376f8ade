"""Small floats, as arrays: bfloat16, E4M3, E2M1. Encoders round to nearest, ties to even."""

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _encode(x, mantissa_bits, bias, largest):
    """The code of |x|, saturating at `largest`. Exact: x is scaled by powers of two only."""
    magnitude = np.abs(x).astype(np.float64)
    exponent = np.maximum(np.where(magnitude > 0, np.frexp(magnitude)[1] - 1, 1 - bias), 1 - bias)
    steps = np.rint(np.ldexp(magnitude, mantissa_bits - exponent)).astype(np.int32)
    return np.minimum(steps + ((exponent - (1 - bias)) << mantissa_bits), largest)


def to_e4m3(x):
    return (_encode(x, 3, 7, 0x7E) | np.signbit(x) << 7).astype(np.uint8)


def from_e4m3(codes):
    codes = codes.astype(np.int32)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent > 0, np.ldexp(8.0 + mantissa, exponent - 10), mantissa / 512.0)
    return np.where(codes & 128, -magnitude, magnitude).astype(np.float32)


def to_e2m1(x):
    return (_encode(x, 1, 1, 7) | np.signbit(x) << 3).astype(np.uint8)


def to_f16(x):
    return np.asarray(x, np.float32).astype(np.float16)


def f16_bytes(x):
    """[..., 1] halves as [..., 2] bytes."""
    return to_f16(x)[..., None].view(np.uint8)
