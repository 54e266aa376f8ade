"""tools/quantize: its encoders against published vectors, its files against `gguf` and against troupe.

A small solar_open2 model with random weights is quantised in every format. What troupe computes from
the quantised file must be what it computes from a float32 file with the same, dequantised values; of
folders it must also be what the reference in tools/golden computes from these values in float64.
"""

import json
import sys

from random_solar import TOKENIZER, make, quantize, random_model
from troupe_test import ROOT, Tap, Troupe, difference, need

from quantizer import blocks, scaled, solar_open2
from quantizer.checkpoint import Checkpoint, Planned, write_folder
from quantizer.numbers import from_e4m3

np = need("numpy")
gguf = need("gguf")

sys.path.insert(0, str(ROOT / "tools" / "golden"))

from solar_open2 import SolarOpen2  # noqa: E402  (needs the path above)

DATA = ROOT / "tests" / "model" / "data"

# Root mean square of the error over that of the values, of normal random weights.
ERROR_BOUNDS = {"bf16": 0, "q8_0": 0.0065, "q4_k": 0.075, "q3_k": 0.16, "iq2_xxs": 0.345}
LOGITS_BOUND = 1e-5  # the same values; scales are applied before or after sums
REFERENCE_BOUND = 1e-4  # float32 against float64
NVFP4 = ["nvfp4-modelopt", "nvfp4-compressed-tensors"]
FOLDERS = ["fp8-tensor", "fp8-channel", "fp8-block", *NVFP4, "mxfp4", "f16"]

# What the settings of random_model leave to the defaults of the family.
DEFAULTS = {
    "use_rope": False, "use_qk_norm": False, "use_gqa_gate": True, "kda_use_full_proj": False,
    "kda_allow_neg_eigval": True, "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 0,
}  # fmt: skip


def floats(text):
    return np.array([int(word, 16) for word in text.split()], np.uint32).view(np.float32)


def check_nvfp4_vectors():
    for line in (DATA / "nvfp4_encode.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        scale, x, block, packed, values = (part.strip() for part in line.split("|"))
        if floats(scale)[0] == 0:  # a tensor of zeros: any scale will do
            continue
        codes, found, s = scaled.nvfp4(floats(x)[None], floats(scale)[0])
        if f"{found[0, 0]:02x}" != block or codes.tobytes().hex() != packed:
            return f"{line}: {found[0, 0]:02x} {codes.tobytes().hex()}"
        if scaled.nvfp4_values(codes, found, s).tobytes() != floats(values).tobytes():
            return f"{line}: other values"
    return None


def check_q8_0_vectors():
    for line in (DATA / "ggml_encode.txt").read_text().splitlines():
        if not line.startswith("q8_0"):
            continue
        _, x, expected = (part.strip() for part in line.split("|"))
        if blocks.q8_0(floats(x)[None]).tobytes().hex() != expected:
            return line
    return None


def check_mxfp4_vectors():
    for line in (DATA / "ggml_encode.txt").read_text().splitlines():
        if not line.startswith("mxfp4"):
            continue
        _, x, expected = (part.strip() for part in line.split("|"))
        packed, exponent = scaled.mxfp4(floats(x)[None])
        codes = np.stack([packed & 15, packed >> 4], axis=2).ravel()
        block = [exponent[0, 0], *(codes[:16] | codes[16:] << 4)]  # ggml pairs i with i + 16
        if bytes(block).hex() != expected:
            return f"{line}: {bytes(block).hex()}"
    return None


def check_fp8_codes():
    codes = np.array([c for c in range(256) if c & 127 != 127], np.uint8)
    values = from_e4m3(codes)
    found, scale = scaled.fp8(values[None], "tensor")
    if scale[0, 0] != 1 or (found[0] != codes).any():
        return f"scale {scale[0, 0]}, codes {found[0]}"
    return None


def dequantized(folder):
    """name: float32 values, of a quantised folder."""
    tensors = Checkpoint(folder).tensors
    values = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix("_packed")
        if stem.endswith(("_scale", "_scale_2", "_global_scale", "_scale_inv")):
            continue
        block = tensors.get(stem + "_scale") or tensors.get(stem + "_scale_inv")
        if block is None:
            values[name] = tensor.values()
        elif block.dtype == "U8":
            values[stem] = scaled.mxfp4_values(tensor.raw(), block.raw())
        elif tensor.dtype == "U8":
            matrix = tensors.get(stem + "_scale_2")
            scale = matrix.raw() if matrix else 1 / tensors[stem + "_global_scale"].raw()[0]
            values[stem] = scaled.nvfp4_values(tensor.raw(), block.raw(), scale)
        else:
            scale = block.raw()
            if stem + "_scale_inv" in tensors:
                scale = scale.repeat(128, axis=0).repeat(128, axis=1)
                scale = scale[: tensor.shape[0], : tensor.shape[1]]
            values[stem] = from_e4m3(tensor.raw()) * scale
    return values


def write_f32(folder, config, values):
    planned = [Planned(name, "F32", v.shape, lambda v=v: v) for name, v in values.items()]
    write_folder(folder, config, planned, lambda name: None)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((TOKENIZER / name).read_bytes())
    return folder


def main():
    tap, troupe = Tap(), Troupe()
    source = troupe.path / "source"
    random_model(source)
    original = Checkpoint(source)
    ids = np.random.default_rng(5).integers(17, 4096, 40)

    tap.check("NVFP4 codes and scales are those of the vectors", check_nvfp4_vectors)
    tap.check("Q8_0 blocks are those of ggml", check_q8_0_vectors)
    tap.check("MXFP4 codes and scales are those of ggml", check_mxfp4_vectors)
    tap.check("every E4M3 code comes back", check_fp8_codes)

    def folder_is_computed_as_dequantised(form, *options):
        out = make(source, form, troupe.path / "folder", *options)
        values = dequantized(out)
        plain = write_f32(troupe.path / "plain", original.config, values)
        found = troupe.logits(out, ids)
        reference = SolarOpen2(DEFAULTS | original.config,
                               {name: v.astype(np.float64) for name, v in values.items()})  # fmt: skip
        trouble = (difference(found, troupe.logits(plain, ids), LOGITS_BOUND)
                   or difference(found, reference.run(ids)[0], REFERENCE_BOUND))  # fmt: skip
        for folder in (out, plain):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
        return trouble

    for form in FOLDERS:
        tap.check(f"{form}: troupe computes with the dequantised values",
                  lambda: folder_is_computed_as_dequantised(form))  # fmt: skip
    for form in ("fp8-block", "nvfp4-modelopt", "mxfp4"):
        tap.check(f"{form} of every part likewise", lambda: folder_is_computed_as_dequantised(
            form, "--parts", "experts,shared,attention"))  # fmt: skip

    def layouts_agree():
        bits = [troupe.logits_bytes(make(source, form, troupe.path / form), ids) for form in NVFP4]
        return None if bits[0] == bits[1] else "other logits"

    tap.check("both NVFP4 layouts give the same bits", layouts_agree)

    def gguf_reads(form):
        path = make(source, form, troupe.path / f"{form}.gguf")
        reader = gguf.GGUFReader(str(path))
        found = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
        error = size = 0.0
        values = {}
        for name, tensor in original.tensors.items():
            match = solar_open2.EXPERT_NAME.fullmatch(name)
            if match:
                stacked = found[f"blk.{match[1]}.{solar_open2.EXPERT[match[3]]}"]
                values[name] = stacked[int(match[2])]
                error += ((values[name] - tensor.values()) ** 2).sum()
                size += (tensor.values() ** 2).sum()
                continue
            stored = solar_open2.name_of(name)
            expected = solar_open2.values_of(stored, tensor)
            if (found[stored].reshape(expected.shape) != expected).any():
                return f"{stored} is not {name}"
            values[name] = tensor.values()
        relative = (error / size) ** 0.5
        print(f"# {form}: relative error of the experts {relative:.4f}")
        if reader.fields["general.architecture"].contents() != "solar-open2":
            return "another architecture"
        tokens = reader.fields["tokenizer.ggml.tokens"].contents()
        vocabulary = json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["vocab"]
        if any(tokens[i] != text for text, i in vocabulary.items()):
            return "other tokens"
        if relative > ERROR_BOUNDS[form]:
            return f"relative error {relative}"
        plain = write_f32(troupe.path / f"{form}-plain", original.config, values)
        return difference(troupe.logits(path, ids), troupe.logits(plain, ids), LOGITS_BOUND)

    for form in ERROR_BOUNDS:
        tap.check(f"{form}: gguf reads the file, troupe computes with its values", lambda: gguf_reads(form))

    def refused(sentence, *arguments):
        done = quantize(*arguments)
        if done.returncode == 1 and sentence in done.stderr and "Traceback" not in done.stderr:
            return None
        return f"exit code {done.returncode}: {done.stderr}"

    def refusals():
        new = troupe.path / "new"
        return (refused("is there already", source, "q8_0", source)
                or refused("expected a checkpoint that is not quantised",
                           troupe.path / NVFP4[0], "q8_0", new)
                or refused("--parts heads: expected some of", source, "q8_0", new, "--parts", "heads")
                or refused("config.json", troupe.path / "none", "q8_0", new))  # fmt: skip

    tap.check("what cannot be quantised is refused in a sentence", refusals)
    tap.done()


main()
