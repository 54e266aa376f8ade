"""Companions of quantised weights: missing for some experts, of the wrong type or shape, with values
that no model has, or mixed up between the two conventions for matrix scales."""

import struct

from cases import Case, read_folder
from containers import Gguf, safetensors_file, tensors_of

FILE = "model.safetensors"
STEM = "model.layers.1.mlp.experts.5.down_proj"
NAN, INFINITY = float("nan"), float("inf")


def f32(value):
    return struct.pack("<f", value)


def companions(base, label, file, codes, scales, matrix_scale, input_scale, reciprocal):
    """NVFP4 of either layout in `file` of `base`; suffixes of the four tensors of a matrix."""
    right = tensors_of(base[file])
    name = {part: f"{STEM}.{suffix}" for part, suffix in
            {"codes": codes, "scales": scales, "matrix": matrix_scale}.items()}  # fmt: skip
    inputs = f"{STEM}.{input_scale}"

    def case(what, changes, names, headers=True, drop=()):
        changed = {k: v for k, v in (right | changes).items() if k not in drop}
        return Case(f"{label} {what}", base | {file: safetensors_file(changed)}, names, headers=headers)

    for part in name.values():
        short = part.rsplit(".", 1)[1]
        dtype, shape, raw = right[part]
        yield case(f"without {short} of one expert", {}, part.rsplit(".", 1)[0], drop=[part])
        yield case(f"without {short} of every expert", {}, ".experts.",
                   drop=[k for k in right if ".experts." in k and k.endswith("." + short)])  # fmt: skip
        yield case(f"{short} as I64", {part: ("I64", shape, raw * (8 // (len(raw) // max(1, _count(shape)))))}, [file, part])  # fmt: skip
    dtype, shape, raw = right[name["codes"]]
    yield case("codes of one expert cut", {name["codes"]: (dtype, [shape[0] // 2, shape[1]], raw[: len(raw) // 2])}, [file, name["codes"]])
    yield case("codes of one expert unpacked", {name["codes"]: (dtype, [shape[0], 2 * shape[1]], raw * 2)}, [file, name["codes"]])
    dtype, shape, raw = right[name["scales"]]
    yield case("block scales transposed", {name["scales"]: (dtype, shape[::-1], raw)}, [file, name["scales"]])
    yield case("block scales flat", {name["scales"]: (dtype, [len(raw)], raw)}, [file, name["scales"]])
    yield case("block scales of twice the blocks", {name["scales"]: (dtype, [shape[0], 2 * shape[1]], raw * 2)}, [file, name["scales"]])
    yield case("block scales as BF16", {name["scales"]: ("BF16", shape, raw * 2)}, [file, name["scales"]])
    for what, byte in {"NaN": 0x7F, "minus NaN": 0xFF, "negative": 0xB8}.items():
        for at in (0, len(raw) // 2, len(raw) - 1):
            bad = raw[:at] + bytes([byte]) + raw[at + 1 :]
            yield case(f"a {what} block scale at {at}", {name["scales"]: (dtype, shape, bad)},
                       [file, STEM], headers=False)  # fmt: skip
    dtype, shape, raw = right[name["matrix"]]
    yield case("two matrix scales", {name["matrix"]: ("F32", [2], raw * 2)}, [file, name["matrix"]])
    yield case("no matrix scale in its tensor", {name["matrix"]: ("F32", [0], b"")}, [file, name["matrix"]])
    for value in (NAN, INFINITY, -INFINITY, -1.0, 0.0):
        yield case(f"a matrix scale of {value}", {name["matrix"]: ("F32", shape, f32(value))},
                   [file, name["matrix"]], headers=False)  # fmt: skip
    value = struct.unpack("<f", raw)[0]
    yield case("a matrix scale that is the reciprocal", {name["matrix"]: ("F32", shape, f32(1 / value))},
               [file, name["matrix"], "reciprocal"], headers=False)  # fmt: skip
    every = {k: ("F32", v[1], f32(1 / struct.unpack("<f", v[2])[0])) for k, v in right.items()
             if k.endswith("." + matrix_scale)}  # fmt: skip
    yield case("all matrix scales reciprocal", every, [file, matrix_scale, "reciprocal"], headers=False)
    for value in (NAN, INFINITY, -1.0, 0.0):
        yield case(f"an activation scale of {value}", {inputs: ("F32", right[inputs][1], f32(value))},
                   [file, inputs, "activation scale", "expected a finite number above 0"], headers=False)  # fmt: skip
    value = struct.unpack("<f", right[inputs][2])[0]
    says = ["stands for activations of", "expected at most 65504", "reciprocal"]
    yield case("an activation scale that is the reciprocal", {inputs: ("F32", right[inputs][1], f32(1 / value))},
               [file, inputs, *says], headers=False)  # fmt: skip
    every = {k: ("F32", v[1], f32(1 / struct.unpack("<f", v[2])[0])) for k, v in right.items()
             if k.endswith("." + input_scale)}  # fmt: skip
    yield case("all activation scales reciprocal", every, [file, input_scale, *says], headers=False)
    yield case("two activation scales", {inputs: ("F32", [2], right[inputs][2] * 2)}, [file, inputs, "expected one number"])
    yield case("an activation scale as I64", {inputs: ("I64", [1], bytes(8))}, [file, inputs, "I64", "F32, BF16 or F16"])
    other = name["matrix"].replace(matrix_scale, reciprocal)
    yield case("the matrix scale of the other layout", {other: right[name["matrix"]]}, STEM, drop=[name["matrix"]])


def _count(shape):
    count = 1
    for d in shape:
        count *= d
    return count


def eight_bits(base):
    """FP8 and MXFP4 instead of one expert's BF16."""
    right = tensors_of(base[FILE])
    weight = STEM + ".weight"
    rows, cols = right[weight][1]
    codes = bytes(range(0x30, 0x38)) * (rows * cols // 8)
    fp8 = {weight: ("F8_E4M3", [rows, cols], codes)}
    scale, inverse = STEM + ".weight_scale", STEM + ".weight_scale_inv"

    def case(what, changes, names, headers=True):
        return Case(what, base | {FILE: safetensors_file(right | changes)}, names, headers=headers)

    yield case("FP8 without scale", fp8, STEM)
    yield case("FP8 with both scales", fp8 | {scale: ("F32", [1], f32(0.01)), inverse: ("F32", [1], f32(0.01))}, [FILE, STEM])
    yield case("FP8 with three scales", fp8 | {scale: ("F32", [3], f32(0.01) * 3)}, [FILE, scale])
    yield case("FP8 with block scales of a larger matrix", fp8 | {inverse: ("F32", [2, 2], f32(0.01) * 4)}, [FILE, inverse])
    yield case("FP8 with scales in powers of two", fp8 | {scale: ("F8_E8M0", [rows, cols // 32], bytes(rows * cols // 32))}, [FILE, scale])
    yield case("FP8 with a text as scale", fp8 | {scale: ("U8", [1], b"1")}, [FILE, scale])
    for value in (NAN, INFINITY, -0.5, 0.0, 100.0):
        yield case(f"FP8 scale {value}", fp8 | {scale: ("F32", [], f32(value))}, [FILE, scale], headers=False)
    for value in (NAN, INFINITY, -0.5, 100.0):
        each = f32(0.01) * 5 + f32(value) + f32(0.01) * (rows - 6)
        yield case(f"FP8 scale of a row {value}", fp8 | {scale: ("F32", [rows, 1], each)}, [FILE, scale], headers=False)
    for byte in (0x7F, 0xFF):
        bad = codes[:70] + bytes([byte]) + codes[71:]
        yield case(f"FP8 code {byte:#x}", {weight: ("F8_E4M3", [rows, cols], bad), scale: ("F32", [], f32(0.01))},
                   [FILE, STEM], headers=False)  # fmt: skip
    mx = {weight: ("U8", [rows, cols // 2], codes[: rows * cols // 2])}
    blocks = bytes([120]) * (rows * cols // 32)
    yield case("MXFP4 without scales", mx, STEM)
    yield case("MXFP4 with scales of twice the rows", mx | {scale: ("U8", [2 * rows, cols // 32], blocks * 2)}, [FILE, scale])
    yield case("MXFP4 with half the codes", {weight: ("U8", [rows, cols // 4], codes[: rows * cols // 4]), scale: ("U8", [rows, cols // 32], blocks)}, [FILE, weight])
    yield case("MXFP4 with a NaN scale", mx | {scale: ("F8_E8M0", [rows, cols // 32], blocks[:-1] + b"\xff")}, [FILE, STEM], headers=False)
    yield case("a GPTQ matrix", {STEM + ".qweight": ("I64", [rows, cols // 16], bytes(rows * cols // 2))}, STEM)


def blocks(file):
    """A block format of GGUF with bad scales."""
    for label, bits in {"NaN": 0x7E00, "infinity": 0x7C00, "minus infinity": 0xFC00}.items():
        for at in (0, 3, -1):
            g = Gguf(file)
            ne = g.tensors["blk.1.ffn_down.weight"][0]
            count = ne[0] * ne[1] // 32
            block = struct.pack("<e", 0.01) + bytes(range(32))
            raw = [block] * count
            raw[at] = struct.pack("<H", bits) + block[2:]
            g.tensors["blk.1.ffn_down.weight"] = [ne, 8, b"".join(raw)]
            yield Case(f"GGUF Q8_0 scale {label} at {at}", {"model.gguf": g.write()},
                       ["model.gguf", "blk.1.ffn_down.weight"], opens="model.gguf", headers=False)  # fmt: skip


def cases(models):
    modelopt = read_folder(models / "qwen3_moe-a-modelopt")
    yield from companions(modelopt, "ModelOpt", FILE, "weight", "weight_scale", "weight_scale_2", "input_scale", "weight_global_scale")
    packed = read_folder(models / "qwen3_moe-a-ct")
    file = next(f for f in sorted(packed) if f.endswith(".safetensors") and STEM + ".weight_packed" in tensors_of(packed[f]))
    del packed["model.safetensors.index.json"]  # the folder's files make the model then
    yield from companions(packed, "compressed-tensors", file, "weight_packed", "weight_scale", "weight_global_scale", "input_global_scale", "weight_scale_2")
    yield from eight_bits(read_folder(models / "qwen3_moe-a"))
    yield from blocks((models / "llama-a-gguf" / "model.gguf").read_bytes())
