"""Writes a GGUF file, version 3."""

import struct

import numpy as np

from .checkpoint import write_data

ALIGNMENT = 32
PLAIN = {"F32": 0, "F16": 1, "BF16": 30}


def _text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _scalar(value):
    """(type number, bytes)"""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    return 8, _text(value)


def _value(value):
    if not isinstance(value, list):
        kind, data = _scalar(value)
        return struct.pack("<I", kind) + data
    if isinstance(value[0], int):
        kind, data = 5, np.array(value, "<i4").tobytes()
    else:
        kind, data = 8, b"".join(_text(text) for text in value)
    return struct.pack("<IIQ", 9, kind, len(value)) + data


class Block:
    """A tensor to be written. shape as PyTorch prints it; type_number of GGUF; size in bytes."""

    def __init__(self, name, shape, type_number, size, make):
        self.name, self.shape, self.type_number = name, tuple(shape), type_number
        self.size, self.make = size, make


def write(path, metadata, blocks, report):
    """metadata: keys to bool, int, float, str or lists of int or str."""
    head = b"GGUF" + struct.pack("<Iqq", 3, len(blocks), len(metadata))
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    offset = 0
    infos = []
    for block in blocks:
        infos.append(_text(block.name) + struct.pack("<I", len(block.shape)))
        infos.append(struct.pack(f"<{len(block.shape)}q", *reversed(block.shape)))
        infos.append(struct.pack("<IQ", block.type_number, offset))
        offset += -(-block.size // ALIGNMENT) * ALIGNMENT
    head += b"".join(infos)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for block in blocks:
            report(block.name)
            write_data(file, block, block.make())
            file.write(bytes(-block.size % ALIGNMENT))
