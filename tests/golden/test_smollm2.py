"""SmolLM2-135M-Instruct (GGUF, Q4_1) against transformers' logits and llama.cpp's greedy text.

The records were made by tools/golden. The model comes from TROUPE_SMOLLM2, or from tools/.cache,
where tools/fetch_smollm2 puts it.
"""

import functools
import json
import os
import pathlib

from troupe_test import ROOT, Tap, Troupe, difference, need, skip_all

numpy = need("numpy")

# Both sides compute in float32 from the same dequantised weights.
LOGITS_BOUND = 1e-4

# llama.cpp rounds activations to 8 bits. Where our two best logits are closer than this, it may
# choose the other one.
CLOSE = 0.3

FOLDER = pathlib.Path(__file__).parent
GGUF = pathlib.Path(
    os.environ.get("TROUPE_SMOLLM2", ROOT / "tools/.cache/SmolLM2-135M-Instruct.Q4_1.gguf")
)


def margins(logits):
    best = numpy.partition(logits, -2, axis=1)[:, -2:]
    return best[:, 1] - best[:, 0]


def check_logits(record, case, found):
    norms = numpy.linalg.norm(found.astype(numpy.float64), axis=1, keepdims=True)
    expected = [record[f"{case}.{part}"] for part in ("top_logits", "column_logits")]
    kept = [numpy.take_along_axis(found, record[f"{case}.top_ids"].astype(numpy.int64), axis=1)]
    kept.append(found[:, record["columns"].astype(numpy.int64)])
    troubles = [
        difference(numpy.hstack(kept), numpy.hstack(expected), LOGITS_BOUND),
        difference(norms, record[f"{case}.norms"][:, None], LOGITS_BOUND, ("norm", "largest norm")),
    ]
    return next((trouble for trouble in troubles if trouble is not None), None)


def check_generation(case, logits, tokens):
    """tokens: our own greedy continuation. logits: ours over the prompt and llama.cpp's tokens."""
    first = len(case["ids"]) - 1
    close = margins(logits[first : first + len(case["tokens"])]) < CLOSE
    until = int(close.argmax()) if close.any() else len(close)
    print(f"# {until} tokens to the first close call, {len(close)} in all")
    if tokens[:until] != case["tokens"][:until]:
        return f"{tokens[:until]}, expected {case['tokens'][:until]}"
    return None


def check_choices(case, logits):
    first = len(case["ids"]) - 1
    rows = logits[first : first + len(case["tokens"])]
    clear = margins(rows) >= CLOSE
    wrong = numpy.flatnonzero(clear & (rows.argmax(axis=1) != case["tokens"]))
    print(f"# {clear.sum()} of {len(clear)} choices are clear")
    return f"tokens {wrong.tolist()} differ though they are clear" if wrong.size else None


def main():
    if not GGUF.is_file():
        skip_all(f"{GGUF} is not there (tools/fetch_smollm2)")
    cases = json.loads((FOLDER / "smollm2_greedy.json").read_text(encoding="utf-8"))["cases"]
    record = numpy.load(FOLDER / "smollm2_logits.npz")
    tap, troupe = Tap(), Troupe()
    for index, case in enumerate(cases):
        logits = functools.cache(lambda: troupe.logits(GGUF, case["ids"] + case["tokens"]))
        tap.check(
            f"case {index}: logits are transformers'",
            lambda: check_logits(record, index, logits()),
        )
        tap.check(
            f"case {index}: the greedy text is llama.cpp's up to the first close call",
            lambda: check_generation(case, logits(), troupe.greedy(GGUF, case["ids"], 64)),
        )
        tap.check(
            f"case {index}: after llama.cpp's text, every clear choice is llama.cpp's",
            lambda: check_choices(case, logits()),
        )
    tap.done()


main()
