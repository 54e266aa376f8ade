"""Makes a small llama model as GGUF in which every block type occurs, and its reference.

    python gguf_types.py FOLDER          # writes FOLDER/llama-gguf-types/{model.gguf,golden.safetensors}
    tools/golden/pack_models.py tests/golden/models_gguf.tar.xz FOLDER

Needs numpy, gguf, torch, transformers, safetensors. Blocks hold random bytes; their scales are chosen
so that the values are about as large as those of a model. The reference is transformers in float64 on
the weights that the gguf package dequantises: input_ids and logits."""

import pathlib
import sys

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize
from safetensors.numpy import save_file
from transformers import LlamaConfig, LlamaForCausalLM

HIDDEN, WIDTH, LAYERS, HEADS, KV_HEADS, DIM, VOCABULARY = 256, 512, 3, 8, 4, 32, 128
# of each layer q, k, v, o, down, gate, up; then the embeddings and the output matrix. o and down are
# cut into slices of 64 columns, which begin inside the blocks of 256.
TYPES = ["Q4_0", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "IQ2_XXS", "IQ2_XS",
         "IQ4_NL", "Q5_1", "Q5_0", "IQ4_XS", "Q3_K", "Q2_K", "IQ3_XXS",
         "Q4_1", "NVFP4", "MXFP4", "Q6_K", "IQ2_XS", "NVFP4", "IQ2_XXS",
         "Q3_K", "Q2_K"]
# where the f16 scale stands; where the minimum stands and how many scales it is; how large values are
# when the scale is 1
SCALES = {
    "Q4_0": (0, None, 0, 5), "Q4_1": (0, 2, -7.5, 5), "Q5_0": (0, None, 0, 9),
    "Q5_1": (0, 2, -15.5, 9), "Q8_0": (0, None, 0, 74), "Q2_K": (80, 82, 1.5, 15),
    "Q3_K": (108, None, 0, 43), "Q4_K": (0, 2, 7.5, 230), "Q5_K": (0, 2, 15.5, 450),
    "Q6_K": (208, None, 0, 1400), "IQ2_XXS": (0, None, 0, 60), "IQ2_XS": (0, None, 0, 60),
    "IQ3_XXS": (0, None, 0, 140), "IQ4_NL": (0, None, 0, 67), "IQ4_XS": (0, None, 0, 1200),
}
random = np.random.default_rng(17)


def blocks_of(kind, rows, cols):
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    count = rows * cols // elements
    data = random.integers(0, 256, (count, size), np.uint8)
    if kind == "MXFP4":
        data[:, 0] = random.integers(121, 125, count)
    elif kind == "NVFP4":
        data[:, :4] = random.integers(0x28, 0x40, (count, 4))
    else:
        at, min_at, minimum, size_at_one = SCALES[kind]
        d = (0.06 / size_at_one * random.uniform(0.5, 1.5, count)).astype("<f2")
        data[:, at : at + 2] = d.view(np.uint8).reshape(count, 2)
        if min_at is not None:
            m = (d.astype(np.float64) * minimum).astype("<f2")
            data[:, min_at : min_at + 2] = m.view(np.uint8).reshape(count, 2)
    return data.reshape(rows, -1)


def rotate_halves(weight, heads):
    """Rows of q and k as transformers has them: GGUF puts the two of a rotated pair side by side."""
    return weight.reshape(heads, DIM // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def main():
    folder = pathlib.Path(sys.argv[1]) / "llama-gguf-types"
    folder.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(folder / "model.gguf", "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(VOCABULARY)])
    writer.add_eos_token_id(0)

    state, used = {}, 0

    def put(gguf_name, name, rows, cols, heads=0):
        nonlocal used
        kind = TYPES[used]
        used += 1
        data = blocks_of(kind, rows, cols)
        value = dequantize(data, GGMLQuantizationType[kind]).reshape(rows, cols).astype(np.float64)
        writer.add_tensor(f"{gguf_name}.weight", data, raw_dtype=GGMLQuantizationType[kind])
        if kind == "NVFP4":
            scale = np.float32(random.uniform(0.02, 0.05))
            writer.add_tensor(f"{gguf_name}.scale", np.array([scale], np.float32))
            writer.add_tensor(f"{gguf_name}.input_scale", np.array([1.0], np.float32))
            value *= float(scale)
        state[name] = torch.from_numpy(rotate_halves(value, heads) if heads else value)

    def put_norm(gguf_name, name):
        value = random.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
        writer.add_tensor(f"{gguf_name}.weight", value)
        state[name] = torch.from_numpy(value.astype(np.float64))

    for i in range(LAYERS):
        b, n = f"blk.{i}.", f"model.layers.{i}."
        put_norm(f"{b}attn_norm", f"{n}input_layernorm.weight")
        put(f"{b}attn_q", f"{n}self_attn.q_proj.weight", HEADS * DIM, HIDDEN, HEADS)
        put(f"{b}attn_k", f"{n}self_attn.k_proj.weight", KV_HEADS * DIM, HIDDEN, KV_HEADS)
        put(f"{b}attn_v", f"{n}self_attn.v_proj.weight", KV_HEADS * DIM, HIDDEN)
        put(f"{b}attn_output", f"{n}self_attn.o_proj.weight", HIDDEN, HEADS * DIM)
        put_norm(f"{b}ffn_norm", f"{n}post_attention_layernorm.weight")
        put(f"{b}ffn_down", f"{n}mlp.down_proj.weight", HIDDEN, WIDTH)
        put(f"{b}ffn_gate", f"{n}mlp.gate_proj.weight", WIDTH, HIDDEN)
        put(f"{b}ffn_up", f"{n}mlp.up_proj.weight", WIDTH, HIDDEN)
    put_norm("output_norm", "model.norm.weight")
    put("token_embd", "model.embed_tokens.weight", VOCABULARY, HIDDEN)
    put("output", "lm_head.weight", VOCABULARY, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=DIM,
        vocab_size=VOCABULARY, rms_norm_eps=1e-5, max_position_embeddings=512,
        tie_word_embeddings=False, attn_implementation="eager")
    torch.set_default_dtype(torch.float64)
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(state)
    ids = random.integers(0, VOCABULARY, 40)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    save_file({"input_ids": ids.astype(np.int64), "logits": logits.astype(np.float32)},
              folder / "golden.safetensors")


if __name__ == "__main__":
    main()
