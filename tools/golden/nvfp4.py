"""NVFP4 matrices in the two published layouts, to and from numbers.

A group of 16 neighbours in a row shares an E4M3 scale; a matrix has one float32 scale more. ModelOpt
stores it as a factor, compressed-tensors as a divisor.
"""

import torch

GROUP = 16
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
LARGEST = 6.0
LARGEST_SCALE = 448.0  # of E4M3


def decode(codes, scales, factor):
    """float64 [N, K] from codes [N, K/2] (low nibble first), scales [N, K/16] and the factor."""
    nibbles = torch.stack([codes & 15, codes >> 4], dim=-1).reshape(codes.shape[0], -1)
    groups = VALUES.double()[nibbles.long()].reshape(codes.shape[0], -1, GROUP)
    return (groups * scales.double().unsqueeze(-1) * factor.double()).reshape(codes.shape[0], -1)


def encode(weight):
    """codes, scales and the factor of a matrix: nearest values, ties to the even code."""
    weight = weight.float()
    factor = (weight.abs().max() / (LARGEST * LARGEST_SCALE)).reshape(())
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    scales = (groups.abs().amax(-1) / LARGEST / factor).clamp(max=LARGEST_SCALE)
    scales = scales.to(torch.float8_e4m3fn)
    step = scales.float().unsqueeze(-1) * factor
    scaled = torch.where(step > 0, groups / step, torch.zeros(())).clamp(-LARGEST, LARGEST)
    distance = (scaled.abs().unsqueeze(-1) - VALUES[:8]).abs()
    # The first of two equal distances is the smaller code; the even one of the two is wanted.
    nearest = distance.argmin(-1)
    above = (nearest + 1).clamp(max=7)
    tie = distance.gather(-1, nearest.unsqueeze(-1)) == distance.gather(-1, above.unsqueeze(-1))
    nearest = torch.where(tie.squeeze(-1) & (nearest % 2 == 1), above, nearest)
    codes = (nearest + 8 * (scaled < 0)).to(torch.uint8).reshape(weight.shape[0], -1)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales, factor


def dequantised(tensors):
    """The tensors of a checkpoint with every NVFP4 matrix replaced by its float64 values."""
    result = {}
    for name, value in tensors.items():
        stem, _, end = name.rpartition(".")
        if end == "weight_packed":
            factor = 1 / tensors[stem + ".weight_global_scale"].float()
            result[stem + ".weight"] = decode(value, tensors[stem + ".weight_scale"], factor)
        elif end == "weight" and stem + ".weight_scale_2" in tensors:
            # Through its reciprocal, as the other layout stores it: then both are the same numbers.
            factor = 1 / (1 / tensors[stem + ".weight_scale_2"].float())
            result[name] = decode(value, tensors[stem + ".weight_scale"], factor)
        elif end not in ("weight_scale", "weight_scale_2", "weight_global_scale",
                         "input_scale", "input_global_scale"):  # fmt: skip
            result[name] = value
    return result
