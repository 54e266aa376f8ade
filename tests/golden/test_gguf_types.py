"""Every block type of GGUF in one small model (tools/golden/gguf_types.py): logits against those of
transformers on the weights that the gguf package dequantises, and the same bits when the columns of
its matrices, which are cut inside blocks, lie on two nodes."""

import random

from cluster import PATIENT, free_ports, placement_text
from golden_models import models_folder
from troupe_test import Tap, Troupe, difference, need

numpy = need("numpy")
load_file = need("safetensors.numpy").load_file

BOUND = 1e-4
PLACEMENTS = 4


def main():
    tap, troupe = Tap(), Troupe()
    folder = models_folder(troupe.path) / "llama-gguf-types"
    model = folder / "model.gguf"
    golden = load_file(str(folder / "golden.safetensors"))
    ids = golden["input_ids"]
    reference = troupe.logits_bytes(model, ids)

    def logits():
        rows = numpy.frombuffer(reference, "<f4").reshape(len(ids), -1)
        return difference(rows, golden["logits"], BOUND)

    def placed(seed):
        choose = random.Random(seed)
        rules = "attention:\n" + "".join(
            f"  - {{node: node{choose.randrange(2)}, layers: {i}, terms: {h}}}\n"
            for i in range(3)
            for h in range(4)
        )
        rules += "slices:\n" + "".join(
            f"  - {{node: node{choose.randrange(2)}, layers: {i}, slices: {s}}}\n"
            for i in range(3)
            for s in range(8)
        )
        path = troupe.path / "placement.yaml"
        path.write_text(placement_text(model, "loop", free_ports(2), 2, (), rules + PATIENT))
        if troupe.logits_bytes(model, ids, "--placement", path) == reference:
            return None
        return f"other bits under\n{path.read_text()}"

    tap.check("every block type gives the reference logits", logits)
    for seed in range(PLACEMENTS):
        tap.check(f"slices inside blocks: placement {seed} gives the same bits", lambda: placed(seed))
    tap.check(
        "plain C gives the same bits",
        lambda: None
        if troupe.logits_bytes(model, ids, "--kernels", "cpu-portable") == reference
        else "other bits",
    )
    tap.done()


main()
