#!/usr/bin/env python3
"""Writes the GGUF form of a small Hugging Face model, with the `gguf` package and its names.

    gguf_models.py MODEL OUTPUT.gguf [--experts TYPE --dequantised FOLDER] [--float32]

Matrices stay BF16 and vectors become float32, so that the file holds the same numbers; what a
converter changes is changed here, too: rows of q and k of llama, -exp(A_log), taps of convolutions,
kv_b_proj cut into k_b (transposed) and v_b. --experts quantises the routed experts and the shared one
(Q8_0, Q4_0, ...); FOLDER then gets the model with the values that are left, of which family_models.py
makes the record. --float32 widens the matrices to float32: llama.cpp rounds what it multiplies with BF16
to BF16, too. The vocabulary is a list of made-up tokens.
"""

import argparse
import re

import pathlib

import gguf
import numpy
import torch
from checkpoint import read_config, read_tensors, write_json, write_tensors

TENSOR = gguf.MODEL_TENSOR

# The end of a Hugging Face name, and what gguf calls it.
GLOBAL = {
    "model.embed_tokens": TENSOR.TOKEN_EMBD,
    "model.norm": TENSOR.OUTPUT_NORM,
    "lm_head": TENSOR.OUTPUT,
}
LAYER = {
    "input_layernorm": TENSOR.ATTN_NORM,
    "post_attention_layernorm": TENSOR.FFN_NORM,
    "self_attn.q_proj": TENSOR.ATTN_Q,
    "self_attn.k_proj": TENSOR.ATTN_K,
    "self_attn.v_proj": TENSOR.ATTN_V,
    "self_attn.o_proj": TENSOR.ATTN_OUT,
    "self_attn.g_proj": TENSOR.ATTN_GATE,
    "self_attn.q_norm": TENSOR.ATTN_Q_NORM,
    "self_attn.k_norm": TENSOR.ATTN_K_NORM,
    "self_attn.kv_a_proj_with_mqa": TENSOR.ATTN_KV_A_MQA,
    "self_attn.kv_a_layernorm": TENSOR.ATTN_KV_A_NORM,
    "self_attn.q_conv1d": TENSOR.SSM_CONV1D_Q,
    "self_attn.k_conv1d": TENSOR.SSM_CONV1D_K,
    "self_attn.v_conv1d": TENSOR.SSM_CONV1D_V,
    "self_attn.f_a_proj": TENSOR.SSM_F_A,
    "self_attn.f_b_proj": TENSOR.SSM_F_B,
    "self_attn.g_a_proj": TENSOR.SSM_G_A,
    "self_attn.g_b_proj": TENSOR.SSM_G_B,
    "self_attn.b_proj": TENSOR.SSM_BETA,
    "self_attn.o_norm": TENSOR.SSM_NORM,
    "self_attn.dt_bias": TENSOR.SSM_DT,
    "self_attn.A_log": TENSOR.SSM_A,
    "mlp.gate_proj": TENSOR.FFN_GATE,
    "mlp.up_proj": TENSOR.FFN_UP,
    "mlp.down_proj": TENSOR.FFN_DOWN,
    "mlp.gate": TENSOR.FFN_GATE_INP,
    "mlp.gate.e_score_correction_bias": TENSOR.FFN_EXP_PROBS_B,
    "mlp.shared_experts.gate_proj": TENSOR.FFN_GATE_SHEXP,
    "mlp.shared_experts.up_proj": TENSOR.FFN_UP_SHEXP,
    "mlp.shared_experts.down_proj": TENSOR.FFN_DOWN_SHEXP,
}
EXPERT = {
    "gate_proj": TENSOR.FFN_GATE_EXP,
    "w1": TENSOR.FFN_GATE_EXP,
    "up_proj": TENSOR.FFN_UP_EXP,
    "w3": TENSOR.FFN_UP_EXP,
    "down_proj": TENSOR.FFN_DOWN_EXP,
    "w2": TENSOR.FFN_DOWN_EXP,
}
BIASES = (TENSOR.SSM_DT, TENSOR.FFN_EXP_PROBS_B)  # their names end in .bias
KEEP_F32 = (TENSOR.FFN_GATE_INP, TENSOR.SSM_CONV1D_Q, TENSOR.SSM_CONV1D_K, TENSOR.SSM_CONV1D_V)
QUANTISED = {
    *EXPERT.values(),
    TENSOR.FFN_GATE_SHEXP,
    TENSOR.FFN_UP_SHEXP,
    TENSOR.FFN_DOWN_SHEXP,
}


def file_name(tensor, layer=None):
    name = gguf.TENSOR_NAMES[tensor].format(bid=layer)
    if tensor == TENSOR.SSM_A:
        return name
    return name + (".bias" if tensor in BIASES else ".weight")


def pair_neighbours(weight, heads):
    """Rows of q or k from halves (i, i + d/2), which rotate together in Hugging Face files, to
    neighbours (2i, 2i + 1)."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns)


class Writer:
    def __init__(self, path, architecture, experts, float32=False):
        self.gguf = gguf.GGUFWriter(path, architecture)
        self.float32 = float32
        self.experts = gguf.GGMLQuantizationType[experts] if experts else None

    def add(self, tensor, value, layer=None):
        name = file_name(tensor, layer)
        if self.experts is not None and tensor in QUANTISED:
            blocks = gguf.quants.quantize(value.float().numpy(), self.experts)
            self.gguf.add_tensor(name, blocks, raw_dtype=self.experts)
        elif (value.dtype == torch.bfloat16 and value.dim() > 1 and tensor not in KEEP_F32
              and not self.float32):  # fmt: skip
            bits = value.contiguous().view(torch.uint16).numpy().view(numpy.uint8)
            self.gguf.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            self.gguf.add_tensor(name, value.float().contiguous().numpy())

    def close(self):
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def add_layer_tensor(writer, config, layer, stem, value):
    """One tensor of a layer that is no expert. Returns False when the name is not known."""
    if stem == "self_attn.kv_b_proj":
        nope, value_dim = config["qk_nope_head_dim"], config["v_head_dim"]
        per_head = value.reshape(config["num_attention_heads"], nope + value_dim, -1)
        writer.add(TENSOR.ATTN_K_B, per_head[:, :nope].transpose(1, 2).contiguous(), layer)
        writer.add(TENSOR.ATTN_V_B, per_head[:, nope:].contiguous(), layer)
        return True
    tensor = LAYER.get(stem)
    if tensor is None:
        return False
    if tensor == TENSOR.SSM_A:
        value = -value.float().exp().reshape(-1, 1)
    elif tensor in (TENSOR.SSM_CONV1D_Q, TENSOR.SSM_CONV1D_K, TENSOR.SSM_CONV1D_V):
        value = value.float().reshape(1, value.shape[0], 1, value.shape[-1])
    elif tensor == TENSOR.SSM_DT:
        value = value.float().reshape(-1)
    elif config["model_type"] == "llama" and tensor in (TENSOR.ATTN_Q, TENSOR.ATTN_K):
        key = "num_attention_heads" if tensor == TENSOR.ATTN_Q else "num_key_value_heads"
        value = pair_neighbours(value, config[key])
    writer.add(tensor, value, layer)
    return True


def add_tensors(writer, config, tensors):
    experts = {}
    for name, value in tensors.items():
        stem = name.removesuffix(".weight")
        if stem in GLOBAL:
            writer.add(GLOBAL[stem], value)
            continue
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        layer, stem = int(match[1]), match[2].replace("block_sparse_moe.", "mlp.")
        expert = re.fullmatch(r"mlp\.experts\.(\d+)\.(\w+)", stem)
        if expert:
            experts.setdefault((layer, EXPERT[expert[2]]), {})[int(expert[1])] = value
        elif not add_layer_tensor(writer, config, layer, stem, value):
            raise SystemExit(f"{name}: no GGUF name is known")
    for (layer, tensor), parts in experts.items():
        writer.add(tensor, torch.stack([parts[i] for i in range(len(parts))]), layer)


def full_layers(config):
    """Which layers have softmax attention, of the families that mix two kinds."""
    if "layer_types" in config:
        return [kind == "full_attention" for kind in config["layer_types"]]
    return [i in config["gqa_layers"] for i in range(config["num_hidden_layers"])]


def add_common(writer, config):
    w = writer.gguf
    w.add_context_length(config.get("max_position_embeddings") or config["model_max_length"])
    w.add_embedding_length(config["hidden_size"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_vocab_size(config["vocab_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "intermediate_size" in config:
        w.add_feed_forward_length(config["intermediate_size"])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list([f"t{i}" for i in range(config["vocab_size"])])
    w.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    w.add_token_merges(["t 0"])
    w.add_bos_token_id(config["bos_token_id"])
    w.add_eos_token_id(config["eos_token_id"])


def llama3_divisors(rope, dims):
    """What the frequency of each rotating pair is divided by."""
    frequencies = rope["rope_theta"] ** (-numpy.arange(0, dims, 2) / dims)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * numpy.pi)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    share = numpy.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / factor + share)).astype(numpy.float32)


def add_rotary(writer, config):
    w = writer.gguf
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_key_length(config["head_dim"])
    w.add_value_length(config["head_dim"])
    rope = config["rope_parameters"]
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(config["head_dim"])
    if rope["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_divisors(rope, config["head_dim"]))
    elif rope["rope_type"] == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def add_qwen3_moe(writer, config):
    w = writer.gguf
    add_rotary(writer, config)
    w.add_expert_count(config["num_local_experts"])
    w.add_expert_used_count(config["num_experts_per_tok"])
    w.add_expert_feed_forward_length(config["moe_intermediate_size"])


def add_solar_open2(writer, config):
    w, linear = writer.gguf, config["linear_attn_config"]
    kv_heads = [config["num_key_value_heads"] if full else 0 for full in full_layers(config)]
    w.add_head_count_kv(kv_heads)
    w.add_key_length(config["head_dim"])
    w.add_value_length(config["head_dim"])
    w.add_rope_dimension_count(0)
    w.add_rope_freq_base(10000.0)
    w.add_ssm_conv_kernel(linear["short_conv_kernel_size"])
    w.add_kda_head_dim(linear["head_dim"])
    w.add_expert_count(config["n_routed_experts"])
    w.add_expert_used_count(config["num_experts_per_tok"])
    w.add_expert_feed_forward_length(config["moe_intermediate_size"])
    w.add_expert_shared_count(config["n_shared_experts"])
    w.add_leading_dense_block_count(config["first_k_dense_replace"])
    w.add_expert_weights_scale(config["routed_scaling_factor"])
    w.add_expert_weights_norm(config["norm_topk_prob"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def add_kimi_linear(writer, config):
    w = writer.gguf
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    w.add_head_count_kv([1 if full else 0 for full in full_layers(config)])
    w.add_kv_lora_rank(rank)
    w.add_key_length(rank + rope)
    w.add_value_length(rank)
    w.add_key_length_mla(config["qk_nope_head_dim"] + rope)
    w.add_value_length_mla(config["v_head_dim"])
    w.add_rope_dimension_count(rope)
    w.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    w.add_kda_head_dim(config["linear_head_dim"])
    w.add_expert_count(config["num_experts"])
    w.add_expert_used_count(config["num_experts_per_token"])
    w.add_expert_feed_forward_length(config["moe_intermediate_size"])
    w.add_expert_shared_count(config["num_shared_experts"])
    w.add_leading_dense_block_count(config["mlp_layer_types"].count("dense"))
    w.add_expert_weights_scale(config["routed_scaling_factor"])
    w.add_expert_weights_norm(config["moe_renormalize"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


# model_type: general.architecture, and what writes its settings.
FAMILIES = {
    "llama": ("llama", add_rotary),
    "qwen3_moe": ("qwen3moe", add_qwen3_moe),
    "solar_open2": ("solar-open2", add_solar_open2),
    "kimi_linear": ("kimi-linear", add_kimi_linear),
}


def write_dequantised(folder, config, tensors, experts):
    """The model that the quantised file stands for."""
    kind, result = gguf.GGMLQuantizationType[experts], {}
    for name, value in tensors.items():
        quantised = re.search(r"experts\.(\d+\.)?(w[123]|\w+_proj)\.weight$", name)
        if quantised:
            blocks = gguf.quants.quantize(value.float().numpy(), kind)
            value = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
        result[name] = value
    folder.mkdir(exist_ok=True)
    write_json(folder, "config.json", config | {"quantization_config": {"quant_method": "gguf"}})
    write_tensors(folder / "model.safetensors", result)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("output")
    parser.add_argument("--experts")
    parser.add_argument("--dequantised", type=pathlib.Path)
    parser.add_argument("--float32", action="store_true")
    arguments = parser.parse_args()
    config = read_config(arguments.model)
    architecture, add_settings = FAMILIES[config["model_type"]]
    writer = Writer(arguments.output, architecture, arguments.experts, arguments.float32)
    add_common(writer, config)
    add_settings(writer, config)
    tensors = read_tensors(arguments.model)
    add_tensors(writer, config, tensors)
    writer.close()
    if arguments.dequantised:
        write_dequantised(arguments.dequantised, config, tensors, arguments.experts)


if __name__ == "__main__":
    main()
