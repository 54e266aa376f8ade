"""Writes small tokenizer.json files, one for each feature, with what `tokenizers` makes of texts, and
pre-tokenizer patterns with the pieces that it cuts.

    python tools/golden/tokenizer_features.py tests/model/data/tokenizer_features.json

Needs tokenizers. "tokenizers": a list of name, json (a tokenizer.json), cases (text, ids, and plain:
ids with special tokens off where they differ). "patterns": a list of pattern and cases (text, and the
length of each piece in bytes).
"""

import copy
import json
import pathlib
import random
import sys

from tokenizers import Regex, Tokenizer, pre_tokenizers

SEED = 5


def alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(rest)) for b in range(256)]


LETTERS = alphabet()
G = LETTERS[0x20]
MERGES = [(G, "t"), ("h", "e"), (G + "t", "he"), ("a", "b"), ("ab", "c"), ("b", "c"), ("1", "2"), ("12", "3"), (G, G), ("a", "a"),
          ("aa", "aa"), ("<", "m"), ("x", "y"), ("'", "s"), (LETTERS[10], LETTERS[10])]


def base():
    vocab = {}
    for text in LETTERS + [a + b for a, b in MERGES] + ["<s>", "whole"]:
        vocab.setdefault(text, len(vocab))
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": [list(m) for m in MERGES]},
    }


def token(i, content, **flags):
    return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": [*parts, {"type": "ByteLevel", "add_prefix_space": False,
                                                           "trim_offsets": True, "use_regex": False}]}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


TEXTS = ["", "the abc", " the  the\n\n", "aaaaa aaaaaaaa", "123 1234 12", "it's 'S", "e\u0301 \u1112\u1161\u11ab ﬁ", "<m>x<m>", "a <m> b",
         "a  <m>  b", "a<m>b", "<m><m>", "word<w>word <w> x", "<w>", "é<w>", "<mm>", "<m", "whole <s> whole", "e\u0301<é>e\u0301", "<e\u0301>",
         "\u3000<m>\u00a0\t", "ab,cd,ef", "a.b|c", "xyxyx", "\u212b \u00c5 A\u030a", "<m>the<m>abc", "1.2.3", "tHe ABC"]


def variants():
    vocab = len(base()["model"]["vocab"])

    def make(name, change):
        data = copy.deepcopy(base())
        change(data)
        return name, data

    def added(*tokens):
        return lambda d: d["added_tokens"].extend(tokens)

    def model(**fields):
        return lambda d: d["model"].update(fields)

    def top(**fields):
        return lambda d: d.update(fields)

    def drop(*texts):  # bytes without a token
        def change(d):
            for text in texts:
                del d["model"]["vocab"][text]
        return change

    def both(*changes):
        def change(d):
            for c in changes:
                c(d)
        return change

    yield make("plain", lambda d: None)
    yield make("merges as texts", model(merges=[" ".join(m) for m in MERGES]))
    yield make("merges with a version", model(merges=["#version: 0.2"] + [" ".join(m) for m in MERGES]))
    yield make("ignore_merges", both(model(ignore_merges=True), top(pre_tokenizer=sequence(split(" ")))))
    yield make("a special token", added(token(vocab, "<m>")))
    yield make("a token that is not special", added(token(vocab, "<m>", special=False)))
    yield make("lstrip", added(token(vocab, "<m>", lstrip=True)))
    yield make("rstrip", added(token(vocab, "<m>", rstrip=True)))
    yield make("lstrip and rstrip", added(token(vocab, "<m>", lstrip=True, rstrip=True)))
    yield make("single_word", added(token(vocab, "<w>", single_word=True)))
    yield make("longest of two", added(token(base()["model"]["vocab"]["<m"], "<m"), token(vocab, "<m>"), token(vocab + 1, "<mm>")))
    yield make("a token of the vocabulary", added(token(base()["model"]["vocab"]["<s>"], "<s>")))
    yield make("NFC", top(normalizer={"type": "NFC"}))
    yield make("NFC in a sequence", top(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]}))
    yield make("NFKC", top(normalizer={"type": "NFKC"}))
    yield make("NFD", top(normalizer={"type": "NFD"}))
    yield make("NFKD", top(normalizer={"type": "NFKD"}))
    yield make("NFC and a normalized token", both(top(normalizer={"type": "NFC"}), added(token(vocab, "<é>", normalized=True, special=False))))
    yield make("single digits", top(pre_tokenizer=sequence({"type": "Digits", "individual_digits": True})))
    yield make("digits", top(pre_tokenizer=sequence({"type": "Digits", "individual_digits": False})))
    yield make("split at a text", top(pre_tokenizer=sequence(split(".", kind="String"))))
    yield make("split removed", top(pre_tokenizer=sequence(split("[,.|]", "Removed"))))
    yield make("split kept", top(pre_tokenizer=sequence(split("[a-c]+| ", "Removed", True))))
    yield make("split inverted", top(pre_tokenizer=sequence(split("[a-c]+", "Isolated", True))))
    yield make("two splits", top(pre_tokenizer=sequence(split("[,.]"), split("\\p{N}"))))
    yield make("unk_token", both(drop("é", LETTERS[0xC3]), model(unk_token="<s>")))
    yield make("fuse_unk", both(drop(*(LETTERS[b] for b in range(0x80, 0x100))), model(unk_token="<s>", fuse_unk=True)))
    yield make("bytes without a token", drop(*(LETTERS[b] for b in range(0x80, 0x100))))
    yield make("a post-processor", both(added(token(vocab, "<m>")), top(post_processor={
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<m>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<m>": {"id": "<m>", "ids": [vocab], "tokens": ["<m>"]}}})))


CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
UPPER_HAN, LOWER_HAN = UPPER[:-1] + r"&&[^\p{Han}]]", LOWER[:-1] + r"&&[^\p{Han}]]"
PREFIX = r"[^\r\n\p{L}\p{N}]?"


def cased(upper, lower, tail):
    return f"{PREFIX}{upper}*{lower}+{CONTRACTION}?|{PREFIX}{upper}+{lower}*{CONTRACTION}?|" + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + tail + "|" + SPACES


# Of the families; tokenizer_families.py and given_vectors.py cut with them.
QWEN2 = CONTRACTION + rf"|{PREFIX}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|" + SPACES
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
QWEN35 = CONTRACTION + rf"|{PREFIX}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|" + SPACES
OLD_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
DSV3 = (r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES)
GPT4O = cased(UPPER, LOWER, r"[\r\n/]*")
TEKKEN = GPT4O.replace(CONTRACTION + "?", "").replace(r"\p{N}{1,3}", r"\p{N}")
KIMI = r"\p{Han}+|" + cased(UPPER_HAN, LOWER_HAN, r"[\r\n]*")


PATTERNS = [
    CONTRACTION + rf"|{PREFIX}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|" + SPACES,
    CONTRACTION + rf"|{PREFIX}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|" + SPACES,
    CONTRACTION + rf"|{PREFIX}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|" + SPACES,
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + SPACES,
    cased(UPPER, LOWER, r"[\r\n/]*"), r"\p{Han}+|" + cased(UPPER_HAN, LOWER_HAN, r"[\r\n]*"),
    r"[\p{P}\$\+<=>\^~\|]+", "[0-9][0-9][0-9]", r"\s", r"\S+", r"[\s\d]+", r"[\S]", r"[^\S]+", r"\d+|\D", ".+", r".*?\n", r"\p{Han}", r"\P{Han}+", r"\p{^L}+",
    r"[\p{Hiragana}\p{Katakana}ー]+", r"\p{Cyrillic}+|\p{Greek}+", r"[^\p{Latin}]+", r"\v|\f|\t", r"\x{4E00}|\x41|\u0301", r"(?<=a)b|(?<!a)c", r"(?>a+)b?", r"a{2}|b{1,}|c{1,2}?",
    r"(?i:abc|k)", r"(a|(?-i:B))+", r"[a\-z]|[\]\[]", r"[-a]|[b-]", r"\$|\.|\|", r"x*", r"a|", r"[\p{L}&&\p{Han}&&[^\u4e00]]+", "é|漢",
]

# Refused by Troupe although `tokenizers` takes them: see tokenizer_pattern.c.


def texts():
    rng = random.Random(SEED)
    chars = ("abcABCsStTxyz'\u017f\u212aßKéñ \t\n\r\x0b\x0c\x1c\x85\xa0\u1680\u180e\u2003\u2028\u200b\u202f\u3000\ufeff0123456789²½Ⅷ٣४１.,!?$^~|<>+=-_()[]{}/\\\"`@#%&*"
             "漢字一龥々〇〡、。ーぁんァヶ한글Привет\u0301\u0308ἀβγאבعر👍\u200d🏽\u20e3ǅʰªⓐ")
    out = ["", "a", "  ", "it's IT'S 'ſ", "a  b\n\n c\r\n", "don't we'LL", "HelloWorld fooBar HTTPServer", "漢字かな交じりAbc", "、漢字。〡々", "x\u180ey", "abc abcabc aab bb cc ccc"]
    for _ in range(60):
        out.append("".join(rng.choice(chars) for _ in range(rng.randint(1, 30))))
    return out


def main(out):
    tokenizers = []
    for name, data in variants():
        reference = Tokenizer.from_str(json.dumps(data))
        cases = []
        for text in TEXTS:
            case = {"text": text, "ids": reference.encode(text, add_special_tokens=False).ids}
            reference.encode_special_tokens = True
            plain = reference.encode(text, add_special_tokens=False).ids
            reference.encode_special_tokens = False
            if plain != case["ids"]:
                case["plain"] = plain
            cases.append(case)
        tokenizers.append({"name": name, "json": data, "cases": cases})
    patterns = []
    for pattern in PATTERNS:
        splitter = pre_tokenizers.Split(Regex(pattern), "isolated")
        cases = []
        for text in texts():
            cases.append([text, [len(piece.encode()) for piece, _ in splitter.pre_tokenize_str(text) if piece]])
        patterns.append({"pattern": pattern, "cases": cases})
    dump = lambda rows: "[\n" + ",\n".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")) for r in rows) + "\n]"
    pathlib.Path(out).write_text('{"tokenizers":' + dump(tokenizers) + ',\n"patterns":' + dump(patterns) + "}\n", encoding="utf-8")
    print(f"{len(tokenizers)} tokenizers, {len(patterns)} patterns")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
