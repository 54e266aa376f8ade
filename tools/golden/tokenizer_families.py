"""Writes what the reference tokenizers make of the strings of tokenizer_cases.json, and of some more,
with the pre-tokenizer of each family, from tokenizer.json and from GGUF, and with SentencePiece's BPE.

    python tools/golden/tokenizer_families.py tests/model/data/tokenizer_cases.json \
        tests/model/data/tokenizer_families.json [OLD]

With OLD, a file made before, the SentencePiece vocabulary is taken from it: learning it breaks ties
at random. Needs tokenizers, tiktoken, gguf and llama-cpp-python. All byte-level rows share one
vocabulary, whose merges were learnt from the strings as a whole: tokens cross every border between
pieces, so a border in the wrong place changes the ids. Strings with characters that this Python's Unicode does not know are left
out: engines of other versions cut them otherwise. For "gpt-4o", "tekken" and "kimi-k2" llama.cpp runs
approximations of the patterns, which differ where marks stand; there the answer is that of `tokenizers`.

    merges    of the shared vocabulary, whose ids are the byte alphabet and then the merges in order
    spm       the pieces of the SentencePiece vocabulary: texts, types, scores
    rows      name and how it is opened: json (parts of a tokenizer.json), gguf (settings of a GGUF file:
              model, pre, and what may be left out), or neither: the tokens as a tiktoken.model
    cases     the string; for each row which answer (a letter); the different answers
"""

import json
import pathlib
import random
import sys
import tempfile
import unicodedata

import gguf
import llama_cpp
import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tokenizer_features import CONTRACTION, DSV3, GPT4O, KIMI, LLAMA3, OLD_CONTRACTION, QWEN2, QWEN35, TEKKEN, alphabet, sequence, split

MERGES = 2000
PIECES = 1500
LETTERS = alphabet()
CONTROL, USER = 3, 4

GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
NFC = {"type": "NFC"}
BOS = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
       "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [256 + MERGES], "tokens": ["<s>"]}}}

JSON_ROWS = [
    ("Qwen2 and Qwen3", {"normalizer": NFC, "pre_tokenizer": sequence(split(QWEN2))}),
    ("Qwen3.5 and later", {"normalizer": NFC, "pre_tokenizer": sequence(split(QWEN35))}),
    ("Solar Open", {"pre_tokenizer": sequence(split(QWEN2.replace(CONTRACTION, OLD_CONTRACTION)))}),
    ("GLM", {"pre_tokenizer": sequence(split(LLAMA3)), "ignore_merges": True}),
    ("Llama 3", {"pre_tokenizer": sequence(split(LLAMA3)), "ignore_merges": True, "post_processor": BOS}),
    ("GPT-2", {"pre_tokenizer": GPT2}),
    ("SmolLM", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, GPT2]}}),
    ("DeepSeek V3", {"pre_tokenizer": sequence(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DSV3))}),
    ("GPT-4o", {"pre_tokenizer": sequence(split(GPT4O))}),
    ("Tekken", {"pre_tokenizer": sequence(split(TEKKEN)), "ignore_merges": True}),
    ("Kimi", {"pre_tokenizer": sequence(split(KIMI))}),
]
GGUF_ROWS = ["qwen2", "solar-open", "qwen35", "glm4", "llama-bpe", "gpt-2", "smollm", "deepseek-v3", "default"]
GGUF_EXACT_ROWS = [("gpt-4o", "GPT-4o", False), ("tekken", "Tekken", True), ("kimi-k2", "Kimi", False)]  # with BOS?
SPM_ROWS = [("llama", {}), ("llama without a space before", {"add_space_prefix": False}), ("llama with spaces inside tokens", {"inner": True})]


def learn(texts, count, pre_tokenizer, seeds):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=len(seeds) + count, initial_alphabet=seeds, show_progress=False,
                                                             limit_alphabet=max(len(seeds), 256)))
    return json.loads(tokenizer.to_str())["model"]


def base(merges, row):
    vocab = {t: i for i, t in enumerate(LETTERS + [a + b for a, b in merges])}
    special = {"id": 256 + MERGES, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [special], "normalizer": row.get("normalizer"),
            "pre_tokenizer": row["pre_tokenizer"], "post_processor": row.get("post_processor"),
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": row.get("ignore_merges", False), "vocab": vocab,
                      "merges": [list(m) for m in merges]}}


def llama_file(path, settings, tokens, types, merges=None, scores=None):
    w = gguf.GGUFWriter(path, "llama")
    for add, value in ((w.add_context_length, 64), (w.add_embedding_length, 64), (w.add_block_count, 1), (w.add_feed_forward_length, 64),
                       (w.add_head_count, 4), (w.add_layer_norm_rms_eps, 1e-5)):
        add(value)
    w.add_tokenizer_model(settings["model"])
    if "pre" in settings:
        w.add_tokenizer_pre(settings["pre"])
    w.add_token_list(tokens)
    w.add_token_types(types)
    if merges:
        w.add_token_merges([" ".join(m) for m in merges])
    if scores:
        w.add_token_scores(scores)
    if "add_space_prefix" in settings:
        w.add_add_space_prefix(settings["add_space_prefix"])
    w.add_bos_token_id(settings["bos"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return llama_cpp.Llama(path, vocab_only=True, verbose=False)


def pieces(texts, inner):
    """A SentencePiece vocabulary: every second merge has the score of the one before."""
    blocks = [t.replace(" ", "▁") for t in texts]
    cut = pre_tokenizers.Split("▁", "merged_with_next") if not inner else pre_tokenizers.Split("\n", "isolated")
    learnt = learn(blocks, PIECES, cut, ["▁"])
    rng = random.Random(3)
    letters = sorted(set("".join(blocks)))
    single = [c for c in letters if c != "\0" and (c == "▁" or ord(c) < 0x500 or rng.random() < 0.5)]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["<user token>", "▁▁▁x"]
    types = [2, CONTROL, CONTROL] + [6] * 256 + [USER, 1]
    scores = [0.0] * len(tokens)
    words = ["".join(m) for m in learnt["merges"]]
    for i, text in enumerate(dict.fromkeys(words + single)):
        if text not in tokens and "\0" not in text:
            tokens.append(text)
            types.append(1)
            scores.append(-float(i // 2))
    return {"tokens": tokens, "types": types, "scores": scores}


def strings(cases):
    """All whose characters are known, and short ones of characters in which the patterns differ."""
    rng = random.Random(11)
    pick = "aAbBsStT''é ßĀǅʰªاन漢字一ーぁァ한\u0301\u0308\u093f\u20e3\ufe0f0١²Ⅷ.,!/-$€😀\u200d  \t\n\r\u3000_"
    more = ["".join(rng.choice(pick) for _ in range(rng.randint(2, 16))) for _ in range(250)]
    return [t for t in dict.fromkeys(cases + more) if all(unicodedata.category(c) != "Cn" for c in t)]


def main(cases_path, out, old=None):
    texts = strings([c["text"] for c in json.loads(pathlib.Path(cases_path).read_text(encoding="utf-8"))])
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # llama.cpp takes a token for a special one when its text is that of a known special token.
    lessons = [t for t in texts if "<|" not in t and "<re" not in t and "<s>" not in t and "</" not in t]
    merges = learn(lessons * 2, MERGES, whole, LETTERS)["merges"]
    rows, answers = [], []
    for name, row in JSON_ROWS:
        tokenizer = Tokenizer.from_str(json.dumps(base(merges, row)))
        rows.append({"name": name, "json": row})
        answers.append([tokenizer.encode(t, add_special_tokens=True).ids for t in texts])
    texts_of_tokens = [bytes([b]) for b in range(256)] + [bytes(LETTERS.index(c) for c in a + b) for a, b in merges]
    ranks = {t: i for i, t in reversed(list(enumerate(texts_of_tokens)))}
    kimi = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens={"<s>": 256 + MERGES})
    rows.append({"name": "Kimi as tiktoken"})
    answers.append([kimi.encode(t, allowed_special="all") for t in texts])
    with tempfile.TemporaryDirectory() as folder:
        tokens = LETTERS + [a + b for a, b in merges] + ["<s>"]
        for pre in GGUF_ROWS:
            settings = {"model": "gpt2", "pre": pre, "bos": len(tokens) - 1}
            llama = llama_file(f"{folder}/{pre}.gguf", settings, tokens, [1] * (len(tokens) - 1) + [CONTROL], merges=merges)
            rows.append({"name": "GGUF " + pre, "gguf": settings})
            answers.append([llama.tokenize(t.encode(), add_bos=True, special=True) for t in texts])
        for pre, name, bos in GGUF_EXACT_ROWS:
            rows.append({"name": "GGUF " + pre, "gguf": {"model": "gpt2", "pre": pre, "bos": len(tokens) - 1}})
            exact = answers[[n for n, _ in JSON_ROWS].index(name)]
            answers.append([[len(tokens) - 1] * bos + ids for ids in exact])
        spm = json.loads(pathlib.Path(old).read_text(encoding="utf-8"))["spm"] if old else {}
        for name, settings in SPM_ROWS:
            inner = settings.get("inner", False)
            settings = {"model": "llama", "bos": 1, "vocabulary": "inner" if inner else "words", **{k: v for k, v in settings.items() if k != "inner"}}
            if settings["vocabulary"] not in spm:
                spm[settings["vocabulary"]] = pieces(lessons, inner)
            vocabulary = spm[settings["vocabulary"]]
            llama = llama_file(f"{folder}/spm.gguf", settings, vocabulary["tokens"], vocabulary["types"], scores=vocabulary["scores"])
            rows.append({"name": "GGUF " + name, "gguf": settings})
            answers.append([llama.tokenize(t.encode(), add_bos=True, special=True) for t in texts])
    cases = []
    for i, text in enumerate(texts):
        different = []
        letters = ""
        for answer in answers:
            if answer[i] not in different:
                different.append(answer[i])
            letters += chr(ord("a") + different.index(answer[i]))
        cases.append([text, letters, *different])
    dump = lambda x: json.dumps(x, ensure_ascii=False, separators=(",", ":"))
    lines = ",\n".join(map(dump, cases))
    pathlib.Path(out).write_text('{"merges":%s,\n"spm":%s,\n"rows":%s,\n"cases":[\n%s\n]}\n'
                                 % (dump([" ".join(m) for m in merges]), dump(spm), dump(rows), lines), encoding="utf-8")
    print(f"{len(texts)} strings, {len(rows)} rows")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
