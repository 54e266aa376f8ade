"""Checkpoints of real models without data: every tensor under its name, at its true shape and type,
in sharded safetensors files that are holes behind their headers.

    python tests/support/synthetic.py solar_open2-bf16 /tmp/solar

Shapes, names and formats are those of the published files as the model's specification gives them.
CHECKPOINTS says which there are and how many bytes were published for them.
"""

import json
import math
import pathlib
import struct
import sys

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "U8": 1, "F8_E4M3": 1}
SHARD_BYTES = 5 * 10**9


class Checkpoint:
    """Tensors in the order in which they are written."""

    def __init__(self, config):
        self.config = config
        self.tensors = {}

    def add(self, name, shape, dtype="BF16"):
        assert name not in self.tensors, name
        self.tensors[name] = (dtype, shape)

    def size(self, name):
        dtype, shape = self.tensors[name]
        return BYTES[dtype] * math.prod(shape)

    def bytes(self):
        return sum(map(self.size, self.tensors))

    def matrix(self, stem, rows, cols, kind="BF16"):
        """A weight in one of the layouts of quantised checkpoints."""
        if kind == "BF16":
            self.add(f"{stem}.weight", [rows, cols])
        elif kind == "NVFP4 ModelOpt":
            self.add(f"{stem}.weight", [rows, cols // 2], "U8")
            self.add(f"{stem}.weight_scale", [rows, cols // 16], "F8_E4M3")
            self.add(f"{stem}.weight_scale_2", [], "F32")
            self.add(f"{stem}.input_scale", [], "F32")
        elif kind == "NVFP4 ModelOpt, weights only":
            self.add(f"{stem}.weight", [rows, cols // 2], "U8")
            self.add(f"{stem}.weight_scale", [rows, cols // 16], "F8_E4M3")
            self.add(f"{stem}.weight_scale_2", [], "F32")
        elif kind == "NVFP4 compressed-tensors":
            self.add(f"{stem}.weight_packed", [rows, cols // 2], "U8")
            self.add(f"{stem}.weight_scale", [rows, cols // 16], "F8_E4M3")
            self.add(f"{stem}.weight_global_scale", [1], "F32")
            self.add(f"{stem}.input_global_scale", [1], "F32")
        elif kind == "FP8 blocks":
            self.add(f"{stem}.weight", [rows, cols], "F8_E4M3")
            self.add(f"{stem}.weight_scale_inv", [-(-rows // 128), -(-cols // 128)], "F32")
        else:
            raise ValueError(kind)

    def feed_forward(self, stem, hidden, width, kind="BF16"):
        self.matrix(f"{stem}.gate_proj", width, hidden, kind)
        self.matrix(f"{stem}.up_proj", width, hidden, kind)
        self.matrix(f"{stem}.down_proj", hidden, width, kind)

    def shards(self):
        shards, used = [[]], 0
        for name in self.tensors:
            if used > 0 and used + self.size(name) > SHARD_BYTES:
                shards.append([])
                used = 0
            shards[-1].append(name)
            used += self.size(name)
        return shards

    def write(self, folder):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        shards = self.shards()
        places = {}
        for i, names in enumerate(shards):
            file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
            header, at = {}, 0
            for name in names:
                dtype, shape = self.tensors[name]
                header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + self.size(name)]}
                at += self.size(name)
                places[name] = file
            text = json.dumps(header, separators=(",", ":")).encode()
            text += b" " * (-len(text) % 8)
            with open(folder / file, "wb") as out:
                out.write(struct.pack("<Q", len(text)) + text)
                out.truncate(8 + len(text) + at)
        index = {"metadata": {"total_size": self.bytes()}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))


# ---- Solar Open 2 ----


def kda(c, stem, hidden, heads, dim, bf16_vectors, a_shape):
    width = heads * dim
    for name in "qkv":
        c.matrix(f"{stem}.{name}_proj", width, hidden)
        c.add(f"{stem}.{name}_conv1d.weight", [width, 1, 4])
    for name in "fg":
        c.matrix(f"{stem}.{name}_a_proj", dim, hidden)
        c.matrix(f"{stem}.{name}_b_proj", width, dim)
    vectors = "BF16" if bf16_vectors else "F32"
    c.add(f"{stem}.dt_bias", [width], vectors)
    c.add(f"{stem}.A_log", a_shape, vectors)
    c.matrix(f"{stem}.b_proj", heads, hidden)
    c.add(f"{stem}.o_norm.weight", [dim])
    c.matrix(f"{stem}.o_proj", hidden, width)


def solar_open2(experts):
    c = Checkpoint(
        {
            "architectures": ["SolarOpen2ForCausalLM"], "model_type": "solar_open2", "vocab_size": 196608, "hidden_size": 4096,
            "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10240,
            "moe_intermediate_size": 1280, "n_routed_experts": 320, "num_experts_per_tok": 8, "n_shared_experts": 1,
            "routed_scaling_factor": 1.0, "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
            "gqa_interval": 3, "gqa_layers": list(range(0, 48, 4)), "use_rope": False, "use_qk_norm": False, "use_gqa_gate": True,
            "use_gqa_gate_bias": False, "attention_bias": False, "kda_use_full_proj": False, "kda_allow_neg_eigval": True,
            "linear_attn_config": {"short_conv_kernel_size": 4, "head_dim": 128, "num_heads": 64, "num_kv_heads": None},
            "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000, "max_position_embeddings": 1048576,
            "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "torch_dtype": "bfloat16",
        }
    )  # fmt: skip
    c.add("model.embed_tokens.weight", [196608, 4096])
    for i in range(48):
        layer = f"model.layers.{i}"
        c.add(f"{layer}.input_layernorm.weight", [4096])
        c.add(f"{layer}.post_attention_layernorm.weight", [4096])
        if i % 4 == 0:
            for name, rows in (("q", 8192), ("k", 1024), ("v", 1024), ("g", 8192)):
                c.matrix(f"{layer}.self_attn.{name}_proj", rows, 4096)
            c.matrix(f"{layer}.self_attn.o_proj", 4096, 8192)
        else:
            kda(c, f"{layer}.self_attn", 4096, 64, 128, True, [1, 1, 64, 1])
        c.matrix(f"{layer}.mlp.gate", 320, 4096)
        c.add(f"{layer}.mlp.gate.e_score_correction_bias", [320], "F32")
        c.feed_forward(f"{layer}.mlp.shared_experts", 4096, 1280)
        for e in range(320):
            c.feed_forward(f"{layer}.mlp.experts.{e}", 4096, 1280, experts)
    c.add("model.norm.weight", [4096])
    c.add("lm_head.weight", [196608, 4096])
    return c


# ---- GLM-5.3-Flash ----


def glm_sparse_attention(c, stem, mla):
    c.matrix(f"{stem}.q_a_proj", 1536, 4096, mla)
    c.add(f"{stem}.q_a_layernorm.weight", [1536])
    c.matrix(f"{stem}.q_b_proj", 16384, 1536, mla)
    c.matrix(f"{stem}.kv_a_proj_with_mqa", 512, 4096, mla)
    c.add(f"{stem}.kv_a_layernorm.weight", [512])
    c.matrix(f"{stem}.kv_b_proj", 32768, 512)
    c.matrix(f"{stem}.o_proj", 4096, 16384, mla)
    c.matrix(f"{stem}.indexer.wq_b", 4096, 1536)
    c.matrix(f"{stem}.indexer.wk", 128, 4096)
    c.matrix(f"{stem}.indexer.weights_proj", 32, 4096)
    c.add(f"{stem}.indexer.k_norm.weight", [128])
    c.add(f"{stem}.indexer.k_norm.bias", [128])
    c.add(f"{stem}.indexer.index_kpool_compress_gate", [128, 4096])
    c.add(f"{stem}.indexer.index_kpool_compress_ape", [4, 128])


def glm_experts(c, stem, shared, experts):
    c.matrix(f"{stem}.gate", 288, 4096)
    c.add(f"{stem}.gate.e_score_correction_bias", [288], "F32")
    c.feed_forward(f"{stem}.shared_experts", 4096, 2048, shared)
    for e in range(288):
        c.feed_forward(f"{stem}.experts.{e}", 4096, 2048, experts)


def glm_vision(c):
    v = "model.visual"
    c.add(f"{v}.patch_embed.proj.weight", [1024, 3, 2, 14, 14])
    c.add(f"{v}.patch_embed.proj.bias", [1024])
    for i in range(24):
        b = f"{v}.blocks.{i}"
        c.add(f"{b}.norm1.weight", [1024])
        c.add(f"{b}.norm2.weight", [1024])
        for name, rows, cols in (("attn.qkv", 3072, 1024), ("attn.proj", 1024, 1024), ("mlp.gate_proj", 4096, 1024),
                                 ("mlp.up_proj", 4096, 1024), ("mlp.down_proj", 1024, 4096)):  # fmt: skip
            c.add(f"{b}.{name}.weight", [rows, cols])
            c.add(f"{b}.{name}.bias", [rows])
        c.add(f"{b}.attn.q_norm.weight", [64])
        c.add(f"{b}.attn.k_norm.weight", [64])
    c.add(f"{v}.post_layernorm.weight", [1024])
    c.add(f"{v}.downsample.weight", [4096, 1024, 2, 2])
    c.add(f"{v}.downsample.bias", [4096])
    c.add(f"{v}.merger.proj.weight", [4096, 4096])
    c.add(f"{v}.merger.post_projection_norm.weight", [4096])
    c.add(f"{v}.merger.post_projection_norm.bias", [4096])
    c.add(f"{v}.merger.gate_proj.weight", [10240, 4096])
    c.add(f"{v}.merger.up_proj.weight", [10240, 4096])
    c.add(f"{v}.merger.down_proj.weight", [4096, 10240])


def glm5_next(experts, dense, shared, last_experts, mla):
    """The formats of: routed experts, dense layers, shared experts, experts of layer 45, the large MLA matrices."""
    text = {
        "model_type": "glm5_next_text", "hidden_size": 4096, "num_hidden_layers": 45, "num_nextn_predict_layers": 1,
        "vocab_size": 154880, "max_position_embeddings": 1048576, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "attention_bias": False, "attention_dropout": 0.0, "intermediate_size": 12288,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42, "first_k_dense_replace": 3,
        "layer_types": ["deepseek_sparse_attention" if i % 4 == 3 else "linear_attention" for i in range(45)],
        "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0, "qk_head_dim": 256, "v_head_dim": 256, "head_dim": 0, "mla_use_nope": True, "index_n_heads": 32,
        "index_head_dim": 128, "index_topk": 2048, "index_kpool": 4, "index_kpool_compress": True,
        "index_kpool_always_select_tail": True, "indexer_rope_interleave": True, "indexer_types": ["full"] * 45,
        "index_share_for_mtp_iteration": True,
        "linear_attn_config": {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0,
                               "kda_layers": [i for i in range(45) if i % 4 != 3], "full_attn_layers": list(range(3, 45, 4))},
        "mhc": True, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "n_routed_experts": 288, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "moe_intermediate_size": 2048, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1, "moe_router_dtype": "float32",
        "swiglu_limit": 10.0, "initializer_range": 0.02, "pad_token_id": 154820,
    }  # fmt: skip
    vision = {"model_type": "glm5_next_vision", "depth": 24, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096,
              "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2, "out_hidden_size": 4096,
              "projection_intermediate_size": 10240, "attention_bias": True, "hidden_act": "silu", "swiglu_limit": 10.0,
              "rms_norm_eps": 1e-5}  # fmt: skip
    c = Checkpoint(
        {"architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "text_config": text, "vision_config": vision,
         "image_token_id": 154854, "video_token_id": 154855, "image_start_token_id": 154830, "image_end_token_id": 154831,
         "video_start_token_id": 154832, "video_end_token_id": 154833, "tie_word_embeddings": False,
         "eos_token_id": [154820, 154827, 154829]}
    )  # fmt: skip
    root = "model.language_model"
    c.add(f"{root}.embed_tokens.weight", [154880, 4096])
    for i in range(46):
        layer = f"{root}.layers.{i}"
        c.add(f"{layer}.input_layernorm.weight", [4096])
        c.add(f"{layer}.post_attention_layernorm.weight", [4096])
        for part in ("attn", "ffn") if i < 45 else ():
            c.add(f"{layer}.hc_{part}_fn", [24, 16384])
            c.add(f"{layer}.hc_{part}_base", [24], "F32")
            c.add(f"{layer}.hc_{part}_scale", [3], "F32")
        if i % 4 == 3 or i == 45:
            glm_sparse_attention(c, f"{layer}.self_attn", mla)
        else:
            kda(c, f"{layer}.self_attn", 4096, 64, 128, False, [64])
        if i < 3:
            c.feed_forward(f"{layer}.mlp", 4096, 12288, dense)
        else:
            glm_experts(c, f"{layer}.mlp", shared, experts if i < 45 else last_experts)
    layer = f"{root}.layers.45"
    c.add(f"{layer}.enorm.weight", [4096])
    c.add(f"{layer}.hnorm.weight", [4096])
    c.add(f"{layer}.eh_proj.weight", [4096, 8192])
    c.add(f"{layer}.shared_head.norm.weight", [4096])
    c.add(f"{root}.norm.weight", [4096])
    c.add("lm_head.weight", [154880, 4096])
    glm_vision(c)
    return c


# ---- Qwen3.8-Flash-Next ----


def qwen_residual(c, stem, final=False):
    c.add(f"{stem}.hc_norm.weight", [10240])
    c.add(f"{stem}.input_mix_weight_down.weight", [320, 10240])
    c.add(f"{stem}.input_mix_weight_up.weight", [10240, 320])
    if not final:
        c.add(f"{stem}.block_inject_weight.weight", [4, 10240])


def qwen_layer(c, layer, full, experts):
    qwen_residual(c, f"{layer}.attn_hyper_connection")
    qwen_residual(c, f"{layer}.mlp_hyper_connection")
    c.matrix(f"{layer}.mlp.gate", 512, 2560)
    c.feed_forward(f"{layer}.mlp.shared_expert", 2560, 640)
    c.matrix(f"{layer}.mlp.shared_expert_gate", 1, 2560)
    if experts == "BF16":
        c.add(f"{layer}.mlp.experts.gate_up_proj", [512, 1280, 2560])
        c.add(f"{layer}.mlp.experts.down_proj", [512, 2560, 640])
    else:
        for e in range(512):
            c.feed_forward(f"{layer}.mlp.experts.{e}", 2560, 640, experts)
    if full:
        a = f"{layer}.self_attn"
        for name, rows in (("q", 12288), ("k", 512), ("v", 512)):
            c.matrix(f"{a}.{name}_proj", rows, 2560)
        c.matrix(f"{a}.o_proj", 2560, 6144)
        for name, size in (("q_norm", 256), ("k_norm", 256), ("indexer.q_layernorm", 128), ("indexer.k_layernorm", 128)):
            c.add(f"{a}.{name}.weight", [size])
        c.matrix(f"{a}.indexer.index_qk_proj", 640, 2560)
        return
    a = f"{layer}.linear_attn"
    for name, rows in (("qkv", 10240), ("z", 6144), ("b", 48), ("a", 48)):
        c.matrix(f"{a}.in_proj_{name}", rows, 2560)
    c.add(f"{a}.conv1d.weight", [10240, 1, 4])
    c.add(f"{a}.A_log", [48])
    c.add(f"{a}.dt_bias", [48])
    c.add(f"{a}.norm.weight", [128])
    c.matrix(f"{a}.out_proj", 2560, 6144)


def qwen_table(c, ple, kind):
    c.matrix(f"{ple}.key_proj", 10240, 2560)
    c.matrix(f"{ple}.value_proj", 2560, 2560)
    for name in ("norm_key", "norm_query", "norm_conv"):
        c.add(f"{ple}.{name}.weight", [10240])
    c.add(f"{ple}.conv1d.weight", [10240, 1, 4])
    e = f"{ple}.ple_embedding"
    c.add(f"{e}.layer_multipliers", [3], "I64")
    c.add(f"{e}.ngram_heads_vocab_sizes", [16], "I64")
    c.add(f"{e}.ngram_heads_offsets", [16], "I64")
    for k in range(128):
        c.add(f"{e}.ngram_embedding.shard_{k}.weight", [2500012, 160], kind)
    if kind != "BF16":
        c.add(f"{e}.ngram_embedding.weight_scale", [1])


def qwen_vision(c):
    v = "model.visual"
    c.add(f"{v}.patch_embed.proj.weight", [1152, 3, 2, 16, 16])
    c.add(f"{v}.patch_embed.proj.bias", [1152])
    c.add(f"{v}.pos_embed.weight", [2304, 1152])
    for i in range(27):
        b = f"{v}.blocks.{i}"
        for name in ("norm1", "norm2"):
            c.add(f"{b}.{name}.weight", [1152])
            c.add(f"{b}.{name}.bias", [1152])
        for name, rows, cols in (("attn.qkv", 3456, 1152), ("attn.proj", 1152, 1152), ("mlp.linear_fc1", 4304, 1152),
                                 ("mlp.linear_fc2", 1152, 4304)):  # fmt: skip
            c.add(f"{b}.{name}.weight", [rows, cols])
            c.add(f"{b}.{name}.bias", [rows])
    for name, rows, cols in (("linear_fc1", 4608, 4608), ("linear_fc2", 2560, 4608)):
        c.add(f"{v}.merger.{name}.weight", [rows, cols])
        c.add(f"{v}.merger.{name}.bias", [rows])
    c.add(f"{v}.merger.norm.weight", [1152])
    c.add(f"{v}.merger.norm.bias", [1152])


def qwen4_exp(experts, table):
    text = {
        "model_type": "qwen4_exp_text", "vocab_size": 248320, "hidden_size": 2560, "num_hidden_layers": 48,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(48)], "full_attention_interval": 4,
        "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256, "attention_bias": False, "attention_dropout": 0.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
                            "mrope_section": [11, 11, 10]},
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "hidden_act": "silu", "output_gate_type": "sigmoid",
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640, "norm_topk_prob": True, "hc_count": 4, "hc_lowrank": 320,
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_compress_ratio": 4, "indexer_budget": 2048,
        "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "ngram_size": 3, "heads_per_ngram": 8,
        "ngram_vocab_size_base": 20000000, "make_ngram_vocab_size_divisible_by": 128, "split_ngram_parts": 128,
        "eos_token_id": 248044, "tie_word_embeddings": False, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
        "mtp": {"hybrid": True, "layer_types": ["full_attention"]},
    }  # fmt: skip
    vision = {"model_type": "qwen4_exp", "depth": 27, "hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304, "patch_size": 16,
              "temporal_patch_size": 2, "spatial_merge_size": 2, "out_hidden_size": 2560, "num_position_embeddings": 2304,
              "deepstack_visual_indexes": [], "in_channels": 3, "hidden_act": "gelu_pytorch_tanh"}  # fmt: skip
    c = Checkpoint(
        {"architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp", "text_config": text, "vision_config": vision,
         "image_token_id": 248056, "video_token_id": 248057, "vision_start_token_id": 248053, "vision_end_token_id": 248054,
         "tie_word_embeddings": False}
    )  # fmt: skip
    root = "model.language_model"
    c.add(f"{root}.embed_tokens.weight", [248320, 2560])
    c.add("lm_head.weight", [248320, 2560])
    qwen_residual(c, f"{root}.hyper_connection_mixer", final=True)
    for i in range(48):
        qwen_layer(c, f"{root}.layers.{i}", i % 4 == 3, experts)
    qwen_table(c, f"{root}.layers.1.ple", table)
    c.matrix("mtp.fc_embedding", 2560, 2560)
    c.matrix("mtp.fc_hidden", 2560, 2560)
    c.add("mtp.pre_fc_norm_embedding.weight", [2560])
    c.add("mtp.pre_fc_norm_hidden.weight", [10240])
    qwen_residual(c, "mtp.hyper_connection_mixer", final=True)
    qwen_layer(c, "mtp.layers.0", True, "BF16")
    qwen_vision(c)
    return c


def write_tokenizer(folder, tokens):
    """A tokenizer.json of the size of a real one: every text of up to four letters, made by appending one."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    texts = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    letters = [chr(byte) for byte in range(ord("a"), ord("z") + 1)]
    merges, shorter = [], letters
    while len(texts) < tokens:
        merges += [(left, right) for left in shorter for right in letters][: tokens - len(texts)]
        shorter = [left + right for left in shorter for right in letters]
        texts += shorter[: tokens - len(texts)]
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": bytes_of, "post_processor": None,
                "decoder": bytes_of, "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(texts)},
                                               "merges": merges}}  # fmt: skip
    (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False))


MODELOPT = "NVFP4 ModelOpt"
WEIGHTS_ONLY = "NVFP4 ModelOpt, weights only"
FP8 = "FP8 blocks"

# Name: how to make it, and the published size in bytes (None: no exact figure is known), whether of all files or of the parameters alone.
CHECKPOINTS = {
    "solar_open2-bf16": (lambda: solar_open2("BF16"), 2 * 250_287_810_304),
    "solar_open2-nvfp4": (lambda: solar_open2("NVFP4 compressed-tensors"), 153_347_363_609),
    "glm5_next-fp8": (lambda: glm5_next(FP8, FP8, FP8, FP8, FP8), None),
    "glm5_next-nvfp4": (lambda: glm5_next(MODELOPT, MODELOPT, "BF16", "BF16", "BF16"), 204_476_277_515),
    # Published as "~181 GiB"; the specification's own sum over the shapes has one more digit.
    "glm5_next-nvfp4-weights": (lambda: glm5_next(WEIGHTS_ONLY, "BF16", "BF16", WEIGHTS_ONLY, "BF16"), int(181.2 * 2**30)),
    "qwen4_exp-bf16": (lambda: qwen4_exp("BF16", "BF16"), 2 * 179_999_981_424),
    "qwen4_exp-nvfp4": (lambda: qwen4_exp(MODELOPT, "F8_E4M3"), 135_253_622_894),
}


def main(name, folder):
    make, published = CHECKPOINTS[name]
    checkpoint = make()
    checkpoint.write(folder)
    print(f"{len(checkpoint.tensors)} tensors, {checkpoint.bytes()} bytes, published {published}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in CHECKPOINTS:
        sys.exit(__doc__ + "\n" + " ".join(CHECKPOINTS))
    main(sys.argv[1], sys.argv[2])
