"""Reading and writing small checkpoints, for the generators of this folder."""

import json
import pathlib

import numpy
from safetensors import safe_open
from safetensors.torch import save_file


def read_config(folder):
    return json.loads((pathlib.Path(folder) / "config.json").read_text(encoding="utf-8"))


def read_tensors(folder):
    """All tensors of a folder as torch tensors, by name. Records are left out."""
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("model*.safetensors")):
        with safe_open(str(path), "pt") as file:
            tensors.update({name: file.get_tensor(name) for name in file.keys()})
    return tensors


def write_json(folder, name, value):
    text = json.dumps(value, indent=1) + "\n"
    (pathlib.Path(folder) / name).write_text(text, encoding="utf-8")


def write_tensors(path, tensors):
    tensors = {name: tensors[name].contiguous() for name in sorted(tensors)}
    save_file(tensors, str(path), metadata={"format": "pt"})


def as_numpy(tensor):
    """float64 values of a torch tensor."""
    return tensor.double().numpy().astype(numpy.float64)
