"""Loading models with a tensor far larger than the bounce budget, and one whose file loses its end.

Goal: while a model is loaded there is at most 1 % and one band of a matrix in memory beside what is there
afterwards, what is there afterwards is the weights, and nothing of the file stays in the system's cache.
A file that shrinks meanwhile is an error. Method: models of zeros (sparse files) served by `troupe node`;
the largest resident set of the process up to then (VmHWM) against its resident set when it is ready
(VmRSS), and that against a model which is the same but for the large tensors. Pages by mincore.
"""

import ctypes
import mmap
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from cluster import Cluster
from loading_models import HIDDEN, MODELS, bf16, gguf_matrices, llama
from troupe_test import Tap, binary

WINDOW = 4 << 20  # TR_LOAD_WINDOW of actors/packing.h
PACKED = 1.05  # packed, a block of FP8 has its scale once for each row: 4 bytes to 128
WIDE = 65536  # tokens of a model with a large embedding
HEAD = 8 << 20  # of a GGUF file, which the tokenizer is read from when the weights are there
LIMITS = "limits: {step_rows: 64, sequences: 1, context: 64}\n"


def status_bytes(pid):
    """(largest resident set so far, resident set now)"""
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return tuple(int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) << 10 for name in ("VmHWM", "VmRSS"))


def cached_bytes(path):
    """Bytes of the file that are in the system's cache."""
    size = path.stat().st_size
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        failed = libc.mincore(ctypes.addressof(first), size, pages)
        del first  # or the mapping cannot be closed
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def weights_file(folder):
    return next(path for path in folder.iterdir() if path.name in ("model.safetensors", "model.gguf"))


def served(folder):
    """(peak, resident when it is ready, cached of the file then)"""
    file = weights_file(folder)
    with Cluster(folder if file.suffix == ".safetensors" else file, nodes=1, separate=True, tail=LIMITS) as cluster:
        return *status_bytes(cluster.processes[0].pid), cached_bytes(file)


def judge(measured, weights):
    peak, final, cached = measured
    print(f"# {(peak - final) / 2**20:.1f} MiB over the final size, {cached / 2**20:.1f} MiB of the file cached")
    if peak - final > final * 0.01 + WINDOW:
        return f"{peak - final} bytes over the final {final}"
    return None if cached <= weights * 0.01 + HEAD else f"{cached} bytes of the file are cached"


def parts(scratch, name):
    """Tensors that are packed part by part: slices of a feed-forward, experts."""
    write, times = MODELS[name]
    weights = write(scratch / "large", times) - write(scratch / "small", 1)
    small, large = served(scratch / "small"), served(scratch / "large")
    grown = large[1] - small[1]
    print(f"# {grown / 2**20:.1f} MiB more for {weights / 2**20:.1f} MiB of weights")
    if grown > weights * PACKED + WINDOW:
        return f"{grown} bytes more for {weights} bytes of weights"
    return judge(large, weights)


def whole(scratch, write):
    """Tensors that are packed as one matrix: embedding and output matrix. Messages grow with them."""
    weights = write(scratch / "wide", 1, vocabulary=WIDE)
    return judge(served(scratch / "wide"), weights)


def start(scratch, model):
    return subprocess.Popen(
        [binary(), "run", model, "--ids", scratch / "ids.txt", "-n", "1", "--no-text"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def shrinking(scratch):
    refused = 0
    (scratch / "ids.txt").write_text("1 5 7\n")
    llama(bf16, 4 * HIDDEN)(scratch / "model", 1, layers=8)
    model = scratch / "model" / "model.safetensors"
    size = model.stat().st_size
    for wait in (0.0, 0.02, 0.05, 0.1, 0.2):
        child = start(scratch, scratch / "model")
        time.sleep(wait)
        os.truncate(model, size // 3)
        try:
            said = child.communicate(timeout=120)[1].decode()
        finally:
            child.kill()
            os.truncate(model, size)
        if child.returncode == 0:
            continue  # it had read everything
        if child.returncode != 1 or "model.safetensors" not in said or len(said.splitlines()) != 1:
            return f"after {wait} s: exit code {child.returncode}: {said}"
        print(f"# after {wait} s: {said.strip()}")
        refused += 1
    return None if refused else "every run had read the file before it was cut"


def main():
    tap = Tap()
    signal.alarm(600)
    promise = "loading keeps 1 % and one band beside the weights"

    def check(name, test):
        # beside the command: /tmp may be memory itself
        with tempfile.TemporaryDirectory(prefix="troupe-loading-", dir=pathlib.Path(binary()).parent) as scratch:
            tap.check(name, lambda: test(pathlib.Path(scratch)))

    if "--sanitized" not in sys.argv:  # there, shadow memory is counted, too
        for model in MODELS:
            check(f"{promise}: {model}", lambda scratch, m=model: parts(scratch, m))
        check(f"{promise}: embedding in BF16", lambda scratch: whole(scratch, llama(bf16, HIDDEN)))
        check(f"{promise}: embedding in Q8_0 of a GGUF", lambda scratch: whole(scratch, gguf_matrices))
    check("a file that shrinks while it is loaded is an error", shrinking)
    tap.done()


main()
