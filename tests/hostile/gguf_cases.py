"""Hostile GGUF files: container, keys, tensors, split sets, and the tokenizer inside."""

import struct

from cases import Case
from containers import ARRAY, BOOL, F32, I32, STRING, U16, U32, U64, Gguf, gguf_pair, gguf_text

FILE = "model.gguf"
DOWN = "blk.1.ffn_down.weight"
MANY = 2**40


def make(file, name, content, names=FILE, **more):
    return Case(f"GGUF {name}", {FILE: content}, names, opens=FILE, **more)


def container(file):
    g = Gguf(file)
    head = len(g.write()) - sum(len(raw) + -len(raw) % 32 for _, _, raw in g.tensors.values())
    cuts = [0, 1, 4, 8, 12, 16, 23, 24, 25, 31, 40, 100, head // 2, head - 100, head - 1, head, head + 1]
    cuts += [head + (len(file) - head) * i // 6 for i in range(1, 6)] + [len(file) - 33]
    for cut in cuts:
        yield make(file, f"cut to {cut} bytes", file[:cut])
    for magic in (b"gguf", b"GGML", b"GGUG", bytes(4), b"PK\3\4"):
        yield make(file, f"magic {magic}", g.write(magic=magic))
    for version in (0, 1, 4, 0x03000000, 2**32 - 1):
        yield make(file, f"version {version}", g.write(version=version))
    for tensors in (-1, 0, 1, len(g.tensors) - 1, len(g.tensors) + 1, 2**20, 2**31, 2**32, 2**60, 2**63):
        yield make(file, f"{tensors} tensors", g.write(tensors=tensors))
    for keys in (-1, 0, 1, len(g.keys) - 1, len(g.keys) + 1, 2**16, 2**31, 2**32, 2**60, 2**63):
        yield make(file, f"{keys} keys", g.write(keys=keys))
    yield make(file, "nothing but zeros", bytes(4096))
    yield make(file, "text", b"GGUF is a format of files" * 10)
    pairs = [gguf_pair(k, *v) for k, v in g.keys.items()]
    for label, pair in {
        "an empty key": gguf_pair("", U32, 1),
        "a zero byte in a key": gguf_pair("a\0b", U32, 1),
        "a key of 70,000 bytes": gguf_pair("k" * 70_000, U32, 1),
        "a key that ends outside": struct.pack("<Q", MANY) + b"k",
        "a key of 2^64-1 bytes": struct.pack("<Q", 2**64 - 1) + b"k",
        "value type 13": gguf_pair("k", 13, b"\0" * 8),
        "value type 2^32-1": gguf_pair("k", 2**32 - 1, b""),
        "truth value 2": gguf_pair("k", BOOL, 2),
        "truth value 2 in a list": gguf_pair("k", ARRAY, (BOOL, [0, 2])),
        "a text of 2^40 bytes": gguf_pair("k", STRING, struct.pack("<Q", MANY)),
        "a text of 2^64-1 bytes": gguf_pair("k", STRING, struct.pack("<Q", 2**64 - 1)),
        "a list of 2^40 numbers": gguf_pair("k", ARRAY, struct.pack("<IQ", U32, MANY)),
        "a list of 2^62 numbers": gguf_pair("k", ARRAY, struct.pack("<IQ", U64, 2**62)),
        "a list of 2^29 texts": gguf_pair("k", ARRAY, struct.pack("<IQ", STRING, 2**29)),
        "a list of lists": gguf_pair("k", ARRAY, struct.pack("<IQIQ", ARRAY, 1, U32, 0)),
        "a list of type 99": gguf_pair("k", ARRAY, struct.pack("<IQ", 99, 1)),
        "the same key twice": pairs[1],
    }.items():
        yield make(file, f"with {label}", g.write(pairs=[*pairs, pair]))
    for label, pair in {"0": (U32, 0), "3": (U32, 3), "24": (U32, 24), "of the wrong type": (I32, 32), "as u64": (U64, 32),
                        "as text": (STRING, "32"), "2^31": (U32, 2**31)}.items():  # fmt: skip
        yield make(file, f"alignment {label}", g.write(pairs=[*pairs, gguf_pair("general.alignment", *pair)]))


def infos(file):
    """One tensor's description."""
    g = Gguf(file)

    def case(name, change, names=(FILE, DOWN)):
        return make(file, name, g.write(infos={DOWN: change}), names)

    for dims in ([0, 64], [128, 0], [2**63, 1], [-128, 64], [2**31, 2**31, 4, 4], [2**62, 4], [2**32, 2**32],
                 [128, 2**56], [64, 128], [128], [128, 64, 2], [128, 64, 1, 3], [100, 64], [128, 63], [128, 65],
                 [8192]):  # fmt: skip
        yield case(f"dimensions {dims}", lambda at, d=dims: g.info(DOWN, at, ne=d), FILE)
    for count in (0, 1, 3, 5, 255, 2**31, 2**32 - 1):
        yield case(f"{count} dimensions", lambda at, n=count: g.info(DOWN, at, dims=n), FILE)
    for kind in (0, 4, 5, 8, 12, 19, 29, 31, 36, 41, 43, 99, 133, 2**31, 2**32 - 1):
        yield case(f"type {kind}", lambda at, k=kind: g.info(DOWN, at, kind=k), FILE)
    for offset in (0, 1, 32, -32, 2**40, 2**63, -1, -2**40):
        yield case(f"offset {offset}", lambda at, o=offset: g.info(DOWN, o if o else 0))
    for step in (1, 31, 32, -32):
        yield case(f"offset {step} beside its place", lambda at, s=step: g.info(DOWN, at + s))
    rest = g.info(DOWN, 0)[len(gguf_text(DOWN)) :]
    for label, name in {"empty": b"", "of 64 bytes": b"n" * 64, "of 100,000 bytes": b"n" * 100_000, "with a zero byte": b"a\0b",
                        "that is another's": b"token_embd.weight", "of bad UTF-8": b"\xff\xfe",
                        "with a line break": b"a\nb"}.items():  # fmt: skip
        def renamed(at, n=name):
            return gguf_text(n) + g.info(DOWN, at)[len(gguf_text(DOWN)) :]

        yield case(f"a tensor's name {label}", renamed, FILE)
    yield case("a tensor's name that ends outside", lambda at: struct.pack("<Q", MANY) + b"x" + rest, FILE)


def settings(file):
    """Keys of the settings."""
    g = Gguf(file)

    def case(name, changes, names, how="ids"):
        changed = Gguf(file)
        changed.keys = {k: v for k, v in (g.keys | changes).items() if v is not None}
        return make(file, name, changed.write(), names, how=how)

    for key in ("general.architecture", "llama.embedding_length", "llama.block_count", "llama.attention.head_count",
                "llama.attention.layer_norm_rms_epsilon", "llama.feed_forward_length"):  # fmt: skip
        yield case(f"without {key}", {key: None}, key)
        yield case(f"{key} as a truth value", {key: (BOOL, 1)}, [FILE, key])
        yield case(f"{key} as a list", {key: (ARRAY, (STRING, ["x"] * 3))}, [FILE, key])
    for key in ("llama.embedding_length", "llama.block_count", "llama.attention.head_count", "llama.feed_forward_length",
                "llama.attention.head_count_kv", "llama.attention.key_length", "llama.vocab_size",
                "llama.context_length"):  # fmt: skip
        for value in (0, 2**31, 2**32 - 1):
            yield case(f"{key} {value}", {key: (U32, value)}, FILE)
        yield case(f"{key} -1", {key: (I32, -1)}, FILE)
        yield case(f"{key} 2^63", {key: (U64, 2**63)}, FILE)
        yield case(f"{key} as text", {key: (STRING, "64")}, [FILE, key])
    heads = {"llama.attention.head_count": (ARRAY, (U32, [4, 2, 4])), "llama.attention.head_count_kv": (ARRAY, (U32, [2, 1, 2])),
             "llama.attention.key_length": None, "llama.attention.value_length": None,
             "llama.rope.dimension_count": None}  # fmt: skip
    yield case("layers that rotate 16, 32 and 16 dimensions", heads | {"llama.rope.scaling.factor": (F32, 4.0)},
               [FILE, "llama.rope.dimension_count"])  # fmt: skip
    changed = Gguf(file)
    changed.keys = {k: v for k, v in (g.keys | heads).items() if v is not None}
    changed.tensors["rope_freqs.weight"] = [[8], 0, struct.pack("<8f", *[1.0] * 8)]
    yield make(file, "layers that rotate 16, 32 and 16 dimensions with 8 divisors", changed.write(),
               [FILE, "rope_freqs.weight", "layer 1"])  # fmt: skip
    yield case("head_count 3", {"llama.attention.head_count": (U32, 3)}, FILE)
    yield case("block_count 4", {"llama.block_count": (U32, 4)}, "blk.3")
    yield case("block_count 2", {"llama.block_count": (U32, 2)}, [FILE, "blk.2"])
    for value in (float("nan"), float("inf"), -1e-5):
        yield case(f"epsilon {value}", {"llama.attention.layer_norm_rms_epsilon": (F32, value)}, FILE)
        yield case(f"freq_base {value}", {"llama.rope.freq_base": (F32, value)}, FILE)
    for name in ("", "bert", "LLAMA", "l" * 10_000, "llama\nx"):
        yield case(f"architecture {name[:12]!r}", {"general.architecture": (STRING, name)}, [FILE, "general.architecture"])
    yield case("an adapter", {"general.type": (STRING, "adapter")}, [FILE, "general.type"])


def tensors(file):
    """Tensors that the settings do not ask for, or not so."""
    for name in ("token_embd.weight", "output_norm.weight", DOWN, "blk.0.attn_q.weight", "blk.2.attn_norm.weight"):
        g = Gguf(file)
        del g.tensors[name]
        yield make(file, f"without {name}", g.write(), name)
        g = Gguf(file)
        ne, kind, raw = g.tensors[name]
        half = len(raw) // ne[-1] * (ne[-1] // 2)
        g.tensors[name] = [[*ne[:-1], ne[-1] // 2], kind, raw[:half]]
        yield make(file, f"{name} of half the rows", g.write(), [FILE, name])
    for extra in ("blk.3.attn_q.weight", "blk.0.attn_q.bias", "mm.0.weight"):
        g = Gguf(file)
        g.tensors[extra] = [[64], 0, bytes(256)]
        yield make(file, f"with {extra}", g.write(), [FILE, extra])
    for label, value in {"NaN": float("nan"), "infinity": float("inf")}.items():
        g = Gguf(file)
        g.tensors["blk.1.attn_norm.weight"][2] = bytes(40) + struct.pack("<f", value) + bytes(212)
        yield make(file, f"{label} in a norm", g.write(), [FILE, "blk.1.attn_norm.weight"], headers=False)
    g = Gguf(file)
    g.keys["llama.feed_forward_length"] = (U32, 1)
    for layer in range(3):
        for name, ne in (("gate", [64, 1]), ("up", [64, 1]), ("down", [64])):
            g.tensors[f"blk.{layer}.ffn_{name}.weight"] = [ne, 8, bytes(68)]  # Q8_0
    yield make(file, "rows of 1 in blocks of 32", g.write(), [FILE, "blk.0.ffn_down.weight"])
    g = Gguf(file)
    rope = struct.pack("<8f", *[1.0] * 7, float("nan"))
    g.tensors["rope_freqs.weight"] = [[8], 0, rope]
    yield make(file, "NaN in rope_freqs", g.write(), [FILE, "rope_freqs"], headers=False)


def splits(file):
    """Two shards."""
    whole = Gguf(file)
    names = list(whole.tensors)

    def shard(number, keep, count=2, total=len(names), number_of=None, keys=True):
        g = Gguf()
        g.keys = dict(whole.keys) if keys else {}
        g.keys |= {"split.no": (U16, number), "split.count": (U16, count), "split.tensors.count": (I32, total)}
        g.tensors = {n: whole.tensors[n] for n in keep}
        return g.write()

    one, two = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"
    first, second = shard(0, names[:10]), shard(1, names[10:], keys=False)

    def case(name, files, expected, opens=one):
        return Case(f"split GGUF {name}", files, expected, opens=opens)

    yield case("without its second file", {one: first}, two)
    yield case("with a folder as second file", {one: first, two: None}, two)
    for cut in (0, 20, 100, len(second) // 2, len(second) - 40):
        yield case(f"second file cut to {cut} bytes", {one: first, two: second[:cut]}, two)
    yield case("with the first file twice", {one: first, two: first}, two)
    yield case("with the files exchanged", {one: second, two: first}, "m-0000")
    yield case("opened by its second file", {one: first, two: second}, two, opens=two)
    yield case("under another name", {"model.gguf": first}, "model.gguf", opens="model.gguf")
    yield case("with a number of its own", {one: first, two: shard(7, names[10:])}, [two, "split.no"])
    yield case("that counts 3 files in the second", {one: first, two: shard(1, names[10:], count=3)}, [two, "split.count"])
    yield case("that counts 65535 files", {one: shard(0, names[:10], count=65535), two: second}, one)
    yield case("with a tensor in both", {one: first, two: shard(1, names[9:], total=len(names) + 1)}, "m-0000")
    yield case("with too few tensors", {one: first, two: shard(1, names[11:])}, "split.tensors.count")
    yield case("that states -1 tensors", {one: shard(0, names[:10], total=-1), two: second}, [one, "split.tensors.count"])
    huge = "m-00001-of-99999.gguf"
    yield case("of 99999 files", {huge: shard(0, names[:10])}, huge, opens=huge)


def tokenizers(file):
    """The tokenizer in the keys."""
    g = Gguf(file)

    def case(name, changes, names=FILE):
        changed = Gguf(file)
        changed.keys = {k: v for k, v in (g.keys | changes).items() if v is not None}
        return make(file, f"tokenizer {name}", changed.write(), names, how="text")

    prefix = "tokenizer.ggml."
    tokens = g.keys[prefix + "tokens"][1][1]
    yield case("without model", {prefix + "model": None}, [FILE, prefix + "model"])
    yield case("without tokens", {prefix + "tokens": None}, [FILE, prefix + "tokens"])
    yield case("of no tokens", {prefix + "tokens": (ARRAY, (STRING, []))})
    yield case("of numbers", {prefix + "tokens": (ARRAY, (U32, [1, 2]))}, [FILE, prefix + "tokens"])
    yield case("of half the tokens", {prefix + "tokens": (ARRAY, (STRING, tokens[:256])), prefix + "token_type": None})
    yield case("with a token twice", {prefix + "tokens": (ARRAY, (STRING, [*tokens[:-1], "t0"]))})
    yield case("of kind wordpiece", {prefix + "model": (STRING, "bert")}, [FILE, prefix + "model"])
    yield case("with an unknown split", {prefix + "pre": (STRING, "nobody-knows")}, [FILE, prefix + "pre"])
    yield case("with 3 token types", {prefix + "token_type": (ARRAY, (I32, [1, 1, 1]))}, [FILE, "token_type"])
    yield case("with a type of 77", {prefix + "token_type": (ARRAY, (I32, [77] * 512))}, [FILE, prefix + "token_type"])
    yield case("without merges", {prefix + "merges": None}, [FILE, prefix + "merges"])
    for merges in (["t"], ["nobody knows"], [""], [" "], ["t 0", "t 0"]):
        yield case(f"with merges {merges}", {prefix + "merges": (ARRAY, (STRING, merges))}, [FILE, "merge"])
    yield case("of kind llama without scores", {prefix + "model": (STRING, "llama")}, FILE)


def cases(models):
    file = (models / "llama-a-gguf" / FILE).read_bytes()
    for part in (container, infos, settings, tensors, splits, tokenizers):
        yield from part(file)
