#!/usr/bin/env python3
"""Compares what llama.cpp answers to the GGUF forms of gguf_models.py with the records of the models.

    check_gguf_models.py MODEL..      folders with config.json, weights and golden.safetensors

Each model is written as GGUF with float32 matrices and run by the llama.cpp inside the package xllamacpp, whose C
functions are called. Prints the largest relative error of a row of logits. llama.cpp keeps keys and values
in half precision, which is what an error of some 1e-4 comes from; a wrong name, order or sign gives errors
near 1. llama.cpp has no solar-open2; its delta attention and experts are written as those of kimi-linear.
"""

import ctypes
import pathlib
import subprocess
import sys
import tempfile

import numpy
import xllamacpp
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).resolve().parent
BOUND = 5e-3


class Settings(ctypes.Structure):
    """Longer than llama.cpp's structures of parameters, which pass through here as they are."""

    _fields_ = [("bytes", ctypes.c_uint64 * 128)]


class Batch(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embedding", ctypes.c_void_p),
        ("position", ctypes.POINTER(ctypes.c_int32)),
        ("sequences", ctypes.POINTER(ctypes.c_int32)),
        ("sequence", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("wanted", ctypes.POINTER(ctypes.c_int8)),
    ]


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def say_nothing(*_):
    """Instead of llama.cpp's log."""


def library():
    llama = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    pointer = ctypes.c_void_p
    llama.llama_model_default_params.restype = llama.llama_context_default_params.restype = Settings
    llama.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Settings]
    llama.llama_model_load_from_file.restype = pointer
    llama.llama_init_from_model.argtypes = [pointer, Settings]
    llama.llama_init_from_model.restype = pointer
    llama.llama_batch_init.argtypes = [ctypes.c_int32] * 3
    llama.llama_batch_init.restype = Batch
    llama.llama_decode.argtypes = [pointer, Batch]
    llama.llama_get_logits_ith.argtypes = [pointer, ctypes.c_int32]
    llama.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    llama.llama_free.argtypes = llama.llama_model_free.argtypes = [pointer]
    llama.llama_log_set(say_nothing, None)
    llama.llama_backend_init()
    return llama


def logits(llama, path, ids, vocabulary):
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    if not model:
        sys.exit(f"{path}: llama.cpp does not load it")
    context = llama.llama_init_from_model(model, llama.llama_context_default_params())
    batch = llama.llama_batch_init(len(ids), 0, 1)
    batch.count = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.position[i], batch.wanted[i] = token, i, 1
        batch.sequences[i], batch.sequence[i][0] = 1, 0
    if llama.llama_decode(context, batch) != 0:
        sys.exit(f"{path}: llama.cpp does not run it")
    rows = [numpy.ctypeslib.as_array(llama.llama_get_logits_ith(context, i), (vocabulary,)).copy()
            for i in range(len(ids))]  # fmt: skip
    llama.llama_free(context)
    llama.llama_model_free(model)
    return numpy.stack(rows).astype(float)


def main(folders):
    llama, good = library(), True
    for folder in folders:
        golden = load_file(f"{folder}/golden.safetensors")
        expected = golden["logits"].astype(float)
        with tempfile.TemporaryDirectory() as scratch:
            path = pathlib.Path(scratch) / "model.gguf"
            subprocess.run([sys.executable, HERE / "gguf_models.py", folder, path, "--float32"], check=True)
            found = logits(llama, path, golden["input_ids"].tolist(), expected.shape[1])
        errors = numpy.linalg.norm(found - expected, axis=1) / numpy.linalg.norm(expected, axis=1)
        agree = (found.argmax(1) == expected.argmax(1)).mean()
        print(f"{folder}: largest error {errors.max():.1e}, median {numpy.median(errors):.1e}, "
              f"same best token at {agree:.1%} of {len(errors)} positions", flush=True)  # fmt: skip
        good &= bool(errors.max() < BOUND)  # not so for NaN
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
