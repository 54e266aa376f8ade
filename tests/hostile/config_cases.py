"""Hostile config.json files, and the settings beside it."""

import json

from cases import Case, read_folder

FILE = "config.json"
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "moe_intermediate_size",
          "num_experts_per_tok", "rms_norm_eps")
COUNTS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
          "vocab_size", "moe_intermediate_size", "num_local_experts", "num_experts_per_tok")  # fmt: skip
# What each key may be in no model.
WRONG = {
    **{key: (0, -1, 2**31, 2**63, 10**30, 1.5, "64", [], {}, True) for key in COUNTS},
    "max_position_embeddings": (0, -1, 2**63, 1.5, "64", [], True),
    "rms_norm_eps": (-1e-6, 1e300, "1e-6", [], True),
    "rope_parameters": ({"rope_theta": 0, "rope_type": "default"}, {"rope_theta": -1.0, "rope_type": "default"},
                        {"rope_theta": 1e4, "rope_type": "spiral"}, {"rope_theta": "x", "rope_type": "default"}, [], 7),
    "hidden_act": ("gelu", "", 5, []),
    "norm_topk_prob": (5, "yes", []),
    "attention_bias": (True, "yes", []),
    "tie_word_embeddings": ("yes", 3, []),
    "use_sliding_window": (True, "x"),
    "decoder_sparse_step": (0, -1, "x"),
    "mlp_only_layers": ("x", [99], 5),
    "model_type": ("", "qwen9", "QWEN3_MOE", "m" * 10_000, "qwen3\nmoe", None, 5, []),
    "quantization_config": ({"quant_method": "awq"}, {"quant_method": "gptq", "bits": 4}, {"quant_method": 5}),
    "logit_scale": (2.0,),
    "attention_multiplier": (0.5,),
}  # fmt: skip


def settings(base):
    config = json.loads(base[FILE])

    def case(name, changed, names):
        return Case(f"config {name}", base | {FILE: json.dumps(changed).encode()}, names)

    for key in NEEDED:
        yield case(f"without {key}", {k: v for k, v in config.items() if k != key}, [FILE, key])
    for key, values in WRONG.items():
        for value in values:
            yield case(f"{key} {json.dumps(value)[:40]}", config | {key: value}, FILE)
    for key, value in {"num_hidden_layers": 4, "hidden_size": 128, "vocab_size": 511, "num_local_experts": 9,
                       "num_key_value_heads": 4, "head_dim": 32, "moe_intermediate_size": 64}.items():  # fmt: skip
        yield case(f"{key} {value}, which the tensors contradict", config | {key: value}, "tensor")
    for key, value in {"decoder_sparse_step": 2, "mlp_only_layers": [0]}.items():
        yield case(f"{key} {value}, which the tensors contradict", config | {key: value}, "layers.0.mlp.gate_proj")
    yield case("num_experts_per_tok above the experts", config | {"num_experts_per_tok": 9}, [FILE, "chosen experts"])
    yield case("num_key_value_heads that do not divide", config | {"num_key_value_heads": 3}, FILE)


def text(base):
    good = base[FILE]

    def case(name, content, names=FILE):
        return Case(f"config {name}", base | {FILE: content}, names)

    for cut in (0, 1, 10, len(good) // 2, len(good) - 2):
        yield case(f"cut to {cut} bytes", good[:cut])
    for name, content in {
        "of zeros": bytes(200),
        "of one zero behind it": good + b"\0",
        "that is a list": b"[" + good + b"]",
        "that is null": b"null",
        "with a comma at the end": good.rstrip()[:-1] + b",}",
        "with a comment": b"// settings\n" + good,
        "with NaN": good.replace(b"1e-06", b"NaN"),
        "with Infinity": good.replace(b"1e-06", b"Infinity"),
        "with a number of 1e999": good.replace(b"1e-06", b"1e999"),
        "with a number of 10,000 digits": good.replace(b"1e-06", b"9" * 10_000),
        "with invalid UTF-8": good.replace(b'"silu"', b'"si\xfflu"'),
        "with half a surrogate": good.replace(b'"silu"', b'"\\udc00"'),
        "in UTF-16": good.decode().encode("utf-16"),
        "with a byte order mark": b"\xef\xbb\xbf" + good,
        "with a key twice": good.replace(b'"hidden_size"', b'"hidden_size": 1, "hidden_size"', 1),
        "65 lists deep": good.replace(b'"silu"', b"[" * 65 + b"]" * 65),
        "100,000 lists deep": good.replace(b'"silu"', b"[" * 100_000),
        "100,000 objects deep": b'{"a":' * 100_000,
        "of 5 million lists": b'{"a":[' + b"[]," * 5_000_000 + b"[]]}",
    }.items():
        yield case(name, content)
    yield Case("config that is absent", {k: v for k, v in base.items() if k != FILE}, FILE)
    yield case("that is a folder", None)
    beside = "generation_config.json"
    for name, content in {"cut": b'{"eos_token_id": [1', "that is a list": b"[]", "with an end of -1": b'{"eos_token_id": -1}',
                          "with an end beyond the vocabulary": b'{"eos_token_id": 512}', "with 1,000 ends": json.dumps({"eos_token_id": list(range(500))}).encode(),
                          "with a text as end": b'{"eos_token_id": "x"}', "100,000 deep": b'{"a":' * 100_000}.items():  # fmt: skip
        yield Case(f"generation config {name}", base | {beside: content}, beside)


def cases(models):
    base = read_folder(models / "qwen3_moe-a")
    yield from settings(base)
    yield from text(base)
