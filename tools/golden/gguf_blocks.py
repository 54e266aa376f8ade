"""Writes tests/model/data/gguf_blocks.txt: a hash of what the gguf package (PyPI) makes of made-up
blocks of every type, random and extreme.

    python gguf_blocks.py tests/model/data/gguf_blocks.txt

Needs numpy and gguf. A line: type | kind of scales | seed | blocks | hash. Bytes come from splitmix64
(the upper byte of each number). Then the f16 scale, and the minimum if there is one, of each block is
replaced as the kind says; tests/model/test_blocks.c does the same. The hash is FNV-1a over the f32
bits, a word at a time; NaN of any sign and payload counts as 7fc00000.
"""

import sys

import numpy as np
from gguf import GGMLQuantizationType, GGML_QUANT_SIZES
from gguf.quants import dequantize

MASK = (1 << 64) - 1
# type: where its scale and its minimum stand
TYPES = {
    "Q4_0": (0, None), "Q4_1": (0, 2), "Q5_0": (0, None), "Q5_1": (0, 2), "Q8_0": (0, None),
    "Q2_K": (80, 82), "Q3_K": (108, None), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208, None),
    "IQ2_XXS": (0, None), "IQ2_XS": (0, None), "IQ3_XXS": (0, None), "IQ4_NL": (0, None),
    "IQ4_XS": (0, None), "MXFP4": (None, None), "NVFP4": (None, None),
}
# 0, -0, the smallest and largest subnormals, the smallest normal, 1, -1, the largest, infinity, NaN
EXTREMES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0x7E00]


class Random:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
        return z ^ z >> 31


def blocks_of(name, kind, seed, count):
    size = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    random = Random(seed)
    blocks = np.array([random.next() >> 56 for _ in range(count * size)], np.uint8)
    if kind in ("zeros", "ones"):
        blocks[:] = 0 if kind == "zeros" else 0xFF
    blocks = blocks.reshape(count, size)
    for at in TYPES[name]:
        if at is None:
            continue
        for block in blocks:
            r = random.next()
            half = EXTREMES[r % len(EXTREMES)] if kind == "extreme" else 0x2000 + (r >> 52)
            block[at : at + 2] = [half & 0xFF, half >> 8]
    return blocks


def hash_of(values):
    bits = values.view(np.uint32).ravel().tolist()
    nans = np.isnan(values).ravel().tolist()
    h = 0xCBF29CE484222325
    for word, nan in zip(bits, nans):
        h = ((h ^ (0x7FC00000 if nan else word)) * 0x100000001B3) & MASK
    return h


def main():
    with open(sys.argv[1], "w") as out:
        out.write("# type | scales | seed | blocks | FNV-1a of the f32 bits; made by tools/golden/gguf_blocks.py\n")
        for seed, name in enumerate(TYPES):
            for kind, count in (("random", 400), ("extreme", 200), ("zeros", 4), ("ones", 4)):
                blocks = blocks_of(name, kind, seed, count)
                with np.errstate(all="ignore"):
                    values = dequantize(blocks, GGMLQuantizationType[name]).astype(np.float32)
                out.write(f"{name} | {kind} | {seed} | {count} | {hash_of(values):016x}\n")


if __name__ == "__main__":
    main()
