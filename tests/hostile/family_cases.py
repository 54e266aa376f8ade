"""What only some families have, wrong: tables of n-grams and gated residual streams (qwen4_exp); latent
attention, its index and mixed residual streams, in sharded NVFP4 files (glm5_next)."""

import json
import struct

from cases import Case, read_folder
from containers import safetensors_file, tensors_of

FILE, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"
NAN_BF16 = b"\xc0\x7f"


def cut(tensor, rows):
    """The first rows of it."""
    dtype, shape, raw = tensor
    return dtype, [rows, *shape[1:]], raw[: len(raw) // shape[0] * rows]


def transposed(tensor):
    dtype, shape, raw = tensor
    return dtype, shape[::-1], raw


def with_nan(tensor, at):
    """Of a BF16 tensor, one element."""
    dtype, shape, raw = tensor
    return dtype, shape, raw[: 2 * at] + NAN_BF16 + raw[2 * at + 2 :]


def shape_text(tensor):
    return f"shape [{', '.join(map(str, tensor[1]))}]"


class Base:
    """One model: cases change a setting or tensors of one of its files."""

    def __init__(self, label, folder, file, part=None):
        """part: the object of the settings that describes the text model."""
        self.label, self.files, self.file, self.part = label, read_folder(folder), file, part
        self.tensors = tensors_of(self.files[file])
        self.config = json.loads(self.files[CONFIG])

    def case(self, what, files, names, **options):
        return Case(f"{self.label} {what}", self.files | files, names, **options)

    def setting(self, key, value, *says):
        config = json.loads(self.files[CONFIG])
        (config[self.part] if self.part else config)[key] = value
        return self.case(f"{key} {json.dumps(value)[:40]}", {CONFIG: json.dumps(config).encode()}, [*says])

    def changed(self, what, changes, *says, drop=(), headers=True):
        tensors = {k: v for k, v in (self.tensors | changes).items() if k not in drop}
        return self.case(what, {self.file: safetensors_file(tensors)}, [*says], headers=headers)

    def without(self, name):
        """Where there is an index, it says in which file the tensor should be."""
        listed = self.files.get(INDEX)
        says = "absent, expected" if listed is None else f"absent from {self.file}, where the index puts it"
        return self.changed(f"without {name}", {}, f"{name}: {says}", drop=[name])

    def unlisted(self, name):
        """The index does not know of it, either."""
        listed = json.loads(self.files[INDEX])
        del listed["weight_map"][name]
        tensors = {k: v for k, v in self.tensors.items() if k != name}
        return self.case(f"with neither {name} nor its line in the index",
                         {self.file: safetensors_file(tensors), INDEX: json.dumps(listed).encode()},
                         [f"{name}: absent, expected"])  # fmt: skip

    def reshaped(self, name, tensor, expected):
        return self.changed(f"{name} of {shape_text(tensor)}", {name: tensor}, self.file, name,
                            f"{shape_text(tensor)}, expected {expected}")  # fmt: skip

    def poisoned(self, name, at):
        return self.changed(f"NaN in {name}", {name: with_nan(self.tensors[name], at)}, self.file, name,
                            f"found nan at row 0, column {at}, expected a finite number", headers=False)  # fmt: skip


def qwen4(models):
    base = Base("qwen4_exp", models / "qwen4_exp-a", FILE)
    ple, mixed = "model.layers.1.ple.", "model.layers.2.attn_hyper_connection."
    table = ple + "ple_embedding."
    parts = [f"{table}ngram_embedding.shard_{i}.weight" for i in range(4)]
    index = "model.layers.3.self_attn.indexer."
    right = base.tensors

    for key, value, says in (
        ("split_ngram_parts", 0, "found 0, expected 1.."), ("split_ngram_parts", 2**31, "found 2147483648, expected 1.."),
        ("ngram_size", 1, "found 1, expected 2.."), ("ngram_size", 2**40, "expected 2.."),
        ("heads_per_ngram", 0, "found 0, expected 1.."), ("ngram_vocab_size_base", 1, "found 1, expected 2.."),
        ("ple_layer_ids", [0], "entry 0 is no layer, expected 1..4"),
        ("ple_layer_ids", ["2"], "entry 0 is no layer, expected 1..4"), ("ple_layer_ids", 2, "expected a list"),
        ("hc_count", 10**15, "expected 2.."), ("hc_lowrank", 0, "found 0, expected 1.."),
        ("indexer_compress_ratio", 0, "found 0, expected 1..64"), ("indexer_budget", 0, "found 0, expected 1.."),
    ):  # fmt: skip
        yield base.setting(key, value, CONFIG, key, says)
    yield base.setting("ple_embed_dim", 63, CONFIG, "layer 1: width of the n-gram table: 8 heads do not divide 63")
    yield base.setting("hc_count", 3, "hc_norm.weight", "shape [256], expected [1, 192]")
    yield base.setting("hc_lowrank", 25, FILE, "input_mix_weight_down.weight", "shape [24, 256], expected [25, 256]")
    yield base.setting("indexer_n_heads", 23, FILE, "index_qk_proj.weight", "shape [400, 64], expected [384, 64]")
    yield base.setting("ple_conv_kernel_size", 3, FILE, "ple.conv1d.weight", "shape [256, 1, 4], expected [256, 3]")

    yield base.without(parts[2])
    for name in (f"{mixed}hc_norm.weight", f"{index}index_qk_proj.weight", f"{ple}norm_query.weight",
                 "model.hyper_connection_mixer.input_mix_weight_up.weight"):  # fmt: skip
        yield base.without(name)
    yield base.reshaped(parts[1], cut(right[parts[1]], 2079), "[2080, 8]")
    yield base.reshaped(parts[3], transposed(right[parts[3]]), "[2080, 8]")
    yield base.reshaped(f"{mixed}block_inject_weight.weight", cut(right[f"{mixed}block_inject_weight.weight"], 3), "[4, 256]")
    yield base.reshaped(f"{mixed}input_mix_weight_up.weight", transposed(right[f"{mixed}input_mix_weight_up.weight"]), "[256, 24]")
    yield base.reshaped(f"{index}k_layernorm.weight", cut(right[f"{index}k_layernorm.weight"], 8), "[1, 16]")
    fifth = parts[0].replace("shard_0", "shard_4")
    yield base.changed("a part of a table too many", {fifth: right[parts[0]]}, FILE, fifth, "has no place")
    _, shape, raw = right[parts[0]]
    yield base.changed("a part of a table as I64", {parts[0]: ("I64", shape, raw * 4)}, FILE, parts[0], "I64, expected")
    for name in (f"{mixed}hc_norm.weight", f"{ple}norm_key.weight", f"{index}q_layernorm.weight"):
        yield base.poisoned(name, 5)

    # What programs compute from the settings and some files store, too.
    multipliers, moduli = f"{table}layer_multipliers", f"{table}ngram_heads_vocab_sizes"
    first = struct.unpack("<q", right[moduli][2][:8])[0]
    yield base.changed("another modulus", {moduli: ("I64", [8], struct.pack("<q", first + 2) + right[moduli][2][8:])},
                       FILE, moduli, f"found {first + 2} at 0, expected {first}", headers=False)  # fmt: skip
    yield base.changed("multipliers as F32", {multipliers: ("F32", [3], bytes(12))}, FILE, multipliers,
                       "F32 of 12 bytes, expected 3 I64")  # fmt: skip
    yield base.changed("two multipliers", {multipliers: ("I64", [2], right[multipliers][2][:16])}, FILE, multipliers,
                       "I64 of 16 bytes, expected 3 I64")  # fmt: skip

    # A table in FP8 has one scale.
    scale = f"{table}ngram_embedding.weight_scale"
    eight = {part: ("F8_E4M3", right[part][1], bytes([0x30]) * (len(right[part][2]) // 2)) for part in parts}
    yield base.changed("a table in FP8 without scale", eight, parts[0].rsplit(".shard", 1)[0], "scale")
    yield base.changed("a table in FP8 with two scales", eight | {scale: ("F32", [2], struct.pack("<2f", 0.01, 0.01))},
                       FILE, scale, "F32 of 8 bytes, expected one F32 or BF16")  # fmt: skip
    for value, says in ((float("nan"), "scale nan, expected a finite number above 0"),
                        (0.0, "scale 0, expected a finite number above 0"), (100.0, "scale 100, expected at most 1")):  # fmt: skip
        yield base.changed(f"a table in FP8 with a scale of {value}", eight | {scale: ("F32", [1], struct.pack("<f", value))},
                           FILE, scale, says, headers=False)  # fmt: skip


def glm(models):
    folder, shard = models / "glm5_next-a-ct", "model-00002-of-00002.safetensors"
    base = Base("glm5_next", folder, shard, "text_config")
    layer = "model.language_model.layers.3."
    attention, expert = f"{layer}self_attn.", f"{layer}mlp.experts.2.up_proj."
    index = f"{attention}indexer."
    right = base.tensors

    for key, value, says in (
        ("index_topk", 30, "found 30, expected a multiple of 4 (index_kpool)"), ("index_topk", 0, "found 0, expected 1.."),
        ("index_kpool", 17, "found 17, expected 1..16"), ("index_n_heads", 2**31, "expected 1..1024"),
        ("indexer_types", ["full", "shared"], "found shared at 1, expected full"), ("hc_mult", 1, "found 1, expected 2.."),
        ("hc_sinkhorn_iters", 10**9, "found 1000000000, expected 1..1000"), ("hc_eps", -1e-6, "hc_eps"),
        ("qk_rope_head_dim", 8, "expected"), ("q_lora_rank", 0, "q_lora_rank"), ("swiglu_limit", -2.0, "found -2"),
        ("layer_types", ["linear_attention"] * 4, "layer_types"), ("mlp_layer_types", ["dense"] * 6, "mlp_layer_types"),
        ("indexer_types", ["full"] * 6, "for each of 5 layers"),
    ):  # fmt: skip
        yield base.setting(key, value, CONFIG, key, says)
    yield base.setting("kv_lora_rank", 31, shard, "kv_a_proj_with_mqa.weight", "shape [32, 64], expected [31, 64]")
    yield base.setting("v_head_dim", 32, shard, "layers.3.self_attn.o_proj.weight", "shape [64, 64], expected [64, 128]")
    yield base.setting("index_head_dim", 8, shard, "indexer.k_norm.weight", "shape [16], expected [1, 8]")
    yield base.setting("hc_mult", 3, "hc_attn_fn: shape [24, 256], expected [15, 192]")

    for name in (f"{attention}kv_b_proj.weight", f"{attention}q_a_layernorm.weight", f"{index}wk.weight",
                 f"{index}index_kpool_compress_gate", f"{layer}hc_ffn_scale"):  # fmt: skip
        yield base.without(name)
    yield base.reshaped(f"{attention}kv_b_proj.weight", cut(right[f"{attention}kv_b_proj.weight"], 64), "[128, 32]")
    yield base.reshaped(f"{attention}q_b_proj.weight", transposed(right[f"{attention}q_b_proj.weight"]), "[64, 48]")
    yield base.reshaped(f"{index}index_kpool_compress_ape", cut(right[f"{index}index_kpool_compress_ape"], 3), "[4, 16]")
    yield base.reshaped(f"{index}weights_proj.weight", cut(right[f"{index}weights_proj.weight"], 23), "[24, 64]")
    yield base.reshaped(f"{layer}hc_ffn_scale", cut(right[f"{layer}hc_ffn_scale"], 2), "[1, 3]")
    for name, at in ((f"{index}k_norm.bias", 15), (f"{layer}hc_ffn_scale", 2), (f"{attention}kv_a_layernorm.weight", 0)):
        yield base.poisoned(name, at)
    for name in (f"{expert}weight_scale", f"{index}wq_b.weight", f"{attention}q_a_proj.weight"):
        yield base.unlisted(name)
    factor = f"{expert}weight_global_scale"
    value = 1 / struct.unpack("<f", right[factor][2])[0]
    yield base.changed("a matrix scale that is the reciprocal", {factor: ("F32", [1], struct.pack("<f", value))},
                       shard, factor, "expected at most 1", "reciprocal", headers=False)  # fmt: skip
    listed = json.loads(base.files[INDEX])
    listed["weight_map"][f"{index}wk.weight"] = "model-00001-of-00002.safetensors"
    yield base.case("a part of the index said to be in the other file", {INDEX: json.dumps(listed).encode()},
                    [f"{index}wk.weight", "model-00001-of-00002.safetensors"])  # fmt: skip
    yield Case("glm5_next without its second file", {k: v for k, v in base.files.items() if k != shard}, shard)


def cases(models):
    yield from qwen4(models)
    yield from glm(models)
