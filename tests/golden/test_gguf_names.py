"""GGUF files whose tensors have other names than most: the same numbers, cut in another way.

Goal: q, k and v in one tensor and keys and values of latent attention in one (old files) give the very
bits of the usual file; gates of Kimi delta attention that are not narrow (`ssm_f`, `ssm_g`) give the
logits of the Hugging Face form with the same matrices. What stands there twice or not at all is refused
by name. Method: the models of tests/golden, taken apart and put together again.
"""

import json
import shutil
import struct

from containers import Gguf, safetensors_file, tensors_of
from golden_models import models_folder
from troupe_test import Tap, Troupe, difference, need

numpy = need("numpy")

IDS = [3, 17, 99, 256, 5, 5, 301, 42, 7, 480, 11, 64]
BF16 = 30  # GGUF's number
BOUND = 1e-4


def read(path):
    return Gguf(path.read_bytes())


def fuse(model):
    """attn_q, attn_k, attn_v of every layer that has the three as attn_qkv."""
    tensors = {}
    for name, (ne, kind, raw) in model.tensors.items():
        stem = name.removesuffix("attn_q.weight")
        if stem != name and f"{stem}attn_k.weight" in model.tensors:
            parts = [model.tensors[f"{stem}attn_{part}.weight"] for part in "qkv"]
            rows = sum(part[0][1] for part in parts)
            tensors[f"{stem}attn_qkv.weight"] = [[ne[0], rows], kind, b"".join(part[2] for part in parts)]
        elif not name.endswith(("attn_k.weight", "attn_v.weight")):
            tensors[name] = [ne, kind, raw]
    model.tensors = tensors


def join_latents(model):
    """attn_k_b (transposed) and attn_v_b of every layer as attn_kv_b."""
    tensors = {}
    for name, (ne, kind, raw) in model.tensors.items():
        stem = name.removesuffix("attn_k_b.weight")
        if stem != name:
            nope, rank, heads = ne
            value_ne, value_kind, value_raw = model.tensors[f"{stem}attn_v_b.weight"]
            assert kind == value_kind == BF16
            keys = numpy.frombuffer(raw, "<u2").reshape(heads, rank, nope).transpose(0, 2, 1)
            values = numpy.frombuffer(value_raw, "<u2").reshape(heads, value_ne[1], rank)
            both = numpy.concatenate([keys, values], axis=1)
            tensors[f"{stem}attn_kv_b.weight"] = [[rank, heads * both.shape[1]], kind, both.tobytes()]
        elif not name.endswith("attn_v_b.weight"):
            tensors[name] = [ne, kind, raw]
    model.tensors = tensors


def wide_gate(number, rows, columns):
    """BF16 [rows, columns], reproducible and small."""
    values = numpy.random.default_rng(number).normal(0, 1 / 16, (rows, columns)).astype("<f4")
    return (values.view("<u4") >> 16).astype("<u2").tobytes()


def widen(model):
    """Each pair ssm_X_a, ssm_X_b as one matrix of other numbers."""
    tensors = {}
    for name, (ne, kind, raw) in model.tensors.items():
        for gate in "fg":
            stem = name.removesuffix(f"ssm_{gate}_b.weight")
            if stem != name:
                layer, hidden = int(stem.split(".")[1]), model.tensors[f"{stem}ssm_{gate}_a.weight"][0][0]
                wide = wide_gate(2 * layer + "fg".index(gate), ne[1], hidden)
                tensors[f"{stem}ssm_{gate}.weight"] = [[hidden, ne[1]], BF16, wide]
        if "ssm_f_" not in name and "ssm_g_" not in name:
            tensors[name] = [ne, kind, raw]
    model.tensors = tensors


def widen_folder(source, target):
    """The same in a Hugging Face folder."""
    target.mkdir()
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"kda_use_full_proj": True}))
    file = next(path for path in sorted(source.glob("*.safetensors")) if not path.name.startswith("golden"))
    tensors = {}
    for name, (dtype, shape, raw) in tensors_of(file.read_bytes()).items():
        for gate in "fg":
            stem = name.removesuffix(f"{gate}_b_proj.weight")
            if stem != name:
                layer, hidden = int(stem.split(".")[2]), config["hidden_size"]
                wide = wide_gate(2 * layer + "fg".index(gate), shape[0], hidden)
                tensors[f"{stem}{gate}_proj.weight"] = ("BF16", [shape[0], hidden], wide)
        if "f_a_proj" not in name and "f_b_proj" not in name and "g_a_proj" not in name and "g_b_proj" not in name:
            tensors[name] = (dtype, shape, raw)
    (target / "model.safetensors").write_bytes(safetensors_file(tensors))


def main():
    tap, troupe = Tap(), Troupe()
    models = models_folder(troupe.path)
    scratch = troupe.path / "model.gguf"

    def same_bits(name, change):
        model = read(models / name / "model.gguf")
        change(model)
        scratch.write_bytes(model.write())
        found = troupe.logits_bytes(scratch, IDS)
        return None if found == troupe.logits_bytes(models / name / "model.gguf", IDS) else "other bits"

    def refused(name, change, words):
        model = read(models / name / "model.gguf")
        change(model)
        scratch.write_bytes(model.write())
        try:
            troupe.logits_bytes(scratch, IDS)
        except RuntimeError as error:
            return None if words in str(error) else str(error)
        return f"opened, expected an error with {words}"

    def wide_gates():
        widen_folder(models / "solar_open2-a", troupe.path / "wide")
        model = read(models / "solar_open2-a-gguf" / "model.gguf")
        widen(model)
        scratch.write_bytes(model.write())
        found, expected = troupe.logits(scratch, IDS), troupe.logits(troupe.path / "wide", IDS)
        if difference(found, troupe.logits(models / "solar_open2-a", IDS), BOUND) is None:
            return "other gates give the same logits"
        return difference(found, expected, BOUND)

    def with_bias(model):
        fuse(model)
        rows = model.tensors["blk.0.attn_qkv.weight"][0][1]
        model.tensors["blk.0.attn_qkv.bias"] = [[rows], 0, struct.pack("<f", 0) * rows]

    def cut(model):
        fuse(model)
        ne, kind, raw = model.tensors["blk.0.attn_qkv.weight"]
        model.tensors["blk.0.attn_qkv.weight"] = [[ne[0], ne[1] - 1], kind, raw[: -2 * ne[0]]]

    def twice(model):
        rest = dict(model.tensors)
        fuse(model)
        model.tensors = rest | model.tensors

    def half_latent(model):
        join_latents(model)
        model.tensors = {name: t for name, t in model.tensors.items() if not name.endswith("attn_kv_b.weight")}

    for name in ("llama-a-gguf", "llama-b-gguf", "qwen3_moe-a-gguf", "solar_open2-a-gguf", "kimi_linear-a-gguf"):
        tap.check(f"{name}: q, k and v in one tensor give the same bits", lambda n=name: same_bits(n, fuse))
    tap.check("a fused tensor with a bias is refused", lambda: refused("llama-a-gguf", with_bias, "blk.0.attn_qkv.bias"))
    tap.check("a fused tensor that lacks a row is refused", lambda: refused("llama-a-gguf", cut, "blk.0.attn_qkv.weight: shape"))
    tap.check("a fused tensor beside its parts is refused", lambda: refused("llama-a-gguf", twice, "blk.0.attn_qkv.weight"))
    tap.check("keys and values of latents in one tensor give the same bits", lambda: same_bits("kimi_linear-a-gguf", join_latents))
    tap.check("latents without expansion are refused", lambda: refused("kimi_linear-a-gguf", half_latent, "attn_k_b.weight"))
    tap.check("gates that are not narrow give the logits of the Hugging Face form", wide_gates)
    shutil.rmtree(troupe.path / "wide", ignore_errors=True)
    tap.done()


main()
