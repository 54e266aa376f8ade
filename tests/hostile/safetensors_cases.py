"""Hostile safetensors files: the container, tensors that do not fit the model, and sharded sets."""

import json
import struct

from cases import Case, read_folder
from containers import safetensors_file, safetensors_join, safetensors_split, tensors_of

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
GATE = "model.layers.1.mlp.gate_proj.weight"
NORM = "model.layers.1.input_layernorm.weight"
HUGE = [2**31, 2**32, 2**62, 2**63, 2**64 - 1]


def container(base):
    """The bytes around the header and the header's JSON as a whole."""
    file = base[FILE]
    header, data = safetensors_split(file)
    text = json.dumps(header).encode()
    head = 8 + struct.unpack("<Q", file[:8])[0]

    def case(name, content, names=FILE):
        return Case(f"safetensors {name}", base | {FILE: content}, names)

    cuts = [0, 1, 7, 8, 9, 8 + (head - 8) // 3, head - 1, head, head + 1, head + 2]
    cuts += [head + (len(file) - head) * i // 8 for i in range(1, 8)] + [len(file) - 2, len(file) - 1]
    for cut in cuts:
        yield case(f"cut to {cut} bytes", file[:cut])
    for size in [0, 1, 2, len(text) - 1, len(text) + 1, len(text) + len(data), len(text) + len(data) + 1,
                 100_000_001, *HUGE]:  # fmt: skip
        yield case(f"with a header of {size} bytes", safetensors_join(text, data, size))
    first = next(iter(header))
    deep = {n: b"[" * n + b"]" * n for n in (65, 1000, 100_000)}
    objects = b'{"a":' * 5000 + b"1" + b"}" * 5000
    for name, content in {
        "of zeros": bytes(len(text)),
        "that is a list": b"[]",
        "that is a number": b"17",
        "that is a string": b'"tensors"',
        "that is empty": b"",
        "of blanks": b" " * 64,
        "without end": text[:-1],
        "with a comma at the end": text[:-1] + b",}",
        "with bytes behind it": text + b"x",
        "with a second object": text + b"{}",
        "with a comment": b"/* */" + text,
        "with a byte order mark": b"\xef\xbb\xbf" + text,
        "in UTF-16": text.decode().encode("utf-16"),
        "with invalid UTF-8": text.replace(b"lm_head", b"lm\xff\xfehead"),
        "with an overlong form": text.replace(b"lm_head", b"lm\xc0\xafhead"),
        "with a cut character": text.replace(b"lm_head", b"lm_head\xe2\x82"),
        "with half a surrogate": text.replace(b"lm_head", b"lm\\ud800head"),
        "with an unknown escape": text.replace(b"lm_head", b"lm\\qhead"),
        "with a line break in a name": text.replace(b"lm_head", b"lm\nhead"),
        "with metadata of numbers": text[:-1] + b',"__metadata__":{"a":1}}',
        "with metadata that is a list": text[:-1] + b',"__metadata__":[]}',
        "with two metadata": text[:-1] + b',"__metadata__":{},"__metadata__":{}}',
        "with a nested object": text[:-1] + b',"deep":' + objects + b"}",
        "with an unclosed object": b'{"a":' * 20_000,
    }.items():
        yield case(f"with a header {name}", safetensors_join(content, data))
    for levels, value in deep.items():
        changed = text[:-2] + b',"extra":' + value + b"}}"
        yield case(f"with a field {levels} lists deep", safetensors_join(changed, data))
    twice = json.dumps({first: header[first]}).encode()[1:-1]
    yield case("with a tensor twice", safetensors_join(text[:-1] + b"," + twice + b"}", data), [FILE, first])
    for name, key in {"no name": "", "a zero byte": "a\0b", "a control byte": "a\x1fb", "DEL": "a\x7f",
                      "a long name": "x" * 1025, "a longer name": "x" * 200_000}.items():  # fmt: skip
        changed = dict(header)
        changed[key] = changed.pop(GATE)
        yield case(f"with a tensor of {name}", safetensors_join(changed, data))
    many = {f"t{i}": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for i in range(200_000)}
    yield case("with 200,000 empty tensors", safetensors_join(many | header, data))
    yield case("with a byte too many", file + b"\0", FILE)
    yield case("without data", safetensors_join(text, b""))


def entries(base):
    """One entry of the header."""
    header, data = safetensors_split(base[FILE])
    begin, end = header[GATE]["data_offsets"]

    def case(name, field, value, names=(FILE, GATE)):
        changed = json.loads(json.dumps(header))
        if value is KeyError:
            del changed[GATE][field]
        else:
            changed[GATE][field] = value
        return Case(f"safetensors {name}", base | {FILE: safetensors_join(changed, data)}, names)

    for dtype in ["bf16", "F17", "", "BF16 ", "F8_E4M3FNUZ", "F6_E2M3", "X" * 5000, "F32", "U8", "F64",
                  "I16", 16, None, ["BF16"], {}, True]:  # fmt: skip
        yield case(f"dtype {str(dtype)[:20]!r}", "dtype", dtype)
    yield case("dtype with a zero byte", "dtype", "F16\0", FILE)
    for shape in [[], [0], [0, 64], [1], [128], [64, 128], [128, 63], [129, 64], [128, 64, 2], [1] * 9,
                  [8192], [2**31, 2**31, 4], [2**32, 2**32, 0], [2**63, 2], [2**64 - 1], [2**64], [-128, 64],
                  [-128, -64], [128.0, 64], [1e2, 64], ["128", 64], [None], [[128, 64]], [True, 64],
                  "128, 64", 128, None, {"0": 128}, [1] * 100_000]:  # fmt: skip
        yield case(f"shape {str(shape)[:30]}", "shape", shape)
    size = len(data)
    for offsets in [[], [begin], [begin, end, end], [end, begin], [begin, begin], [begin + 1, end + 1],
                    [begin, end + 1], [begin, end - 1], [begin + 2, end], [2**63, 2**63 + end - begin],
                    [2**64 - (end - begin), 2**64 - 1], [2**64 - 16384, 0], [-1, end], [-16384, 0],
                    [begin + 0.0, end], [str(begin), str(end)], [None, None], "0", None, begin, {},
                    [[begin, end]], [begin, 2**64], [begin, 10**30]]:  # fmt: skip
        yield case(f"data_offsets {str(offsets)[:40]}", "data_offsets", offsets)
    for at in (0, size):  # either of the two tensors that meet there may be named
        yield case(f"data at {at}", "data_offsets", [at, at + end - begin], FILE)
    for field in ("dtype", "shape", "data_offsets"):
        yield case(f"without {field}", field, KeyError)
    for value in (None, [], "BF16", 5, True):
        changed = header | {GATE: value}
        yield Case(f"safetensors entry {value!r}", base | {FILE: safetensors_join(changed, data)}, [FILE, GATE])
    text = json.dumps(header).encode()
    for field in ("dtype", "shape", "data_offsets"):
        again = json.dumps(header[GATE]).encode()
        doubled = again[:-1] + f',"{field}":{json.dumps(header[GATE][field])}}}'.encode()
        changed = safetensors_join(text.replace(again, doubled, 1), data)
        yield Case(f"safetensors {field} twice", base | {FILE: changed}, FILE)


def places(base):
    """Tensors that share bytes or leave some out, each right by itself."""
    header, data = safetensors_split(base[FILE])
    begin, end = header[GATE]["data_offsets"]

    def case(name, changes, content=data, names=FILE):
        changed = json.loads(json.dumps(header))
        for key, offsets in changes.items():
            changed[key]["data_offsets"] = offsets
        return Case(f"safetensors {name}", base | {FILE: safetensors_join(changed, content)}, names)

    up = GATE.replace("gate", "up")
    yield case("two tensors at one place", {up: [begin, end]})
    yield case("overlapping tensors", {GATE: [begin + 64, end + 64]})
    moved = {k: [a + 8, b + 8] for k, (a, b) in ((k, t["data_offsets"]) for k, t in header.items())}
    yield case("data that begins late", moved, bytes(8) + data)
    later = {k: [a + 8, b + 8] for k, (a, b) in ((k, t["data_offsets"]) for k, t in header.items()) if a >= end}
    yield case("a hole", later, data[:end] + bytes(8) + data[end:])
    yield case("8 bytes behind the last tensor", {}, data + bytes(8))
    empty = header | {"empty": {"dtype": "F32", "shape": [0], "data_offsets": [begin + 2] * 2}}
    yield Case("safetensors an empty tensor inside another", base | {FILE: safetensors_join(empty, data)}, FILE)


def tensors(base):
    """A sound container with the wrong tensors for its settings, or bad values."""
    right = tensors_of(base[FILE])

    def case(name, changed, names, headers=True):
        return Case(f"llama {name}", base | {FILE: safetensors_file(changed)}, names, headers=headers)

    for name in ("model.embed_tokens.weight", "lm_head.weight", "model.norm.weight", GATE, NORM,
                 "model.layers.0.self_attn.q_proj.weight", "model.layers.2.self_attn.o_proj.weight"):  # fmt: skip
        dtype, shape, raw = right[name]
        # a tied head may be missing by its settings only
        yield case(f"without {name}", {k: v for k, v in right.items() if k != name}, name)
        yield case(f"with {name} misspelt", {k + ("s" if k == name else ""): v for k, v in right.items()}, name)
        yield case(f"{name} with a row less", right | {name: (dtype, [shape[0] - 1, *shape[1:]], raw[: len(raw) // shape[0] * (shape[0] - 1)])}, [FILE, name])  # fmt: skip
        yield case(f"{name} of no rows", right | {name: (dtype, [0, *shape[1:]], b"")}, [FILE, name])
        yield case(f"{name} as I64", right | {name: ("I64", shape, raw * 4)}, [FILE, name])
        yield case(f"{name} as U8", right | {name: ("U8", shape, raw[: len(raw) // 2])}, [name])
        yield case(f"{name} as FP8 without scale", right | {name: ("F8_E4M3", shape, raw[: len(raw) // 2])}, [name])
        if len(shape) == 2 and shape[0] != shape[1]:
            yield case(f"{name} transposed", right | {name: (dtype, shape[::-1], raw)}, [FILE, name])
        yield case(f"{name} flat", right | {name: (dtype, [len(raw) // 2, *[1] * (len(shape) - 1)], raw)}, [FILE, name]) if len(shape) == 2 else case(f"{name} as a matrix", right | {name: (dtype, [8, len(raw) // 16], raw)}, [FILE, name])  # fmt: skip
    for extra in ("model.layers.0.self_attn.q_proj.bias", "model.layers.3.input_layernorm.weight",
                  "model.layers.0.mlp.gate_proj.weight_scale", "adapter.weight"):  # fmt: skip
        yield case(f"with {extra}", right | {extra: ("BF16", [64], bytes(128))}, [FILE, extra])
    for label, bits in {"NaN": 0x7FC0, "infinity": 0x7F80, "minus infinity": 0xFF80}.items():
        for name in (NORM, "model.norm.weight"):
            dtype, shape, raw = right[name]
            bad = raw[:20] + struct.pack("<H", bits) + raw[22:]
            yield case(f"{label} in {name}", right | {name: (dtype, shape, bad)}, [FILE, name], headers=False)


def shards(base):
    """base: two files and an index."""
    first, second = sorted(n for n in base if n.startswith("model-"))
    index = json.loads(base[INDEX])
    places = index["weight_map"]
    name = next(n for n, f in places.items() if f == second and n.endswith("input_layernorm.weight"))

    def case(label, files, names):
        return Case(f"sharded {label}", files, names)

    def mapped(label, changed, names=INDEX):
        text = json.dumps(index | {"weight_map": changed}).encode()
        return case(label, base | {INDEX: text}, names)

    for file in (first, second):
        without = {k: v for k, v in base.items() if k != file}
        yield case(f"without {file}", without, file)
        yield case(f"with a folder instead of {file}", base | {file: None}, file)
        for cut in (0, 4, 100, len(base[file]) // 2, len(base[file]) - 1):
            yield case(f"{file} cut to {cut} bytes", base | {file: base[file][:cut]}, file)
    yield case("with shards exchanged", base | {first: base[second], second: base[first]}, INDEX)
    yield case("with one shard twice", base | {second: base[first]}, [INDEX, second])
    unindexed = {k: v for k, v in base.items() if k != INDEX}
    yield case("without index, one shard twice", unindexed | {second: base[first]}, "two files")
    yield case("without index and shards", {"config.json": base["config.json"]}, "safetensors")
    for wrong in ("../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", ".hidden",
                  "a\\b", "a\nb", "x" * 300, "nothing.safetensors", "config.json"):  # fmt: skip
        expected = wrong if wrong in ("nothing.safetensors", "config.json") else [INDEX, name]
        yield mapped(f"map to {wrong[:20]!r}", places | {name: wrong}, expected)
    yield mapped("map to a zero byte", places | {name: "a\0b"})
    for wrong in (1, None, [first], {}, True):
        yield mapped(f"map to {wrong!r}", places | {name: wrong}, [INDEX, name])
    yield mapped("map to the other file", places | {name: first}, [INDEX, name])
    yield mapped("map of a tensor that is nowhere", places | {"model.more.weight": second}, [INDEX, "model.more.weight"])
    yield mapped("map without a tensor", {k: v for k, v in places.items() if k != name}, name)
    yield mapped("map to 2,000 files", places | {f"t{i}": f"f{i}.safetensors" for i in range(2000)})
    for wrong in ([], "x", 1, None, {}):
        yield mapped(f"map that is {wrong!r}", wrong, INDEX if wrong != {} else "model.")
    text = base[INDEX]
    for cut in (0, 1, len(text) // 2, len(text) - 2):
        yield case(f"index cut to {cut} bytes", base | {INDEX: text[:cut]}, INDEX)
    for label, content in {"of zeros": bytes(100), "that is a list": b"[]", "in UTF-16": text.decode().encode("utf-16"),
                           "100,000 deep": b'{"a":' * 100_000, "with bytes behind it": text + b"x",
                           "without map": b'{"metadata": {}}'}.items():  # fmt: skip
        yield case(f"index {label}", base | {INDEX: content}, INDEX)
    yield case("index that is a folder", base | {INDEX: None}, INDEX)
    double = text.replace(b'"weight_map"', b'"weight_map": {}, "weight_map"', 1)
    yield case("index with two maps", base | {INDEX: double}, INDEX)


def cases(models):
    base = read_folder(models / "llama-a")
    for part in (container, entries, places, tensors):
        yield from part(base)
    yield from shards(read_folder(models / "qwen3_moe-a-ct"))
