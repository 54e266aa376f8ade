#!/usr/bin/env python3
"""Makes the tables of vectors in tests/model/data again: their inputs are read, their answers computed.

    given_vectors.py tests/model/data FOLDER      writes files of the same names into FOLDER

The inputs (blocks, numbers, texts, whole files) were published with the vectors; the seed that they were
drawn with is not known, so they are taken from the file that is there. Every answer beside them comes from
the reference again, and the file is the same, byte for byte, if the reference still says the same:

    e2m1, e4m3fn              written anew, from the definition of the format
    vec_*                     values of GGUF blocks            gguf
    ggml_encode               blocks of plain quantisers       ggml, inside xllamacpp
    nvfp4_encode              groups of NVFP4                  numpy, with torch's rounding to E4M3
    pretokenize               pieces of texts                  tokenizers
    safetensors_cases         accepted, or the class of error  safetensors
    gguf_cases                accepted or not                  ggml, inside xllamacpp

What a case of the last two requires of Troupe ("accept", "reject", "policy") is our own decision and stays.
"""

import ctypes
import json
import math
import pathlib
import re
import sys
import tempfile

import gguf
import numpy
import safetensors
import torch
import xllamacpp
from nvfp4 import VALUES
from tokenizer_features import KIMI, LLAMA3, QWEN2, QWEN35
from tokenizers import Regex, pre_tokenizers

# A build of llama.cpp in one library, whose C functions can be called.
GGML = ctypes.CDLL(xllamacpp.xllamacpp.__file__)


def hexes(values):
    return " ".join(f"{word:08x}" for word in numpy.asarray(values, "<f4").view("<u4").tolist())


def floats(text):
    return numpy.array([int(word, 16) for word in text.split()], "<u4").view("<f4")


def remade(path, answer):
    """The file with the answer of each line computed again; its first lines, which explain it, stay."""
    lines = path.read_text(encoding="utf-8").splitlines()
    fields = (line if line.startswith("#") else answer(*(f.strip() for f in line.split("|")))
              for line in lines)  # fmt: skip
    return "\n".join(fields) + "\n"


# -- numbers --


def e2m1():
    yield ("# E2M1 (FP4): code value float32_bits. code bit3 = sign, bits 2..1 = exponent (bias 1), "
           "bit 0 = mantissa. No inf, no NaN. Code 8 is -0.")  # fmt: skip
    for code in range(16):
        exponent, mantissa = code >> 1 & 3, code & 1
        value = (1 + mantissa / 2) * 2 ** (exponent - 1) if exponent else mantissa / 2
        value = math.copysign(value, -1 if code & 8 else 1)
        yield f"{code:x} {value:g} {hexes([value])}"


def e4m3fn():
    yield ('# FP8 E4M3 (finite + NaN variant, "e4m3fn"): byte float32_bits decimal. bias 7; 7f and ff are '
           "NaN; no infinities; max 448 (7e).")  # fmt: skip
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        value = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa / 8 * 2.0**-6
        sign = "f" if code & 0x80 else "7"
        if code & 0x7F == 0x7F:
            yield f"{code:02x} {sign}fc00000 nan"
            continue
        value = math.copysign(value, -1 if code & 0x80 else 1)
        yield f"{code:02x} {hexes([value])} {value!r}"


def block_values(kind):
    def answer(block, _):
        data = numpy.frombuffer(bytes.fromhex(block), numpy.uint8).reshape(1, -1)
        with numpy.errstate(all="ignore"):
            values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind.upper()])
        return f"{block} | {hexes(values.ravel())}"

    return answer


def ggml_blocks(kind, inputs, _):
    """ggml's own C: gguf's Python differs from it where a block holds nothing but zeros."""
    number = gguf.GGMLQuantizationType[kind.upper()]
    values = floats(inputs)
    elements, size = gguf.GGML_QUANT_SIZES[number]
    out = (ctypes.c_uint8 * (len(values) // elements * size))()
    GGML.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64,
                                         ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]  # fmt: skip
    GGML.ggml_quantize_chunk(int(number), values.ctypes.data, ctypes.addressof(out), 0, 1, len(values), None)
    return f"{kind} | {inputs} | {bytes(out).hex()}"


def nearest_code(x):
    """The E2M1 code of a number: to nearest, ties to the even code, too large to the largest."""
    grid = VALUES[:8].numpy()
    distance = abs(min(abs(float(x)), 6.0) - grid)
    code = min(range(8), key=lambda i: (distance[i], i & 1))
    return code | (8 if numpy.signbit(x) else 0)


def nvfp4_group(factor, inputs, *_):
    one = numpy.float32
    s2, x = floats(factor)[0], floats(inputs)
    wanted = numpy.abs(x).max() / (one(6) * s2) if s2 else one(0)
    wanted = min(wanted if wanted else one(1), one(448))  # torch turns what is above into NaN
    scale = torch.tensor(float(wanted)).to(torch.float8_e4m3fn)
    step = one(scale.item()) * s2
    codes = [nearest_code(v / step if step else v * 0) for v in x]
    packed = bytes(codes[i] | codes[i + 1] << 4 for i in range(0, 16, 2))
    values = VALUES.numpy()[codes] * step
    return f"{factor} | {inputs} | {scale.view(torch.uint8).item():02x} | {packed.hex()} | {hexes(values)}"


# -- texts and files --

PATTERNS = {"qwen2": QWEN2, "llama3": LLAMA3, "qwen35": QWEN35, "kimi-k2": KIMI}


def pieces(path):
    for line in path.read_bytes().splitlines():  # the texts hold other ends of lines, too
        case = json.loads(line)
        name, text = case["pattern"], case["text"]
        if name == "gpt2":
            cutter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        else:
            cutter = pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated")
        cut = [text[begin:end] for _, (begin, end) in cutter.pre_tokenize_str(text)]
        yield json.dumps({"pattern": name, "text": text, "pieces": cut},
                         ensure_ascii=False, separators=(",", ":"))  # fmt: skip


# How the messages of the safetensors package begin, and the names of the errors in its source.
ERRORS = {
    "header too small": "HeaderTooSmall",
    "header too large": "HeaderTooLarge",
    "invalid header length": "InvalidHeaderLength",
    "invalid UTF-8 in header": "InvalidHeader",
    "invalid JSON in header": "InvalidHeaderDeserialization",
    "incomplete metadata": "MetadataIncompleteBuffer",
    "invalid offset for tensor": "InvalidOffset",
    "invalid shape, data type, or offset": "TensorInvalidInfo",
    "overflow computing buffer size": "ValidationOverflow",
    "The slice is slicing for subbytes": "MisalignedSlice",
}


def safetensors_verdict(name, required, _, content):
    verdict = "OK"
    try:
        safetensors.deserialize(bytes.fromhex(content))
    except safetensors.SafetensorError as error:
        message = re.sub("^Error while deserializing: ", "", str(error))
        verdict = next(word for start, word in ERRORS.items() if message.startswith(start))
    return f"{name} | {required} | {verdict} | {content}"


class GgufInit(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p)]


def gguf_verdict(name, required, _, content):
    GGML.gguf_init_from_file.argtypes = [ctypes.c_char_p, GgufInit]
    GGML.gguf_init_from_file.restype = ctypes.c_void_p
    GGML.gguf_free.argtypes = [ctypes.c_void_p]
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(bytes.fromhex(content))
        file.flush()
        # With a context, so that the tensors' data must lie inside the file.
        context = ctypes.c_void_p()
        parameters = GgufInit(False, ctypes.addressof(context))
        opened = GGML.gguf_init_from_file(file.name.encode(), parameters)
    if opened:
        GGML.gguf_free(opened)
        GGML.ggml_free(context)
    return f"{name} | {required} | {'OK' if opened else 'reject'} | {content}"


def main(source, target):
    source, target = pathlib.Path(source), pathlib.Path(target)
    files = {"e2m1.txt": "\n".join(e2m1()) + "\n", "e4m3fn.txt": "\n".join(e4m3fn()) + "\n"}
    for path in sorted(source.glob("vec_*.txt")):
        files[path.name] = remade(path, block_values(path.stem.removeprefix("vec_")))
    for name, answer in (("ggml_encode.txt", ggml_blocks), ("nvfp4_encode.txt", nvfp4_group),
                         ("safetensors_cases.txt", safetensors_verdict),
                         ("gguf_cases.txt", gguf_verdict)):  # fmt: skip
        files[name] = remade(source / name, answer)
    files["pretokenize.jsonl"] = "\n".join(pieces(source / "pretokenize.jsonl")) + "\n"
    for name, text in files.items():
        (target / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
