"""solar_open2 as GGUF: the names and settings that the community's files use."""

import json
import re

import numpy as np

from .checkpoint import Refused

GLOBAL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.g_proj.weight": "attn_gate.weight",
    "self_attn.q_conv1d.weight": "ssm_conv1d_q.weight",
    "self_attn.k_conv1d.weight": "ssm_conv1d_k.weight",
    "self_attn.v_conv1d.weight": "ssm_conv1d_v.weight",
    "self_attn.f_a_proj.weight": "ssm_f_a.weight",
    "self_attn.f_b_proj.weight": "ssm_f_b.weight",
    "self_attn.g_a_proj.weight": "ssm_g_a.weight",
    "self_attn.g_b_proj.weight": "ssm_g_b.weight",
    "self_attn.b_proj.weight": "ssm_beta.weight",
    "self_attn.A_log": "ssm_a",
    "self_attn.dt_bias": "ssm_dt.bias",
    "self_attn.o_norm.weight": "ssm_norm.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
EXPERT = {"gate_proj": "ffn_gate_exps.weight", "up_proj": "ffn_up_exps.weight",
          "down_proj": "ffn_down_exps.weight"}
EXPERT_NAME = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(\w+)\.weight")
LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.*)")
# kept in float32 by every converter, whatever the rest becomes
ALWAYS_F32 = ("ffn_gate_inp.weight", "ssm_conv1d_q.weight", "ssm_conv1d_k.weight",
              "ssm_conv1d_v.weight", "ssm_a")


def name_of(name):
    """GGUF's name of a tensor that is not a routed expert."""
    match = LAYER_NAME.fullmatch(name)
    if match and match[2] in LAYER:
        return f"blk.{match[1]}.{LAYER[match[2]]}"
    if name in GLOBAL:
        return GLOBAL[name]
    raise Refused(f"tensor {name}: solar_open2 has no such tensor")


def values_of(name, tensor):
    """A tensor as GGUF stores it."""
    values = tensor.values()
    if name.endswith("ssm_a"):
        return -np.exp(values.reshape(1, -1).T)
    return values


def is_softmax_layer(config, layer):
    """As in config.json: layer_types, or gqa_layers, or every (interval + 1)th."""
    if config.get("layer_types"):
        return config["layer_types"][layer] == "full_attention"
    if config.get("gqa_layers") is not None:
        return layer in config["gqa_layers"]
    return layer % (config["gqa_interval"] + 1) == 0


def metadata(checkpoint, file_type):
    """All keys of the file."""
    c = checkpoint.config
    if not c.get("use_gqa_gate", True) or c.get("use_qk_norm", False) or c.get("use_rope", False):
        raise Refused("config.json: this form of solar_open2 has no GGUF: expected a gate and neither "
                      "norms nor positions on q and k")
    if not c.get("kda_allow_neg_eigval", True) or c.get("kda_use_full_proj", False):
        raise Refused("config.json: this form of solar_open2 has no GGUF: expected "
                      "kda_allow_neg_eigval and low-rank gates")
    layers = c["num_hidden_layers"]
    heads = [c["num_key_value_heads"] if is_softmax_layer(c, i) else 0 for i in range(layers)]
    settings = {
        "block_count": layers,
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "vocab_size": c["vocab_size"],
        "feed_forward_length": c["intermediate_size"],
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": heads,
        "attention.key_length": c["head_dim"],
        "attention.value_length": c["head_dim"],
        "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]),
        "rope.dimension_count": 0,
        "rope.freq_base": float(c.get("rope_theta", 10000.0)),
        "ssm.conv_kernel": c["linear_attn_config"]["short_conv_kernel_size"],
        "kda.head_dim": c["linear_attn_config"]["head_dim"],
        "expert_count": c["n_routed_experts"],
        "expert_used_count": c["num_experts_per_tok"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_count": c.get("n_shared_experts", 1),
        "expert_group_count": c.get("n_group", 1),
        "expert_group_used_count": c.get("topk_group", 1),
        "leading_dense_block_count": c.get("first_k_dense_replace", 0),
        "expert_weights_scale": float(c.get("routed_scaling_factor", 1.0)),
        "expert_weights_norm": c.get("norm_topk_prob", True),
        "expert_gating_func": 2,
    }
    keys = {"general.architecture": "solar-open2", "general.type": "model",
            "general.name": checkpoint.folder.resolve().name, "general.file_type": file_type,
            "general.quantization_version": 2}
    keys.update({f"solar-open2.{key}": value for key, value in settings.items()})
    keys.update(_tokenizer(checkpoint))
    return keys


def _tokenizer(checkpoint):
    c, folder = checkpoint.config, checkpoint.folder
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokens = [f"[PAD{i}]" for i in range(c["vocab_size"])]
    kinds = [5] * len(tokens)  # unused
    for text, i in tokenizer["model"]["vocab"].items():
        tokens[i], kinds[i] = text, 1
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = 3 if added["special"] else 4
    merges = [pair if isinstance(pair, str) else " ".join(pair)
              for pair in tokenizer["model"]["merges"]]
    keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "solar-open",
            "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.merges": merges, "tokenizer.ggml.add_bos_token": False}
    generation = folder / "generation_config.json"
    ends = c.get("eos_token_id")
    if generation.exists():
        ends = json.loads(generation.read_text()).get("eos_token_id", ends)
    ends = ends if isinstance(ends, list) else [ends]
    keys["tokenizer.ggml.eos_token_id"] = ends[0]
    if len(ends) > 1:
        keys["tokenizer.ggml.eot_token_id"] = ends[1]
    for name in ("bos", "pad"):
        if c.get(f"{name}_token_id") is not None:
            key = "padding" if name == "pad" else name
            keys[f"tokenizer.ggml.{key}_token_id"] = c[f"{name}_token_id"]
    template = folder / "chat_template.jinja"
    if template.exists():
        keys["tokenizer.chat_template"] = template.read_text()
    return keys
