"""A small solar_open2 checkpoint with random weights, and tools/quantize to quantise it."""

import subprocess
import sys

from troupe_test import ROOT, need

np = need("numpy")
sys.path.insert(0, str(ROOT / "tools"))

from quantizer.checkpoint import Planned, write_folder  # noqa: E402  (needs the path above)
from quantizer.numbers import to_bf16  # noqa: E402

TOKENIZER = ROOT / "models" / "tiny-solar-nvfp4"
HIDDEN, EXPERTS, LAYERS = 256, 4, 2


def random_model(folder, change=lambda name, values: values):
    """Two layers, one of each kind. change(name, values) may replace a tensor."""
    rng = np.random.default_rng(3)
    config = {
        "model_type": "solar_open2", "vocab_size": 4096, "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 512, "moe_intermediate_size": 256, "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "routed_scaling_factor": 1.5,
        "gqa_layers": [0], "gqa_interval": 3, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 2,
        "linear_attn_config": {"short_conv_kernel_size": 4, "head_dim": 64, "num_heads": 4},
    }  # fmt: skip
    shapes = {"model.embed_tokens.weight": (4096, HIDDEN), "lm_head.weight": (4096, HIDDEN),
              "model.norm.weight": (HIDDEN,)}  # fmt: skip
    for i in range(LAYERS):
        mixer = {"q_proj.weight": (256, HIDDEN), "o_proj.weight": (HIDDEN, 256)}
        if i == 0:
            mixer |= {"k_proj.weight": (128, HIDDEN), "v_proj.weight": (128, HIDDEN),
                      "g_proj.weight": (256, HIDDEN)}  # fmt: skip
        else:
            mixer |= {f"{n}_proj.weight": (256, HIDDEN) for n in "kv"}
            mixer |= {f"{n}_conv1d.weight": (256, 1, 4) for n in "qkv"}
            mixer |= {f"{n}_a_proj.weight": (64, HIDDEN) for n in "fg"}
            mixer |= {f"{n}_b_proj.weight": (256, 64) for n in "fg"}
            mixer |= {"A_log": (1, 1, 4, 1), "dt_bias": (256,), "b_proj.weight": (4, HIDDEN),
                      "o_norm.weight": (64,)}  # fmt: skip
        layer = f"model.layers.{i}."
        shapes |= {layer + "self_attn." + name: shape for name, shape in mixer.items()}
        shapes |= {layer + n + "_layernorm.weight": (HIDDEN,) for n in ("input", "post_attention")}
        shapes |= {layer + "mlp.gate.weight": (EXPERTS, HIDDEN),
                   layer + "mlp.gate.e_score_correction_bias": (EXPERTS,)}  # fmt: skip
        for e in [*(f"experts.{e}" for e in range(EXPERTS)), "shared_experts"]:
            shapes |= {f"{layer}mlp.{e}.{n}_proj.weight": (256, 256) for n in ("gate", "up", "down")}
    planned = []
    for name, shape in shapes.items():
        values = rng.normal(0, 0.06, shape).astype(np.float32)
        values = change(name, values + (1 if "norm" in name else 0)).astype(np.float32)
        wide = name.endswith(("A_log", "dt_bias", "correction_bias"))
        planned.append(Planned(name, "F32" if wide else "BF16", shape,
                               lambda v=values, w=wide: v if w else to_bf16(v)))  # fmt: skip
    write_folder(folder, config, planned, lambda name: None)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((TOKENIZER / name).read_bytes())


def quantize(*arguments):
    return subprocess.run([sys.executable, ROOT / "tools" / "quantize", *map(str, arguments)],
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=False,
                          text=True)  # fmt: skip


def make(model, form, out, *options):
    done = quantize(model, form, out, *options)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return out
