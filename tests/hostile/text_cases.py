"""Hostile tokenizer.json files and chat templates."""

import json

from cases import Case, read_folder

FILE = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"


def byte_letters():
    """The byte-level alphabet: printable bytes stand for themselves, the others for what follows 255."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, more = {b: chr(b) for b in kept}, 256
    for b in range(256):
        if b not in letters:
            letters[b] = chr(more)
            more += 1
    return [letters[b] for b in range(256)]


def right_tokenizer():
    letters = byte_letters()
    vocab = {letter: i for i, letter in enumerate(letters)}
    merges = [["t", "h"], ["th", "e"]]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": r"\p{L}+|\p{N}|\s+|[^\s\p{L}\p{N}]+"},
             "behavior": "Isolated", "invert": False}  # fmt: skip
    added = [{"id": len(vocab), "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True}]  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": merges},
    }  # fmt: skip


def tokenizers(base):
    right = right_tokenizer()
    text = json.dumps(right).encode()

    def raw(name, content, names=FILE):
        return Case(f"tokenizer {name}", base | {FILE: content}, names, how="text")

    def case(name, change, names=FILE):
        changed = json.loads(text)
        change(changed)
        return raw(name, json.dumps(changed).encode(), names)

    def model(name, **changes):
        return case(name, lambda t: t["model"].update(changes))

    def added(name, **changes):
        return case(f"added token {name}", lambda t: t["added_tokens"][0].update(changes))

    def split(name, pattern, names=FILE):
        return case(f"pattern {name}", lambda t: t["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": pattern}), names)

    for cut in (0, 1, 50, len(text) // 2, len(text) - 1):
        yield raw(f"cut to {cut} bytes", text[:cut])
    for name, content in {
        "of zeros": bytes(1000), "that is a list": b"[]", "with bytes behind it": text + b"x",
        "with invalid UTF-8": text.replace(b'"th"', b'"t\xffh"'), "with half a surrogate": text.replace(b'"th"', b'"\\ud800"'),
        "in UTF-16": text.decode().encode("utf-16"), "100,000 deep": b'{"model":' * 100_000,
        "with 65 lists": text.replace(b'"normalizer": null', b'"normalizer": ' + b"[" * 65 + b"]" * 65),
        "with two models": text.replace(b'"model":', b'"model": {}, "model":', 1),
        "with a token twice": text.replace(b'"vocab": {', b'"vocab": {"the": 3, ', 1),
    }.items():  # fmt: skip
        yield raw(name, content)
    yield Case("tokenizer that is absent", base, FILE, how="text")
    yield Case("tokenizer that is a folder", base | {FILE: None}, FILE, how="text")
    for key in ("model",):
        yield case(f"without {key}", lambda t, k=key: t.pop(k), [FILE, key])
    for key in ("vocab", "merges"):
        yield case(f"model without {key}", lambda t, k=key: t["model"].pop(k), [FILE, key])
    for kind in ("WordPiece", "Unigram", "WordLevel", "", 5, None):
        yield model(f"model of type {kind!r}", type=kind)
    vocab = right["model"]["vocab"]
    for name, value in {"a list": [], "empty": {}, "a text": "x", "null": None}.items():
        yield model(f"vocabulary {name}", vocab=value)
    for name, value in {"twice": 0, "negative": -1, "of 2^31": 2**31, "of 2^40": 2**40, "of 10^30": 10**30, "with a fraction": 1.5,
                        "as text": "1", "null": None, "of 100 million": 100_000_000}.items():  # fmt: skip
        yield model(f"id {name}", vocab=vocab | {"the": value})
    yield model("without a byte", vocab={k: v for k, v in vocab.items() if k != "!"})
    for name, value in {"a text": "t h", "numbers": [1, 2], "of three": [["t", "h", "e"]], "of one": [["t"]], "empty": [[]],
                        "without blank": ["th"], "of unknown halves": [["q", "zz"]], "without result": [["q", "z"]],
                        "objects": [{}], "null": [None], "twice": [["t", "h"], ["t", "h"]]}.items():  # fmt: skip
        yield model(f"merges {name}", merges=value)
    for key, value in {"dropout": 0.5, "continuing_subword_prefix": "##", "end_of_word_suffix": "</w>", "unk_token": "nobody"}.items():
        yield model(f"{key} {value}", **{key: value})
    for name, changes in {"without text": {"content": ""}, "of a number": {"content": 5}, "with a zero byte": {"content": "a\0b"},
                          "with id -1": {"id": -1}, "with id 2^31": {"id": 2**31}, "with id of another": {"id": 5},
                          "far outside": {"id": 5_000_000}}.items():  # fmt: skip
        yield added(name, **changes)
    yield case("added tokens that are an object", lambda t: t.update(added_tokens={}))
    yield case("two added tokens of one text", lambda t: t["added_tokens"].append(t["added_tokens"][0] | {"id": 300}))
    for kind in ("Metaspace", "Whitespace", "BertPreTokenizer", "", 5, None):
        yield case(f"pre-tokenizer {kind!r}", lambda t, k=kind: t.update(pre_tokenizer={"type": k}))
    for kind in ("Lowercase", "BertNormalizer", "Precompiled", "", 5):
        yield case(f"normalizer {kind!r}", lambda t, k=kind: t.update(normalizer={"type": k}))
    for kind in ("WordPiece", "CTC", "", 5):
        yield case(f"decoder {kind!r}", lambda t, k=kind: t.update(decoder={"type": k}))
    for name, pattern in {"unclosed": "(a", "of a backslash": "a\\", "of an unknown class": r"\p{Zork}", "of a bad repeat": "*a",
                          "of a range backwards": "[z-a]", "that calls itself": "(?R)", "of a callout": "(?C1)a", "of 100,000 groups": "(" * 100_000 + ")" * 100_000,
                          "of 1 MiB": "a" * 2**20 + "(", "of a huge repeat": "((a{1,60000}){1,60000}){1,60000}"}.items():  # fmt: skip
        yield split(name, pattern)
    yield split("that needs for ever", r"(?:(?:a|h|i)+)+$x|(?:(?:h|i)*)*q", "pattern gave up")
    deep = {"type": "Sequence", "pretokenizers": []}
    for _ in range(25):
        deep = {"type": "Sequence", "pretokenizers": [deep]}
    yield case("pre-tokenizers 25 deep", lambda t: t.update(pre_tokenizer=deep))


def templates(base):
    base = base | {FILE: json.dumps(right_tokenizer()).encode()}

    def case(name, content, names=TEMPLATE):
        content = content if isinstance(content, bytes) else content.encode()
        return Case(f"template {name}", base | {TEMPLATE: content}, names, how="chat")

    for name, content in {
        "with an open tag": "{{ messages", "with an open block": "{% if true", "with an open comment": "{# and so on",
        "without endif": "{% if true %}x", "without endfor": "{% for m in messages %}x", "with endif alone": "x{% endif %}",
        "with an unknown tag": "{% include 'x' %}", "with extends": "{% extends 'x' %}", "with import": "{% import 'x' as x %}",
        "with an unknown filter": "{{ 1|frobnicate }}", "with an unknown test": "{{ 1 is frobnic }}",
        "with an unknown function": "{{ frobnicate() }}", "with a bad operator": "{{ 1 +* 2 }}",
        "that divides by zero": "{{ 1 // 0 }}", "that takes a remainder of zero": "{{ 1 % 0 }}",
        "with an open text": "{{ 'abc }}", "with invalid UTF-8": b"{{ 1 }}\xff\xfe", "with a zero byte": b"a\0b{{ }}",
        "of half a character": b"{{ '\xe2\x82' }}", "in UTF-16": "{{ messages }}".encode("utf-16"),
        "of 100,000 open brackets": "{{ " + "(" * 100_000, "of 100,000 lists": "{{ " + "[" * 100_000 + "]" * 100_000 + " }}",
        "of 100,000 nots": "{{ " + "not " * 100_000 + "1 }}", "of 100,000 minus signs": "{{ " + "-" * 100_000 + "1 }}",
        "of 20,000 ifs": "{% if 1 %}" * 20_000 + "{% endif %}" * 20_000, "of 100,000 filters": "{{ 1" + "|string" * 100_000 + "|x }}",
        "of 100,000 attributes": "{{ messages" + ".a" * 100_000 + " }}",
        "that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "that never ends": "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}",
        "with a range of 10^12": "{{ range(1000000000000)|list }}", "with a text of 10^12": "{{ 'x' * 1000000000000 }}",
        "that doubles a text": "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "that doubles a list": "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        "that writes without end": "{% for i in range(100000) %}{% for j in range(100000) %}xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
        "that replaces into more": "{{ ('a'*10000)|replace('a', 'b'*1000000) }}", 
        "that indents by 10^9": "{{ 'a\n'|indent(1000000000) }}", "that centres in 10^10": "{{ 'x'|center(10000000000) }}",
        "that looks into classes": "{{ ''.__class__.__mro__ }}{{ x.y.z }}", "with a number of 10^400": "{{ 1" + "0" * 400 + " }}",
        "with 10 ** 10 ** 10": "{{ 10 ** 10 ** 10 }}",
    }.items():  # fmt: skip
        yield case(name, content)
    yield Case("template that is absent", base, "chat_template", how="chat")
    yield Case("template that raises", base | {TEMPLATE: b"{{ raise_exception('no') }}"}, "no", how="chat")
    yield Case("template that is a folder", base | {TEMPLATE: None}, TEMPLATE, how="chat")
    good = b"{{ messages[0].content }}"
    for name, content in {"cut": b'{"eos_token": "x', "that is a list": b"[]", 
                          "100,000 deep": b'{"a":' * 100_000, "with a template that is a number": None}.items():  # fmt: skip
        if content is None:
            files = base | {CONFIG: b'{"chat_template": 5}'}
        else:
            files = base | {TEMPLATE: good, CONFIG: content}
        yield Case(f"tokenizer config {name}", files, CONFIG, how="chat")


def cases(models):
    base = read_folder(models / "llama-a")
    yield from tokenizers(base)
    yield from templates(base)
