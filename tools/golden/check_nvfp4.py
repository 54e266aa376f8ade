#!/usr/bin/env python3
"""Compares nvfp4.py with the compressed-tensors package: packing, scales, values.

    check_nvfp4.py        on random matrices; needs compressed-tensors
"""

import sys

import torch
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8, unpack_fp4_from_uint8
from nvfp4 import VALUES, decode, encode


def main():
    torch.manual_seed(1)
    wrong = 0
    for rows, columns in ((16, 64), (64, 32), (7, 160)):
        weight = torch.randn(rows, columns) * 0.2
        codes, scales, factor = encode(weight)
        nibbles = torch.stack([codes & 15, codes >> 4], dim=-1).reshape(rows, -1)
        values = VALUES[nibbles.long()]
        wrong += not torch.equal(pack_fp4_to_uint8(values.bfloat16()), codes)
        theirs = unpack_fp4_from_uint8(codes, rows, columns, dtype=torch.float32)
        step = scales.float().repeat_interleave(16, dim=1).double() * factor.double()
        ours = decode(codes, scales, factor)
        wrong += not torch.equal(theirs.double() * step, ours)
        # No value of the grid is nearer than the chosen one.
        errors = (weight.double() - ours).abs()
        best = (weight.double().unsqueeze(-1) - VALUES.double() * step.unsqueeze(-1)).abs().amin(-1)
        wrong += bool((errors > best + 1e-6 * weight.abs().max()).any())
    print("equal" if wrong == 0 else f"{wrong} comparisons differ")
    sys.exit(wrong != 0)


if __name__ == "__main__":
    main()
