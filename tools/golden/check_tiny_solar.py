#!/usr/bin/env python3
"""How far tiny-solar's record, our reference and transformers are from one another.

    check_tiny_solar.py MODEL      a folder of tiny-solar, BF16 or NVFP4

Prints, for each prompt of MODEL/golden.safetensors, the largest relative error of a row of logits:
of solar_open2.py in float64 and, where the installed transformers has solar_open2, of transformers in
float32. NVFP4 weights are dequantised for both.
"""

import sys

import numpy
from checkpoint import as_numpy, read_config, read_tensors
from nvfp4 import dequantised
from safetensors.numpy import load_file
from solar_open2 import SolarOpen2

BOUND = 1e-4


def row_error(found, expected):
    found = numpy.asarray(found, dtype=numpy.float64)[-len(expected) :]
    expected = expected.astype(numpy.float64)
    errors = numpy.linalg.norm(found - expected, axis=1) / numpy.linalg.norm(expected, axis=1)
    return errors.max()


def transformers_run(config, tensors):
    """As in family_models.py, or None when transformers does not know the family."""
    import transformers
    from family_models import in_transformers, transformers_reference

    if not in_transformers(config):
        print(f"only solar_open2.py is compared: transformers {transformers.__version__} has no "
              f"{config['model_type']}", file=sys.stderr)  # fmt: skip
        return None
    print(f"compared: solar_open2.py, transformers {transformers.__version__}", file=sys.stderr)
    return transformers_reference(config, tensors)


def main():
    folder = sys.argv[1]
    config, tensors = read_config(folder), dequantised(read_tensors(folder))
    golden = load_file(f"{folder}/golden.safetensors")
    own = SolarOpen2(config, {name: as_numpy(value) for name, value in tensors.items()})
    other = transformers_run(config, tensors)
    good = True
    for key in sorted(golden):
        if not key.endswith(".input_ids"):
            continue
        prompt = key.removesuffix(".input_ids")
        ids, expected = golden[key].tolist(), golden[f"{prompt}.logits"]
        error = row_error(own.run(ids)[0], expected)
        text = f"{prompt}: {len(ids)} tokens, solar_open2.py {error:.1e}"
        good &= bool(error < BOUND)  # not so for NaN
        if other is not None:
            error = row_error(other(ids)[0], expected)
            text += f", transformers {error:.1e}"
            good &= bool(error < BOUND)
        print(text, flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
