"""Loading a model of 400 MB, and one whose file loses its end meanwhile.

Goal: beside the packed weights, loading keeps one band of a matrix in memory; a file that shrinks is
an error. Method: a llama model of zeros (a sparse file) loaded by `troupe run`; the largest resident
set is compared with that of a run which is the same but for what the weights take.
"""

import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time

from troupe_test import Tap, binary

WINDOW = 4 << 20  # TR_LOAD_WINDOW of actors/packing.h
HIDDEN, WIDTH, LAYERS, VOCABULARY = 1024, 4096, 8, 32768


def write_model(folder, layers):
    """Returns the bytes of its weights."""
    folder.mkdir()
    config = {"model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": layers,
              "num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": VOCABULARY,
              "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "max_position_embeddings": 64,
              "tie_word_embeddings": False, "eos_token_id": 2, "bos_token_id": 1}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN],
              "model.norm.weight": [HIDDEN]}  # fmt: skip
    for i in range(layers):
        layer = f"model.layers.{i}."
        shapes |= {f"{layer}self_attn.{n}_proj.weight": [HIDDEN, HIDDEN] for n in "qo"}
        shapes |= {f"{layer}self_attn.{n}_proj.weight": [64, HIDDEN] for n in "kv"}
        shapes |= {f"{layer}mlp.{n}_proj.weight": [WIDTH, HIDDEN] for n in ("gate", "up")}
        shapes |= {f"{layer}mlp.down_proj.weight": [HIDDEN, WIDTH]}
        shapes |= {f"{layer}{n}_layernorm.weight": [HIDDEN] for n in ("input", "post_attention")}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + at)
    return at


def start(scratch, model):
    return subprocess.Popen(
        [binary(), "run", model, "--ids", scratch / "ids.txt", "-n", "1", "--no-text"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def resident(scratch, model):
    child = start(scratch, model)
    said = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RuntimeError(said.decode())
    return usage.ru_maxrss << 10


def memory(scratch):
    small, large = write_model(scratch / "small", 1), write_model(scratch / "large", LAYERS)
    grown = resident(scratch, scratch / "large") - resident(scratch, scratch / "small")
    weights = large - small
    print(f"# {grown / 2**20:.1f} MiB more for {weights / 2**20:.1f} MiB more of weights")
    bound = weights * 1.01 + WINDOW  # caches are small: one head of keys, 64 positions
    return None if grown < bound else f"{grown} bytes more, expected at most {bound:.0f}"


def shrinking(scratch):
    refused = 0
    model = scratch / "large" / "model.safetensors"
    size = model.stat().st_size
    for wait in (0.0, 0.02, 0.05, 0.1, 0.2):
        child = start(scratch, scratch / "large")
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
    with tempfile.TemporaryDirectory(prefix="troupe-loading-") as name:
        scratch = pathlib.Path(name)
        (scratch / "ids.txt").write_text("1 5 7\n")
        if "--sanitized" in sys.argv:  # where shadow memory is counted, too
            write_model(scratch / "large", LAYERS)
        else:
            tap.check("loading keeps 1 % and one band beside the weights", lambda: memory(scratch))
        tap.check("a file that shrinks while it is loaded is an error", lambda: shrinking(scratch))
    tap.done()


main()
