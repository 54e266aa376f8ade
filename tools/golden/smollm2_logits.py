"""Writes logits of SmolLM2 as transformers computes them in float32 from the dequantised GGUF.

    python tools/golden/smollm2_logits.py GGUF tests/golden/smollm2_greedy.json \
        tests/golden/smollm2_logits.npz

Needs torch, transformers and gguf. The token sequences are the prompts of smollm2_greedy.json with
what llama.cpp answered. All logits would be 80 MB, so of each position these are kept:

    top_ids, top_logits   the TOP largest
    columns, column_logits   COLUMNS vocabulary entries drawn once, the same for all positions
    norms   the Euclidean norm of the whole row
"""

import json
import pathlib
import sys

import gguf
import numpy
import torch
import transformers

TOP = 16
COLUMNS = 128

# GGUF's name of a tensor within a layer, and transformers'.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def undo_pairs(weight, heads):
    """GGUF stores the two halves of each rotated pair side by side; transformers half a head apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def load(path):
    reader = gguf.GGUFReader(path)

    def value(name):
        return reader.fields["llama." + name].contents()

    heads, heads_kv = value("attention.head_count"), value("attention.head_count_kv")
    config = transformers.LlamaConfig(
        vocab_size=value("vocab_size"),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=heads_kv,
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings=True,
    )
    state = {}
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        parts = tensor.name.split(".")
        if tensor.name == "token_embd.weight":
            name = "model.embed_tokens.weight"
            state["lm_head.weight"] = torch.from_numpy(weight)
        elif tensor.name == "output_norm.weight":
            name = "model.norm.weight"
        else:
            name = f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.weight"
        if parts[-2] in ("attn_q", "attn_k"):
            weight = undo_pairs(weight, heads if parts[-2] == "attn_q" else heads_kv)
        state[name] = torch.from_numpy(numpy.ascontiguousarray(weight))
    model = transformers.LlamaForCausalLM(config).to(torch.float32).eval()
    model.load_state_dict(state, strict=True)
    return model


def main(gguf_path, greedy_path, out):
    model = load(gguf_path)
    cases = json.loads(pathlib.Path(greedy_path).read_text(encoding="utf-8"))["cases"]
    vocabulary = model.config.vocab_size
    columns = numpy.sort(numpy.random.default_rng(2).choice(vocabulary, COLUMNS, replace=False))
    arrays = {"columns": columns.astype(numpy.uint32)}
    for index, case in enumerate(cases):
        ids = case["ids"] + case["tokens"]
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0].numpy()
        top = numpy.argsort(-logits, axis=1, kind="stable")[:, :TOP]
        arrays[f"{index}.ids"] = numpy.array(ids, numpy.uint32)
        arrays[f"{index}.top_ids"] = top.astype(numpy.uint32)
        arrays[f"{index}.top_logits"] = numpy.take_along_axis(logits, top, axis=1)
        arrays[f"{index}.column_logits"] = logits[:, columns]
        arrays[f"{index}.norms"] = numpy.linalg.norm(logits.astype(numpy.float64), axis=1)
        print(f"case {index}: {len(ids)} positions, most probable next token {top[-1, 0]}")
    numpy.savez_compressed(out, **arrays)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
