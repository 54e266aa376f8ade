"""Writes what llama.cpp answers to the prompts of prompts.json, greedily, 64 tokens each.

    python tools/golden/smollm2_llamacpp.py GGUF tests/golden/smollm2_greedy.json

Needs llama-cpp-python (pip compiles it; cmake and ninja come along). End-of-text tokens do not stop
it: the token ids are the golden record.
"""

import hashlib
import json
import pathlib
import sys

import llama_cpp

TOKENS = 64


def main(gguf, out):
    prompts = json.loads((pathlib.Path(__file__).parent / "prompts.json").read_text())
    llm = llama_cpp.Llama(gguf, n_ctx=512, n_threads=2, verbose=False)
    cases = []
    for prompt in prompts:
        ids = llm.tokenize(prompt.encode(), add_bos=False, special=True)
        tokens = []
        llm.reset()
        for token in llm.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0):
            tokens.append(int(token))
            if len(tokens) == TOKENS:
                break
        cases.append({"prompt": prompt, "ids": ids, "tokens": tokens})
        print(f"{len(ids)} prompt tokens, then", repr(llm.detokenize(tokens).decode(errors="replace")))
    digest = hashlib.sha256(pathlib.Path(gguf).read_bytes()).hexdigest()
    lines = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in cases)
    pathlib.Path(out).write_text(
        f'{{\n "made_by": "llama-cpp-python {llama_cpp.__version__}, temperature 0",\n'
        f' "gguf_sha256": "{digest}",\n "cases": [\n{lines}\n ]\n}}\n',
        encoding="utf-8",
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
