"""Encoders of the safetensors formats: codes and their scales, from float32 [rows, cols]."""

import numpy as np

from .numbers import E2M1, from_e4m3, to_e2m1, to_e4m3

F32 = np.float32


def fp8(w, kind):
    """E4M3 codes and float32 scales: kind tensor (one), channel (one for each row) or block (one for
    each 128 x 128). The largest element of each becomes 448."""
    rows, cols = w.shape
    if kind == "tensor":
        amax = np.abs(w).max(keepdims=True)
    elif kind == "channel":
        amax = np.abs(w).max(axis=1, keepdims=True)
    else:
        padded = np.zeros((-(-rows // 128) * 128, -(-cols // 128) * 128), F32)
        padded[:rows, :cols] = np.abs(w)
        amax = padded.reshape(padded.shape[0] // 128, 128, -1, 128).max(axis=(1, 3))
    scale = (amax / F32(448)).astype(F32)
    scale[scale == 0] = 1  # nothing but zeros
    spread = scale
    if kind == "block":
        spread = scale.repeat(128, axis=0)[:rows].repeat(128, axis=1)[:, :cols]
    return to_e4m3(w / spread), scale


def nvfp4(w, scale=None):
    """Packed codes [rows, cols / 2], E4M3 block scales [rows, cols / 16], the matrix scale. In f32 and
    in this order, as the reference of the format does."""
    rows, cols = w.shape
    scale = F32(np.abs(w).max() / F32(2688)) if scale is None else F32(scale)
    scale = scale if scale > 0 else F32(1)
    groups = w.reshape(rows, cols // 16, 16)
    wanted = np.abs(groups).max(axis=2) / F32(F32(6) * scale)
    wanted[wanted == 0] = 1
    block = to_e4m3(wanted)
    step = from_e4m3(block) * scale
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = to_e2m1(np.where(step[:, :, None] > 0, groups / step[:, :, None], 0 * groups))
    codes = codes.reshape(rows, cols)
    return codes[:, ::2] | codes[:, 1::2] << 4, block, scale


def nvfp4_values(packed, block, scale):
    """What nvfp4() stands for."""
    rows, half = packed.shape
    codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(rows, -1, 16)
    step = from_e4m3(block) * F32(scale)
    return (E2M1[codes] * step[:, :, None]).reshape(rows, 2 * half)


def mxfp4(w):
    """Packed codes [rows, cols / 2] and exponents [rows, cols / 32] (E8M0, 127 stands for 1). The
    largest element of a group gets the largest power of E2M1; ties go to the lower code, as in ggml."""
    rows, cols = w.shape
    groups = w.reshape(rows, cols // 32, 32)
    peak = np.abs(groups).max(axis=2)
    exponent = np.where(peak > 0, np.frexp(peak)[1] - 1 - 2 + 127, 0)
    exponent = np.clip(exponent, 0, 254).astype(np.uint8)
    scaled = groups / np.ldexp(1.0, exponent.astype(np.int32) - 127)[:, :, None]
    codes = np.abs(scaled[..., None] - E2M1).argmin(-1).astype(np.uint8).reshape(rows, cols)
    return codes[:, ::2] | codes[:, 1::2] << 4, exponent


def mxfp4_values(packed, exponent):
    """What mxfp4() stands for."""
    rows, half = packed.shape
    codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(rows, -1, 32)
    step = np.ldexp(F32(1), exponent.astype(np.int32) - 127)
    return (E2M1[codes] * step[:, :, None]).astype(F32).reshape(rows, 2 * half)
