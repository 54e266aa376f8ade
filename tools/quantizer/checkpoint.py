"""Reads a Hugging Face folder and writes one, tensor by tensor: neither is ever whole in memory."""

import json
import pathlib

import numpy as np

from .numbers import from_bf16

DTYPES = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "U8": np.uint8,
          "F8_E4M3": np.uint8, "I32": np.int32, "I64": np.int64}
SHARD_BYTES = 5 << 30


class Refused(Exception):
    """A sentence for the user."""


class Tensor:
    """One stored tensor."""

    def __init__(self, path, name, entry, start):
        self.path, self.name, self.dtype = path, name, entry["dtype"]
        self.shape = tuple(entry["shape"])
        self.begin, self.end = (start + offset for offset in entry["data_offsets"])

    def raw(self):
        """Its elements, in the type of DTYPES."""
        if self.dtype not in DTYPES:
            raise Refused(f"{self.path.name}: tensor {self.name}: type {self.dtype}, expected one of "
                          + ", ".join(DTYPES))
        with open(self.path, "rb") as file:
            file.seek(self.begin)
            data = file.read(self.end - self.begin)
        return np.frombuffer(data, DTYPES[self.dtype]).reshape(self.shape)

    def values(self):
        """float32; of BF16, F16 and F32 only."""
        if self.dtype not in ("BF16", "F16", "F32"):
            raise Refused(f"{self.path.name}: tensor {self.name}: type {self.dtype}, expected BF16, "
                          "F16 or F32")
        return from_bf16(self.raw()) if self.dtype == "BF16" else self.raw().astype(np.float32)


class Checkpoint:
    """config and tensors (by name) of a folder."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        try:
            self.config = json.loads((self.folder / "config.json").read_text())
        except (OSError, ValueError) as why:
            raise Refused(f"{self.folder}/config.json: {why}") from why
        self.tensors = {}
        files = sorted(self.folder.glob("*.safetensors"))
        index = self.folder / "model.safetensors.index.json"
        if index.exists():
            names = set(json.loads(index.read_text())["weight_map"].values())
            files = [file for file in files if file.name in names]
        elif (self.folder / "model.safetensors").exists():
            files = [self.folder / "model.safetensors"]
        if not files:
            raise Refused(f"{self.folder}: no safetensors files")
        for file in files:
            self._read_header(file)

    def check_plain(self):
        """Refuses what is quantised already."""
        for tensor in self.tensors.values():
            if tensor.dtype in ("U8", "F8_E4M3", "F8_E5M2", "I32"):
                raise Refused(f"{tensor.path.name}: tensor {tensor.name}: type {tensor.dtype}, expected "
                              "a checkpoint that is not quantised (BF16, F16, F32)")

    def _read_header(self, path):
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        for name, entry in header.items():
            if name != "__metadata__":
                self.tensors[name] = Tensor(path, name, entry, 8 + size)


class Planned:
    """A tensor to be written: make() gives its elements when its turn comes."""

    def __init__(self, name, dtype, shape, make):
        self.name, self.dtype, self.shape, self.make = name, dtype, tuple(shape), make
        self.size = int(np.prod(self.shape, dtype=np.int64)) * np.dtype(DTYPES[dtype]).itemsize


def write_data(file, planned, data):
    """Writes elements after checking that they are as many as was announced."""
    data = np.ascontiguousarray(data).tobytes()
    if len(data) != planned.size:
        raise AssertionError(f"{planned.name}: {len(data)} bytes, announced {planned.size}")
    file.write(data)


def _write_shard(path, shard, report):
    header, offset = {}, 0
    for planned in shard:
        header[planned.name] = {"dtype": planned.dtype, "shape": list(planned.shape),
                                "data_offsets": [offset, offset + planned.size]}
        offset += planned.size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for planned in shard:
            report(planned.name)
            write_data(file, planned, planned.make())


def write_folder(folder, config, planned, report, shard_bytes=SHARD_BYTES):
    """Writes config.json, the tensors in shards, and the index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shards, size = [[]], 0
    for tensor in planned:
        if shards[-1] and size + tensor.size > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards):
        _write_shard(folder / name, shard, report)
    index = {"metadata": {"total_size": sum(tensor.size for tensor in planned)},
             "weight_map": {t.name: name for name, shard in zip(names, shards) for t in shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
