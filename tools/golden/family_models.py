#!/usr/bin/env python3
"""Makes the small random models of tests/golden/models*.tar.xz and records what they answer.

    family_models.py make CONFIG FOLDER [--seed N]     random weights for the settings in CONFIG
    family_models.py nvfp4 FOLDER [--skip PATTERN..]   FOLDER-ct and FOLDER-modelopt
    family_models.py record FOLDER [--check]           golden.safetensors; --check compares instead
    family_models.py states FOLDER FILE [--check]      what a quantised folder's record lacks, into FILE

CONFIG is a config.json or a folder with one: a model that exists is made again in shape, with other
weights. The reference is transformers in float32 on the CPU. Where the installed one does not know
solar_open2 it is solar_open2.py, in float64; which of the two answered is said on standard error. A
quantised folder is recorded from its own numbers, dequantised; its hidden states (of every fifth
position) and text stand in a file of their own.
"""

import argparse
import copy
import fnmatch
import pathlib
import sys
import tempfile

import numpy
import torch
from checkpoint import as_numpy, read_config, read_tensors, write_json, write_tensors
from nvfp4 import dequantised, encode
from safetensors.numpy import load_file, save_file
from solar_open2 import SolarOpen2, shapes

POSITIONS = 150
GENERATED = 24
STATES_EVERY = 5
SHARDS = 2  # of the compressed-tensors form, so that an index is read, too

# Left in BF16 by the quantisers of the published checkpoints.
PLAIN = ["lm_head", "*self_attn*", "*linear_attn*", "*mlp.gate", "*shared_expert*", "*embed_tokens*",
         "*hc_*", "*hyper_connection*", "*ple*", "model.visual*"]  # fmt: skip


# -- making --


def random_tensor(name, shape, generator):
    """Values that keep activations near 1 and gates away from their ends."""

    def normal(mean, deviation):
        return mean + deviation * torch.randn(shape, generator=generator)

    if name.endswith("A_log"):
        return torch.log(1 + 7 * torch.rand(shape, generator=generator))
    if name.endswith("dt_bias"):
        return normal(-1.75, 0.75)
    if name.endswith("e_score_correction_bias"):
        return normal(0, 0.1)
    if len(shape) == 1 or "norm" in name:
        return normal(1, 0.15)
    if "conv1d" in name:
        return normal(0, 0.4)
    if "embed_tokens" in name:
        return normal(0, 1)
    return normal(0, (2.5 if "lm_head" in name else 1.2) / shape[-1] ** 0.5)


def keeps_f32(name):
    return name.endswith(("A_log", "dt_bias", "e_score_correction_bias"))


def in_transformers(config):
    """Whether the installed transformers knows the family."""
    import transformers

    return config["model_type"] in transformers.CONFIG_MAPPING


def model_class(config):
    import transformers

    return getattr(transformers, config["architectures"][0])


def published_shapes(config):
    """Names and shapes of the tensors as they are published."""
    if not in_transformers(config):
        return shapes(config)
    import transformers

    # A copy: transformers adds its defaults to the dictionaries inside.
    wanted = copy.deepcopy({k: v for k, v in config.items() if k != "transformers_version"})
    model = model_class(config)(transformers.AutoConfig.for_model(**wanted)).bfloat16()
    with tempfile.TemporaryDirectory() as folder:  # names inside the program are others
        model.save_pretrained(folder)
        return {name: tuple(value.shape) for name, value in read_tensors(folder).items()}


def make(config, folder, seed):
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in sorted(published_shapes(config).items()):
        value = random_tensor(name, shape, generator)
        tensors[name] = value.float() if keeps_f32(name) else value.bfloat16()
    write_json(folder, "config.json", config)
    write_tensors(folder / "model.safetensors", tensors)


# -- quantising --


def modelopt_config():
    part = {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}
    return {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "kv_cache_scheme": None,
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "config_groups": {
            "group_0": {"weights": part, "input_activations": part, "targets": ["Linear"]}
        },
        "ignore": PLAIN,
    }


def compressed_tensors_config():
    part = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
            "symmetric": True, "dynamic": False, "observer": "minmax"}  # fmt: skip
    group = {
        "format": "nvfp4-pack-quantized",
        "targets": ["Linear"],
        "weights": part,
        "input_activations": part | {"dynamic": "local"},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "ignore": PLAIN,
        "config_groups": {"group_0": group},
    }


def quantise(folder):
    """Routed experts in NVFP4, in both layouts; codes and scales are the same in both."""
    config, tensors = read_config(folder), read_tensors(folder)
    packed, factored = {}, {}
    for name, value in tensors.items():
        stem = name.removesuffix(".weight")
        if value.dim() != 2 or any(fnmatch.fnmatch(stem, pattern) for pattern in PLAIN):
            packed[name] = factored[name] = value
            continue
        if ".experts." not in name:
            packed[name] = factored[name] = value
            continue
        codes, scales, factor = encode(value)
        packed[stem + ".weight_packed"] = codes
        packed[stem + ".weight_scale"] = scales
        packed[stem + ".weight_global_scale"] = (1 / factor).reshape(1)
        packed[stem + ".input_global_scale"] = torch.full((1,), 448.0 * 6 / 8)
        factored[stem + ".weight"] = codes
        factored[stem + ".weight_scale"] = scales
        factored[stem + ".weight_scale_2"] = factor
        factored[stem + ".input_scale"] = torch.tensor(8 / (448.0 * 6))
    write_sharded(folder.with_name(folder.name + "-ct"),
                  config | {"quantization_config": compressed_tensors_config()}, packed)  # fmt: skip
    other = folder.with_name(folder.name + "-modelopt")
    other.mkdir(exist_ok=True)
    write_json(other, "config.json", config | {"quantization_config": modelopt_config()})
    write_json(other, "hf_quant_config.json", {
        "producer": {"name": "modelopt", "version": "0.47.0"},
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": None, "group_size": 16,
                         "exclude_modules": PLAIN}})  # fmt: skip
    write_tensors(other / "model.safetensors", factored)


def write_sharded(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    write_json(folder, "config.json", config)
    names, where = sorted(tensors), {}
    for i in range(SHARDS):
        file = f"model-{i + 1:05}-of-{SHARDS:05}.safetensors"
        part = names[i * len(names) // SHARDS : (i + 1) * len(names) // SHARDS]
        write_tensors(folder / file, {name: tensors[name] for name in part})
        where |= dict.fromkeys(part, file)
    size = sum(value.numel() * value.element_size() for value in tensors.values())
    write_json(folder, "model.safetensors.index.json",
               {"metadata": {"total_size": size}, "weight_map": where})  # fmt: skip


# -- recording --


def own_reference(config, tensors):
    model = SolarOpen2(config, {name: as_numpy(value) for name, value in tensors.items()})
    return model.run


def transformers_reference(config, tensors):
    """A function from token ids to logits and hidden states: transformers in float32."""
    config = {key: value for key, value in config.items() if key != "quantization_config"}
    with tempfile.TemporaryDirectory() as scratch:
        write_json(scratch, "config.json", config)
        write_tensors(pathlib.Path(scratch) / "model.safetensors",
                      {name: value.float() if value.is_floating_point() else value
                       for name, value in tensors.items()})  # fmt: skip
        model = model_class(config).from_pretrained(
            scratch, dtype=torch.float32, attn_implementation="eager"
        )
    model.eval()

    def run(ids):
        with torch.no_grad():
            out = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
        return out.logits[0].numpy(), [state[0].numpy() for state in out.hidden_states]

    return run


def reference_of(folder):
    import transformers

    config, tensors = read_config(folder), dequantised(read_tensors(folder))
    if in_transformers(config):
        print(f"{folder}: transformers {transformers.__version__}", file=sys.stderr)
        return transformers_reference(config, tensors)
    if config["model_type"] != "solar_open2":
        sys.exit(f"{folder}: transformers {transformers.__version__} has no {config['model_type']}")
    print(f"{folder}: solar_open2.py, transformers {transformers.__version__} has no solar_open2",
          file=sys.stderr)  # fmt: skip
    return own_reference(config, tensors)


def recorded_ids(folder):
    """The ids of the record that is there, or new ones."""
    old = folder / "golden.safetensors"
    if old.exists():
        return load_file(str(old))["input_ids"]
    config = read_config(folder)
    vocabulary = config.get("text_config", config)["vocab_size"]
    return numpy.random.default_rng(7).integers(3, vocabulary, POSITIONS)


def record(folder, plain):
    """What golden.safetensors holds. plain: with hidden states and a continuation."""
    ids = recorded_ids(folder)
    run = reference_of(folder)
    logits, hidden = run(ids.tolist())
    golden = {"input_ids": ids, "logits": logits}
    if plain:
        golden |= {f"hidden_{i}": state for i, state in enumerate(hidden)} | continuation(run, ids)
    return golden


def states(folder):
    """Hidden states and a continuation, which record leaves out of a quantised folder."""
    ids = recorded_ids(folder)
    run = reference_of(folder)
    kept = numpy.arange(STATES_EVERY - 1, len(ids), STATES_EVERY)
    hidden = {f"hidden_{i}": state[kept] for i, state in enumerate(run(ids.tolist())[1])}
    return hidden | {"hidden_positions": kept} | continuation(run, ids)


def continuation(run, ids):
    tokens, rows = ids.tolist(), []
    for _ in range(GENERATED):
        rows.append(run(tokens)[0][-1])
        tokens.append(int(rows[-1].argmax()))
    return {"gen": numpy.array(tokens[len(ids) :]), "gen_logits": numpy.stack(rows)}


def stored(golden):
    return {key: value.astype("<i8" if value.dtype.kind == "i" else "<f4")
            for key, value in golden.items()}  # fmt: skip


def compare(golden, old):
    """Prints how far a record is from the old one; False when too far."""
    good = golden.keys() == old.keys()
    if not good:
        print("different keys:", sorted(golden.keys() ^ old.keys()))
    for key in sorted(golden.keys() & old.keys()):
        a, b = golden[key].astype(float), old[key].astype(float)
        if a.shape != b.shape:
            print(f"{key}: shape {a.shape}, was {b.shape}")
            good = False
            continue
        error = numpy.abs(a - b).max() / max(numpy.abs(b).max(), 1e-30)
        print(f"{key}: largest difference {error:.1e} of the largest element")
        good &= bool(error < 1e-4)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["make", "nvfp4", "record", "states"])
    parser.add_argument("paths", nargs="+", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    first = arguments.paths[0]
    if arguments.command == "make":
        config = read_config(first if first.is_dir() else first.parent)
        make(config, arguments.paths[1], arguments.seed)
    elif arguments.command == "nvfp4":
        quantise(first)
    else:
        if arguments.command == "states":
            golden, path = stored(states(first)), arguments.paths[1]
        else:
            golden = stored(record(first, "quantization_config" not in read_config(first)))
            path = first / "golden.safetensors"
        if arguments.check:
            sys.exit(0 if compare(golden, load_file(str(path))) else 1)
        save_file(golden, str(path))


if __name__ == "__main__":
    main()
