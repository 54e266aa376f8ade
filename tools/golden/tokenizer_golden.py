"""Writes strings of every sort with the ids that the reference tokenizers give.

    python tools/golden/tokenizer_golden.py models/tiny-solar-nvfp4/tokenizer.json GGUF \
        tests/model/data/tokenizer_cases.json

Needs tokenizers, gguf and llama-cpp-python. GGUF is SmolLM2-135M-Instruct in Q4_1, whose vocabulary
is put into a tokenizers.Tokenizer with the pipeline of its tokenizer.json (single digits, then
GPT-2's pattern). Each case has

    text           what is encoded
    solar          ids of tiny-solar, special tokens on
    solar_plain    the same with special tokens off, where that differs
    smollm2        ids of SmolLM2 from tokenizers, special tokens on
    smollm2_plain  the same with special tokens off, where that differs
    llama_cpp      ids of SmolLM2 from llama.cpp, where they differ from smollm2
"""

import json
import pathlib
import random
import sys

import gguf
import llama_cpp
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SEED = 20260714

WORDS = """the a of and to in is was for that with node actor router expert shard token don't we'll
I'VE you're it's They'D o'clock rock'n'roll naïve façade Zürich Ærøskøbing Łódź İstanbul ΣΊΣΥΦΟΣ
straße STRASSE ﬁnance ﬂow Привет мир Здравствуйте здоровье γειά σου κόσμε שלום עולם مرحبا بالعالم
سلام دنیا नमस्ते दुनिया ภาษาไทยไม่มีช่องว่าง 안녕하세요 세계 도구 호출 테스트입니다 こんにちは世界 カタカナ ひらがな
漢字かな交じり文 你好世界 機械学習 人工智能 混合專家模型 👍 🎉🎉 👩‍👩‍👧‍👦 🏳️‍🌈 👋🏽 🇩🇪🇰🇷 ☕️ ❤️‍🔥 →←↑↓ ∑∫√∞≠≤ ½¾ Ⅷ ²³ ①②③ ٣٤٥ ४५६
３４５ 1 12 123 1234 12345678901234567890 3.14159 1e-10 0xFF 1,000,000 -42 v1.2.3 2026-07-14
supercalifragilisticexpialidocious pneumonoultramicroscopicsilicovolcanoconiosis internationalization
Donaudampfschifffahrtsgesellschaftskapitän https://example.org/a/b?c=d&e=f#g user@example.com C:\\path\\file.txt
/usr/local/bin --flag=value snake_case_name camelCaseName PascalCase SCREAMING_SNAKE kebab-case
@decorator #hashtag $variable %percent ^caret &and *star (paren) [bracket] {brace} <tag/> "quoted" 'single'
`code` ~tilde semi;colon :colon: ,comma, .dot. !bang! ?question? ... --- ___ *** === !!! ??? .,;:""".split()

SPACES = [" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r", " \n", "\n ", " \n ", "\t\n", "\x0b",
          "\x0c", "\x85", "\xa0", "\u1680", "\u180e", "\u2000", "\u2003", "\u2009", "\u200a", "\u200b", "\u2028",
          "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", "\x1c", "\x1f"]

CODE = ["def f(x):\n    return x + 1\n", "int main(void)\n{\n\tprintf(\"%d\\n\", 42);\n\treturn 0;\n}\n",
        "for (let i=0;i<10;i++){console.log(`${i}`);}", "SELECT * FROM t WHERE a='b' -- c\n",
        "<div class=\"x\">&amp;</div>", "{\"a\": [1, 2.5, null, true], \"b\": {\"c\": \"d\\n\"}}",
        "if x:\n\tif y:\n\t\tpass\n\telse:\n\t    pass", "#!/bin/sh\nset -eu\necho \"$1\" | sed 's/a/b/g'\n",
        "\\begin{equation}\n  e^{i\\pi}+1=0\n\\end{equation}", "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "x=[i**2 for i in range(10) if i%2==0]", "fn main() -> Result<(), Box<dyn Error>> { Ok(()) }"]

MARKS = ["e\u0301", "é", "a\u0308\u0323", "q\u0307\u0323", "\u0301", " \u0301", "\u1112\u1161\u11ab", "한", "ｶﾞ", "が",
         "か\u3099", "\u0e01\u0e34", "क्षि", "n\u0303o", "Z\u0351\u036b\u0343a\u0340lgo", "\u200d", "\ufe0f", "\u20e3",
         "1\ufe0f\u20e3", "'\u017f", "'S", "'\u212a", "K", "\u0149", "\ufb05", "\ufb01"]

RANGES = [(0x20, 0x7E), (0xA1, 0x17F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F),
          (0x1100, 0x11FF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x2BFF), (0x3000, 0x30FF), (0x4E00, 0x9FFF),
          (0xAC00, 0xD7A3), (0xFE00, 0xFFEF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0x10000, 0x10FFF)]


def special_texts(tokenizer):
    return [t.content for t in tokenizer.get_added_tokens_decoder().values()]


def strings(specials):
    rng = random.Random(SEED)
    pick = rng.choice
    out = ["", " ", "a", "\x00", "\x7f", "\ufffd", "\U0010ffff", "\u0378"]
    out += WORDS + SPACES + CODE + MARKS + specials
    out += [s + "x" for s in SPACES] + ["x" + s for s in SPACES] + ["1" + s + "2" for s in SPACES]
    out += [chr(c) for c in range(0x80)] + ["a%sb" % chr(c) for c in range(0x20)]
    out += ["%s%s%s" % (a, s, b) for s in specials for a, b in (("", "x"), ("x", ""), (" ", " "), ("a\n", "\nb"))]
    out += [s[:-1] for s in specials] + [s[1:] for s in specials] + [s.upper() for s in specials] + [s + s for s in specials]
    for _ in range(300):  # prose of mixed languages
        out.append("".join(pick(WORDS) + pick([" "] * 8 + SPACES) for _ in range(rng.randint(2, 9))))
    for _ in range(150):  # runs of white space of all sorts
        out.append("".join(pick(["", "", "w", "1", "."]) + "".join(pick(SPACES) for _ in range(rng.randint(1, 6)))
                           for _ in range(rng.randint(1, 4))) + pick(["", "end"]))
    for low, high in RANGES:  # any character of a block
        for _ in range(16):
            out.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 14))))
    for _ in range(160):  # any character at all
        out.append("".join(chr(pick([rng.randint(0x20, 0x7E), rng.randint(0x80, 0x2FFF), rng.randint(0x3000, 0xD7FF),
                                     rng.randint(0x10000, 0x1FFFF)])) for _ in range(rng.randint(1, 20))))
    for _ in range(160):  # special-token text amid text
        out.append("".join(pick([pick(specials), pick(WORDS), pick(SPACES), "<|", "|>", "<", "im"])
                           for _ in range(rng.randint(2, 7))))
    for _ in range(120):  # marks on letters
        out.append("".join(pick(MARKS + ["a", "E", "ㅎ", " ", "."]) for _ in range(rng.randint(2, 8))))
    for _ in range(60):
        out.append(pick(CODE) + pick(SPACES) + pick(CODE))
    for _ in range(60):  # digits and signs
        out.append("".join(pick("0123456789.,-+eE% $€½²٣४３") for _ in range(rng.randint(1, 24))))
    out += [c * n for c in "a \n1.'漢👍" for n in (2, 3, 7, 64, 200)]
    out += ["ab" * 150, "the" * 80, "word " * 60, "\n \n" * 40, "'s" * 30, "don't" * 20, "Aa" * 60]
    return list(dict.fromkeys(out))


def smollm2(path):
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, types) if k == 3])
    return tokenizer


def encode(tokenizer, text, specials):
    tokenizer.encode_special_tokens = not specials
    return tokenizer.encode(text, add_special_tokens=False).ids


def main(solar_path, gguf_path, out):
    solar, smol = Tokenizer.from_file(solar_path), smollm2(gguf_path)
    llama = llama_cpp.Llama(gguf_path, vocab_only=True, verbose=False)
    cases, differ = [], 0
    for text in strings(list(dict.fromkeys(special_texts(solar) + special_texts(smol)))):
        case = {"text": text, "solar": encode(solar, text, True), "smollm2": encode(smol, text, True)}
        for name, tokenizer in (("solar", solar), ("smollm2", smol)):
            plain = encode(tokenizer, text, False)
            if plain != case[name]:
                case[name + "_plain"] = plain
        theirs = llama.tokenize(text.encode(), add_bos=False, special=True)
        if theirs != case["smollm2"]:
            case["llama_cpp"] = theirs
            differ += 1
        cases.append(case)
    lines = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases)
    pathlib.Path(out).write_text("[\n" + lines + "\n]\n", encoding="utf-8")
    print(f"{len(cases)} strings; tokenizers and llama.cpp differ on SmolLM2 in {differ}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
