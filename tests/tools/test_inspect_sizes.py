"""troupe inspect on the real models: all tensors at their true shapes, without data.

Goal: the bytes agree with what was published for the files, within 0.1 %, what is skipped is named, and
it takes under 2 s, also with a tokenizer of 200,000 tokens and a chat template. Measured is the time that
passes less what the process waited for a processor that others had (schedstat), because this machine may
be busy; what it waits for a disk or sleeps counts. Under sanitizers (--untimed) it is not compared. The list
of --tensors adds up to the parts and to what is skipped. Then --verify on a model that
has data: the hash depends on every byte, and not on how tensors are cut into files.
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time

import synthetic
from troupe_test import ROOT, Tap, Troupe, binary

TOLERANCE = 0.001
SECONDS_MAX = float("inf") if "--untimed" in sys.argv else 2.0

# What is skipped: words of the reason and bytes, within 1 %.
MODELS = {
    "solar_open2-bf16": {},
    "solar_open2-nvfp4": {},
    "glm5_next-fp8": {"prediction layers": 7.55e9, "vision tower": 1.13e9},
    "glm5_next-nvfp4": {"prediction layers": 14.87e9, "vision tower": 1.13e9},
    "glm5_next-nvfp4-weights": {"prediction layers": 4.42e9, "vision tower": 1.13e9},
    "qwen4_exp-bf16": {"prediction layers": 5.21e9, "vision tower": 0.898e9},
    "qwen4_exp-nvfp4": {"prediction layers": 5.21e9, "vision tower": 0.898e9},
}

# With the text files that a real one has: tokens of its vocabulary.
TOKENS = {"solar_open2-nvfp4": 196608}


def waited_of(pid):
    """Nanoseconds; 0 where the kernel does not count them."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[1])
    except OSError:
        return 0


def inspect_timed(folder):
    """(exit code, output, errors, seconds)"""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        begin = time.monotonic()
        child = subprocess.Popen([binary(), "inspect", "--json", folder], stdout=output, stderr=errors)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        seconds = time.monotonic() - begin
        waited_ns = waited_of(child.pid)
        code = child.wait()
        output.seek(0)
        errors.seek(0)
        return code, output.read(), errors.read(), seconds - waited_ns / 1e9


def inspect_sizes(name, folder, skipped):
    make, published = synthetic.CHECKPOINTS[name]
    checkpoint = make()
    checkpoint.write(folder)
    if name in TOKENS:
        synthetic.write_tokenizer(folder, TOKENS[name])
        shutil.copy(ROOT / "models" / "tiny-solar-nvfp4" / "chat_template.jinja", folder)
    code, output, errors, seconds = inspect_timed(folder)
    if code != 0:
        return errors
    report = json.loads(output)
    if name in TOKENS and (report["tokenizer"] != {"tokens": TOKENS[name]} or report["chat_template"] != {}):
        return f"tokenizer {report['tokenizer']}, chat template {report['chat_template']}"
    found = report["tensor_bytes"]
    print(f"# {name}: {report['tensors']} tensors, {found} bytes, published {published}, {seconds:.2f} s")
    if found != checkpoint.bytes():
        return f"{found} bytes, the files have {checkpoint.bytes()}"
    if published and abs(found - published) > TOLERANCE * published:
        return f"{found} bytes, published {published}"
    # Scales of activations belong to no part.
    if abs(report["total"]["bytes"] + report["skipped"]["bytes"] - found) > TOLERANCE * found:
        return f"parts {report['total']['bytes']} and skipped {report['skipped']['bytes']} make no {found}"
    reasons = {r["reason"]: r["bytes"] for r in report["skipped"]["reasons"]}
    if len(reasons) != len(skipped):
        return f"skipped {reasons}, expected {skipped}"
    for words, size in skipped.items():
        if not any(words in reason and abs(b - size) <= 0.01 * size for reason, b in reasons.items()):
            return f"skipped {reasons}, expected {words}: {size}"
    return None if seconds < SECONDS_MAX else f"{seconds:.2f} s, expected below {SECONDS_MAX}"


def list_adds_up(folder):
    """A model with a vision tower, prediction layers, stacked experts and an n-gram table."""
    synthetic.CHECKPOINTS["qwen4_exp-bf16"][0]().write(folder)
    report = json.loads(Troupe().run("inspect", "--json", "--tensors", folder))
    sums, tables = {}, 0
    for tensor in report["tensor_list"]:
        if tensor["stored"] == "I64":  # constants of a table, which are no weights
            tables += tensor["bytes"]
            continue
        key = tensor.get("reason", tensor["part"])
        sums[key] = sums.get(key, 0) + tensor["bytes"]
    expected = {part["name"]: part["bytes"] for part in report["parts"]}
    expected |= {reason["reason"]: reason["bytes"] for reason in report["skipped"]["reasons"]}
    if sums != expected or tables != 8 * (3 + 16 + 16):
        return f"{sums} and {tables} of constants, expected {expected}"
    rows = {tensor["name"]: tensor for tensor in report["tensor_list"]}
    name = "model.language_model.layers.0.mlp.experts.gate_up_proj"
    right = {"name": name, "stored": "BF16", "shape": [512, 1280, 2560], "bytes": 2 * 512 * 1280 * 2560, "format": "BF16",
             "part": "experts"}  # fmt: skip
    return None if rows[name] == right else f"{rows[name]}, expected {right}"


def read_tensors(folder):
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        if path.name.startswith("golden"):
            continue
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, t in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = t["data_offsets"]
                tensors[name] = (t["dtype"], t["shape"], data[8 + size + begin : 8 + size + end])
    return tensors


def write_single(folder, tensors, model):
    folder.mkdir()
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            out.write(data)
    for file in ("config.json", "generation_config.json"):
        shutil.copy(model / file, folder)


def hashes_say_what_changed(folder):
    troupe = Troupe()
    model = ROOT / "models" / "tiny-solar-nvfp4"

    def hash_of(path):
        return json.loads(troupe.run("inspect", "--verify", "--json", path))["xxh3_128"]

    first = hash_of(model)
    tensors = dict(sorted(read_tensors(model).items(), reverse=True))
    write_single(folder / "one", tensors, model)
    if hash_of(folder / "one") != first:
        return "the same tensors in one file have another hash"
    name = next(n for n in tensors if n.endswith(".weight_packed") or (n.endswith("_proj.weight") and tensors[n][0] == "U8"))
    dtype, shape, data = tensors[name]
    tensors[name] = (dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))
    write_single(folder / "other", tensors, model)
    return "a changed byte has the same hash" if hash_of(folder / "other") == first else None


def bad_values_are_refused_by_name(folder):
    model = ROOT / "models" / "tiny-solar-nvfp4"
    tensors = read_tensors(model)
    name = next(n for n in tensors if ".experts." in n and n.endswith(".weight_scale"))
    dtype, shape, data = tensors[name]
    tensors[name] = (dtype, shape, data[:-1] + b"\x7f")
    write_single(folder / "nan", tensors, model)
    done = subprocess.run([binary(), "inspect", "--verify", folder / "nan"], capture_output=True, text=True, check=False)
    if done.returncode != 1 or name.removesuffix(".weight_scale") not in done.stderr:
        return f"exit code {done.returncode}: {done.stderr}"
    return None


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory(prefix="troupe-sizes-") as scratch:
        scratch = pathlib.Path(scratch)
        for name, skipped in MODELS.items():
            tap.check(f"{name} has its published size", lambda n=name, s=skipped: inspect_sizes(n, scratch / n, s))
            shutil.rmtree(scratch / name, ignore_errors=True)
        tap.check("all tensors are listed with what they are for", lambda: list_adds_up(scratch / "list"))
        tap.check("the hash is of the bytes, not of the files", lambda: hashes_say_what_changed(scratch))
        tap.check("a scale that is no number is refused", lambda: bad_values_are_refused_by_name(scratch))
    tap.done()


if __name__ == "__main__":
    sys.exit(main())
