"""Files of checkpoints, taken apart and put together again, rightly or wrongly. Standard library
only: what these cases need is exactly what a careful writer would refuse to write."""

import json
import math
import struct

BITS = {"U8": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F16": 16, "BF16": 16, "F32": 32, "I64": 64}


def safetensors_split(file):
    """(entries by name, data)"""
    size = struct.unpack("<Q", file[:8])[0]
    header = json.loads(file[8 : 8 + size])
    header.pop("__metadata__", None)
    return header, file[8 + size :]


def safetensors_join(header, data, size=None):
    """header: a dictionary, or the bytes that shall stand in its place; size: a stated length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def tensors_of(file):
    """name -> (dtype, shape, bytes)"""
    header, data = safetensors_split(file)
    return {
        name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for name, t in header.items()
    }


def safetensors_file(tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        assert math.prod(shape) * BITS[dtype] // 8 == len(raw), name
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return safetensors_join(header, data)


# -- GGUF --

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
U16, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 2, 4, 5, 6, 7, 8, 9, 10
BLOCKS = {0: (1, 4), 1: (1, 2), 8: (32, 34), 30: (1, 2)}  # id -> elements, bytes


def gguf_text(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(kind, value):
    if kind == STRING:
        return gguf_text(value)
    if kind == ARRAY:
        element, values = value
        return struct.pack("<IQ", element, len(values)) + b"".join(gguf_value(element, v) for v in values)
    return struct.pack("<" + SCALARS[kind], value)


def gguf_pair(key, kind, value):
    """value: a number, text, (element type, values), or bytes that stand there as they are."""
    raw = value if isinstance(value, bytes) else gguf_value(kind, value)
    return gguf_text(key) + struct.pack("<I", kind) + raw


class Gguf:
    """keys: key -> (type, value); tensors: name -> [ne, type, bytes]. What a case changes by hand is
    given to write: infos (name -> bytes), head fields, tail."""

    def __init__(self, file=None):
        self.keys, self.tensors, self.alignment = {}, {}, 32
        if file is not None:
            self.read(file)

    def read(self, file):
        at = 24
        tensors, keys = struct.unpack("<QQ", file[8:24])

        def take(code):
            nonlocal at
            value = struct.unpack_from("<" + code, file, at)[0]
            at += struct.calcsize("<" + code)
            return value

        def text():
            nonlocal at
            size = take("Q")
            at += size
            return file[at - size : at].decode()

        def value(kind):
            if kind == STRING:
                return text()
            if kind == ARRAY:
                element, count = take("I"), take("Q")
                return element, [value(element) for _ in range(count)]
            return take(SCALARS[kind])

        for _ in range(keys):
            key = text()
            kind = take("I")
            self.keys[key] = (kind, value(kind))
        infos = []
        for _ in range(tensors):
            name = text()
            ne = [take("Q") for _ in range(take("I"))]
            infos.append((name, ne, take("I"), take("Q")))
        start = at + -at % self.alignment
        for name, ne, kind, offset in infos:
            elements, size = BLOCKS[kind]
            begin = start + offset
            self.tensors[name] = [ne, kind, file[begin : begin + math.prod(ne) // elements * size]]

    def info(self, name, offset, ne=None, kind=None, dims=None):
        shape, own, _ = self.tensors[name]
        shape = shape if ne is None else ne
        return (
            gguf_text(name)
            + struct.pack("<I", len(shape) if dims is None else dims)
            + b"".join(struct.pack("<Q", d & (2**64 - 1)) for d in shape)
            + struct.pack("<IQ", own if kind is None else kind, offset & (2**64 - 1))
        )

    def write(self, infos=None, pairs=None, magic=b"GGUF", version=3, tensors=None, keys=None):
        """infos: name -> function(offset) giving the bytes of that tensor's info."""
        texts = [gguf_pair(k, *v) for k, v in self.keys.items()] if pairs is None else pairs
        head, data = b"", b""
        for name, (_, _, raw) in self.tensors.items():
            make = (infos or {}).get(name)
            head += self.info(name, len(data)) if make is None else make(len(data))
            data += raw + bytes(-len(raw) % self.alignment)
        head = (
            magic
            + struct.pack(
                "<IQQ",
                version,
                (len(self.tensors) if tensors is None else tensors) & (2**64 - 1),
                (len(texts) if keys is None else keys) & (2**64 - 1),
            )
            + b"".join(texts)
            + head
        )
        return head + bytes(-len(head) % self.alignment) + data
