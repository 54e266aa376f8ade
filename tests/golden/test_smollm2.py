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

# So much must have been compared, of 320 tokens: it was 37 up to the first close calls, and 284 clear
# choices. Which choices are close is a matter of our logits, which the records hold to 1e-4.
LEAST_TOKENS = 35
LEAST_CHOICES = 280

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


class Compared:
    """How many tokens the checks really looked at."""

    tokens = 0
    choices = 0


def check_generation(case, logits, tokens):
    """tokens: our own greedy continuation. logits: ours over the prompt and llama.cpp's tokens."""
    first = len(case["ids"]) - 1
    close = margins(logits[first : first + len(case["tokens"])]) < CLOSE
    until = int(close.argmax()) if close.any() else len(close)
    print(f"# {until} tokens to the first close call, {len(close)} in all")
    Compared.tokens += until
    if tokens[:until] != case["tokens"][:until]:
        return f"{tokens[:until]}, expected {case['tokens'][:until]}"
    return None


def check_choices(case, logits):
    first = len(case["ids"]) - 1
    rows = logits[first : first + len(case["tokens"])]
    clear = margins(rows) >= CLOSE
    wrong = numpy.flatnonzero(clear & (rows.argmax(axis=1) != case["tokens"]))
    Compared.choices += int(clear.sum())
    print(f"# {clear.sum()} of {len(clear)} choices are clear")
    return f"tokens {wrong.tolist()} differ though they are clear" if wrong.size else None


def check_compared():
    found = (Compared.tokens, Compared.choices)
    print(f"# {found[0]} tokens and {found[1]} choices were compared")
    if found[0] >= LEAST_TOKENS and found[1] >= LEAST_CHOICES:
        return None
    return f"{found}, expected at least {(LEAST_TOKENS, LEAST_CHOICES)}"


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
    tap.check("enough was compared with llama.cpp", check_compared)
    tap.done()


main()
