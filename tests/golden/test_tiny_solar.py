"""tiny-solar against the logits, continuations and perplexity that its reference gave in float64.

TROUPE_TINY_SOLAR names the folder of the BF16 form, which is not part of the repository (63 MB). Without
it that form is skipped, under tools/check, too.
"""

import os
import pathlib

from skipped import skipped
from troupe_test import ROOT, Tap, Troupe, difference, need, same_tokens

load_file = need("safetensors.numpy").load_file

# Activations are float32, the reference is float64.
LOGITS_BOUND = 1e-4
PERPLEXITY_BOUND = 1e-3


def check_model(tap, troupe, name, folder, perplexity):
    golden = load_file(str(folder / "golden.safetensors"))

    def logits(prompt):
        expected = golden[prompt + ".logits"]
        found = troupe.logits(folder, golden[prompt + ".input_ids"])
        return difference(found[-len(expected) :], expected, LOGITS_BOUND)

    def continuation(prompt):
        expected = golden[prompt + ".gen"].tolist()
        found = troupe.greedy(folder, golden[prompt + ".input_ids"], len(expected))
        return same_tokens(found, expected)

    def heldout():
        found = troupe.perplexity(folder, folder / "heldout.txt", 1024)
        if abs(found / perplexity - 1) < PERPLEXITY_BOUND:
            return None
        return f"perplexity {found}, expected {perplexity}"

    prompts = sorted(key.removesuffix(".input_ids") for key in golden if key.endswith(".input_ids"))
    for prompt in prompts:
        tap.check(f"{name}: logits of '{prompt}' are the reference's", lambda: logits(prompt))
        tap.check(f"{name}: '{prompt}' goes on token for token", lambda: continuation(prompt))
    tap.check(f"{name}: perplexity of heldout.txt is {perplexity}", heldout)


def main():
    tap, troupe = Tap(), Troupe()
    check_model(tap, troupe, "tiny-solar-nvfp4", ROOT / "models" / "tiny-solar-nvfp4", 20.766)
    bf16 = os.environ.get("TROUPE_TINY_SOLAR")
    if bf16:
        check_model(tap, troupe, "tiny-solar", pathlib.Path(bf16), 20.634)
    else:
        skipped(tap, "tiny-solar in BF16", "TROUPE_TINY_SOLAR does not name its folder")
    tap.done()


main()
