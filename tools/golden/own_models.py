#!/usr/bin/env python3
"""Makes all folders of tests/golden/models_own.tar.xz again.

    own_models.py CONFIGS GIVEN FOLDER

CONFIGS has the models of that archive, for their config.json; GIVEN those of models.tar.xz, of which some
get a GGUF form here. FOLDER is filled; pack_models.py makes the archive of it.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

from checkpoint import read_config
from family_models import make, quantise, record, stored
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
SEEDS = {"solar_open2-a": 11, "solar_open2-b": 12, "llama-b": 21, "qwen3_moe-b": 21}
NVFP4 = ["solar_open2-a"]
GGUF = ["solar_open2-a", "llama-a", "llama-b", "qwen3_moe-a", "kimi_linear-a"]
QUANTISED_GGUF = [("solar_open2-a", "Q8_0"), ("qwen3_moe-a", "Q4_0")]


def write_record(folder, target):
    golden = record(folder, "quantization_config" not in read_config(folder))
    save_file(stored(golden), str(target / "golden.safetensors"))


def gguf_form(model, folder, *options):
    folder.mkdir()
    command = [sys.executable, HERE / "gguf_models.py", model, folder / "model.gguf", *options]
    subprocess.run(command, check=True)


def main(configs, given, target):
    configs, given, target = (pathlib.Path(path) for path in (configs, given, target))
    for name, seed in SEEDS.items():
        make(read_config(configs / name), target / name, seed)
        write_record(target / name, target / name)
    for name in NVFP4:
        quantise(target / name)
        # Both layouts hold the same numbers, so that one record serves both.
        write_record(target / f"{name}-ct", target / f"{name}-ct")
        shutil.copy(target / f"{name}-ct/golden.safetensors", target / f"{name}-modelopt")
    for name in GGUF:
        gguf_form((target if name in SEEDS else given) / name, target / f"{name}-gguf")
    for name, kind in QUANTISED_GGUF:
        folder = target / f"{name}-gguf-{kind.lower()}"
        with tempfile.TemporaryDirectory() as scratch:
            gguf_form((target if name in SEEDS else given) / name, folder,
                      "--experts", kind, "--dequantised", scratch)  # fmt: skip
            write_record(pathlib.Path(scratch), folder)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
