"""Models with one large tensor of each kind, as sparse files: everything is zero but a few scales.

Each function writes a model; `large` is how many times the feed-forward is larger than in the smallest
model of this shape, which is the same in all else. Returns the bytes of the tensors.
"""

import json
import math
import shutil
import struct

from containers import ARRAY, BITS, F32, I32, STRING, U32, Gguf, gguf_pair
from troupe_test import ROOT

VOCABULARY = 4096  # of this tokenizer; the model may have more
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
TOKENIZER = ROOT / "models" / "tiny-solar-nvfp4"
HIDDEN = 1024


def write_safetensors(folder, config, tensors):
    """tensors: name -> (dtype, shape) of zeros, or (dtype, shape, bytes), which stand in the file first."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name in TEXT_FILES:
        if (TOKENIZER / name).exists():
            shutil.copy(TOKENIZER / name, folder)
    header, at, data = {}, 0, b""
    for name, (dtype, shape, *raw) in sorted(tensors.items(), key=lambda item: len(item[1]) == 2):
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        data += b"".join(raw)
        at += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)
        out.truncate(8 + len(text) + at)
    return at


def attention(prefix, rows=1024, key_rows=64):
    shapes = {f"{prefix}q_proj": [rows, HIDDEN], f"{prefix}k_proj": [key_rows, HIDDEN]}
    shapes |= {f"{prefix}v_proj": [key_rows, HIDDEN], f"{prefix}o_proj": [HIDDEN, 1024]}
    return {f"{name}.weight": ("BF16", shape) for name, shape in shapes.items()}


def frame(layers, vocabulary=VOCABULARY):
    """What a model has beside attention and feed-forward."""
    tensors = {f"{name}.weight": ("BF16", [vocabulary, HIDDEN]) for name in ("model.embed_tokens", "lm_head")}
    tensors["model.norm.weight"] = ("BF16", [HIDDEN])
    for layer in range(layers):
        for norm in ("input", "post_attention"):
            tensors[f"model.layers.{layer}.{norm}_layernorm.weight"] = ("BF16", [HIDDEN])
    return tensors


def bf16(stem, shape):
    return {f"{stem}.weight": ("BF16", shape)}


def fp8(stem, shape):
    scales = [-(-shape[0] // 128), -(-shape[1] // 128)]
    one = struct.pack("<f", 0.5) * math.prod(scales)
    return {f"{stem}.weight": ("F8_E4M3", shape), f"{stem}.weight_scale_inv": ("F32", scales, one)}


def nvfp4(stem, shape):
    return {
        f"{stem}.weight": ("U8", [shape[0], shape[1] // 2]),
        f"{stem}.weight_scale": ("F8_E4M3", [shape[0], shape[1] // 16]),
        f"{stem}.weight_scale_2": ("F32", [], struct.pack("<f", 0.01)),
    }


def llama(matrix, width):
    """A writer of models whose feed-forward is `large` times `width` wide and stored by matrix()."""

    def write(folder, large, layers=1, vocabulary=VOCABULARY):
        config = {"model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": large * width, "num_hidden_layers": layers,
                  "num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": vocabulary,
                  "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "max_position_embeddings": 256,
                  "tie_word_embeddings": False, "eos_token_id": 2, "bos_token_id": 1}  # fmt: skip
        tensors = frame(layers, vocabulary)
        for layer in range(layers):
            stem = f"model.layers.{layer}"
            tensors |= attention(f"{stem}.self_attn.")
            tensors |= matrix(f"{stem}.mlp.gate_proj", [large * width, HIDDEN])
            tensors |= matrix(f"{stem}.mlp.up_proj", [large * width, HIDDEN])
            tensors |= matrix(f"{stem}.mlp.down_proj", [HIDDEN, large * width])
        return write_safetensors(folder, config, tensors)

    return write


def stacked_experts(folder, large):
    """qwen3_5_moe with the experts of its layer in two tensors."""
    experts, width = 4 * large, 512
    config = {"model_type": "qwen3_5_moe_text", "hidden_size": HIDDEN, "num_hidden_layers": 1, "layer_types": ["full_attention"],
              "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6,
              "rope_parameters": {"rope_theta": 1e6, "rope_type": "default", "partial_rotary_factor": 0.25,
                                  "mrope_section": [11, 11, 10], "mrope_interleaved": True},
              "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
              "linear_value_head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 256, "moe_intermediate_size": width,
              "num_experts": experts, "num_experts_per_tok": 2, "shared_expert_intermediate_size": width, "norm_topk_prob": True,
              "tie_word_embeddings": False, "eos_token_id": 2, "bos_token_id": 1}  # fmt: skip
    stem = "model.layers.0.mlp"
    tensors = frame(1) | attention("model.layers.0.self_attn.", 2048, 256)
    for name in "qk":
        tensors[f"model.layers.0.self_attn.{name}_norm.weight"] = ("BF16", [256])
    tensors |= bf16(f"{stem}.gate", [experts, HIDDEN])
    tensors |= bf16(f"{stem}.shared_expert_gate", [1, HIDDEN])
    for name, shape in (("gate", [width, HIDDEN]), ("up", [width, HIDDEN]), ("down", [HIDDEN, width])):
        tensors |= bf16(f"{stem}.shared_expert.{name}_proj", shape)
    tensors[f"{stem}.experts.gate_up_proj"] = ("BF16", [experts, 2 * width, HIDDEN])
    tensors[f"{stem}.experts.down_proj"] = ("BF16", [experts, HIDDEN, width])
    return write_safetensors(folder, config, tensors)


GGUF_F32, GGUF_Q8_0, GGUF_Q4_K = 0, 8, 12
BLOCKS = {GGUF_F32: (1, 4), GGUF_Q8_0: (32, 34), GGUF_Q4_K: (256, 144)}


def write_gguf(folder, keys, tensors):
    """tensors: name -> (ne, type), all zeros."""
    folder.mkdir()
    file, infos, at = Gguf(), b"", 0
    for name, (ne, kind) in tensors.items():
        file.tensors[name] = [ne, kind, b""]
        infos += file.info(name, at)
        elements, size = BLOCKS[kind]
        at += -(-math.prod(ne) // elements * size // 32) * 32
    pairs = b"".join(gguf_pair(key, *value) for key, value in keys.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + pairs + infos
    head += bytes(-len(head) % 32)
    with open(folder / "model.gguf", "wb") as out:
        out.write(head)
        out.truncate(len(head) + at)
    return at


def byte_alphabet():
    """One character for each byte, as vocabularies of the gpt2 kind write them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]


def gguf_keys(family, vocabulary=VOCABULARY, **own):
    tokens = byte_alphabet()
    tokens += [f"t{i}" for i in range(vocabulary - len(tokens))]
    keys = {
        "general.architecture": (STRING, family),
        "tokenizer.ggml.model": (STRING, "gpt2"), "tokenizer.ggml.pre": (STRING, "default"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, (I32, [1] * vocabulary)), "tokenizer.ggml.merges": (ARRAY, (STRING, ["t 0"])),
        "tokenizer.ggml.bos_token_id": (U32, 1), "tokenizer.ggml.eos_token_id": (U32, 2),
    }  # fmt: skip
    own |= {"context_length": 256, "embedding_length": HIDDEN, "block_count": 1, "vocab_size": vocabulary}
    own |= {"attention.head_count": 16, "attention.head_count_kv": 1, "attention.key_length": 64, "attention.value_length": 64}
    own |= {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4, "rope.dimension_count": 64}
    for key, value in own.items():
        keys[f"{family}.{key}"] = (F32 if isinstance(value, float) else U32, value)
    return keys


def gguf_frame(vocabulary=VOCABULARY):
    tensors = {name: ([HIDDEN, vocabulary], GGUF_Q8_0) for name in ("token_embd.weight", "output.weight")}
    tensors |= {name: ([HIDDEN], GGUF_F32) for name in ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")}
    for name, ne in (("q", [HIDDEN, 1024]), ("k", [HIDDEN, 64]), ("v", [HIDDEN, 64]), ("output", [1024, HIDDEN])):
        tensors[f"blk.0.attn_{name}.weight"] = (ne, GGUF_Q8_0)
    return tensors


def gguf_matrices(folder, large, vocabulary=VOCABULARY):
    """llama in Q4_K, its embedding in Q8_0."""
    width = 2048 * large
    tensors = gguf_frame(vocabulary)
    for name, ne in (("gate", [HIDDEN, width]), ("up", [HIDDEN, width]), ("down", [width, HIDDEN])):
        tensors[f"blk.0.ffn_{name}.weight"] = (ne, GGUF_Q4_K)
    return write_gguf(folder, gguf_keys("llama", vocabulary, feed_forward_length=width), tensors)


def gguf_stacked_experts(folder, large):
    """qwen3moe in Q8_0."""
    experts, width = 4 * large, 512
    tensors = gguf_frame() | {"blk.0.ffn_gate_inp.weight": ([HIDDEN, experts], GGUF_F32)}
    tensors |= {f"blk.0.attn_{name}_norm.weight": ([64], GGUF_F32) for name in "qk"}
    for name, ne in (("gate", [HIDDEN, width]), ("up", [HIDDEN, width]), ("down", [width, HIDDEN])):
        tensors[f"blk.0.ffn_{name}_exps.weight"] = ([*ne, experts], GGUF_Q8_0)
    keys = gguf_keys("qwen3moe", feed_forward_length=width, expert_feed_forward_length=width, expert_count=experts, expert_used_count=2)
    return write_gguf(folder, keys, tensors)


# Name: writer, and how many times larger the large model's feed-forward is.
MODELS = {
    "BF16": (llama(bf16, 1024), 32),
    "FP8 in blocks": (llama(fp8, 2048), 32),
    "NVFP4": (llama(nvfp4, 4096), 32),
    "stacked experts": (stacked_experts, 32),
    "Q4_K of a GGUF": (gguf_matrices, 32),
    "stacked Q8_0 experts of a GGUF": (gguf_stacked_experts, 32),
}
