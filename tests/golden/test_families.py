"""Every family against its reference: tiny random models with the logits, the hidden states and the
greedy continuation that their reference gave from the same weights.

Of each model: logits and hidden states after each layer, the continuation token for token, and the
same bits under random placements over two nodes of one process. Where a model has NVFP4 forms, both
layouts must give the reference logits and the same bits; where it has a GGUF form, that must give the
reference logits, too.

The models: tests/golden/README.md. To add one: a line in models.txt.
"""

import os
import pathlib
import random

from cluster import PATIENT, free_ports, placement_text
from golden_models import models_folder
from troupe_test import Tap, Troupe, difference, need, same_tokens

numpy = need("numpy")
load_file = need("safetensors.numpy").load_file

MODELS = pathlib.Path(__file__).with_name("models.txt").read_text(encoding="utf-8").split()

# Both sides compute in float32; NVFP4 references use the dequantised weights.
BOUND = 1e-4
PLACEMENTS = int(os.environ.get("TROUPE_PLACEMENTS", "3"))


def random_rules(choose, layers, vocabulary):
    """YAML of rules that give attention, some rows of the vocabulary, routers and single actors to
    one of two nodes; experts and slices are divided."""
    lines = ["attention:"]
    lines += [f"  - {{node: node{choose.randrange(2)}, layers: {i}}}" for i in range(layers)]
    cut = choose.randrange(1, layers)
    lines.append("routers:")
    for first, last in ((0, cut - 1), (cut, layers - 1)):
        for i in sorted(choose.sample(range(2), choose.randrange(1, 3))):
            lines.append(f"  - {{node: node{i}, layers: {first}-{last}}}")
    rows = choose.randrange(1, vocabulary // 64) * 64
    lines += ["vocabulary:", f"  - {{node: node{choose.randrange(2)}, rows: 0-{rows - 1}}}"]
    lines += [f"batcher: node{choose.randrange(2)}", f"sampler: node{choose.randrange(2)}"]
    return "\n".join(lines) + "\n"


def hidden_states(path, ids, count, hidden_size):
    """What --hidden wrote, in the order of the record: before each of count layers, and last what
    enters the output matrix."""
    flat = numpy.fromfile(path, "<f4")
    first = ids * hidden_size
    layers = flat[first:].reshape(count, ids, -1)
    return [*layers, flat[:first].reshape(ids, hidden_size)]


def check_hidden(found, golden):
    troubles = []
    for i, rows in enumerate(found):
        expected = golden[f"hidden_{i}"].reshape(rows.shape[0], -1)
        trouble = difference(rows, expected, BOUND, (f"hidden {i}: row norm", "largest element"))
        if trouble is not None:
            troubles.append(trouble)
    return "\n".join(troubles) or None


def check_model(tap, troupe, name, folder):
    golden = load_file(str(folder / "golden.safetensors"))
    ids = golden["input_ids"]
    layers = max(int(key[7:]) for key in golden if key.startswith("hidden_"))
    hidden_path = troupe.path / "hidden.f32"
    reference = ()

    def logits():
        nonlocal reference
        found = troupe.logits_bytes(folder, ids, "--hidden", hidden_path)
        reference = (found, hidden_path.read_bytes())
        rows = numpy.frombuffer(found, "<f4").reshape(len(ids), -1)
        return difference(rows, golden["logits"], BOUND)

    def hidden():
        size = golden[f"hidden_{layers}"].shape[-1]
        return check_hidden(hidden_states(hidden_path, len(ids), layers, size), golden)

    def continuation():
        expected = golden["gen"].tolist()
        return same_tokens(troupe.greedy(folder, ids, len(expected)), expected)

    def generated():
        every = [*ids.tolist(), *golden["gen"].tolist()]
        found = troupe.logits(folder, every)[len(ids) - 1 : -1]
        return difference(found, golden["gen_logits"], BOUND)

    def placed(seed):
        path = troupe.path / "placement.yaml"
        rules = random_rules(random.Random(seed), layers, golden["logits"].shape[1])
        path.write_text(placement_text(folder, "loop", free_ports(2), 2, (), rules + PATIENT))
        found = troupe.logits_bytes(folder, ids, "--placement", path, "--hidden", hidden_path)
        if (found, hidden_path.read_bytes()) == reference:
            return None
        return f"other bits under\n{path.read_text()}"

    tap.check(f"{name}: logits are the reference's", logits)
    tap.check(f"{name}: hidden states after each layer are the reference's", hidden)
    tap.check(f"{name}: logits of the generated positions are the reference's", generated)
    tap.check(f"{name}: the greedy continuation is the reference's", continuation)
    for seed in range(PLACEMENTS):
        tap.check(f"{name}: random placement {seed} gives the same bits", lambda: placed(seed))


def check_nvfp4(tap, troupe, name, models):
    golden = load_file(str(models / f"{name}-ct" / "golden.safetensors"))
    found = {}

    def logits(layout):
        ids = golden["input_ids"]
        found[layout] = troupe.logits_bytes(models / f"{name}-{layout}", ids)
        rows = numpy.frombuffer(found[layout], "<f4").reshape(len(ids), -1)
        return difference(rows, golden["logits"], BOUND)

    def same():
        return None if found["ct"] == found["modelopt"] else "other bits"

    for layout in ("ct", "modelopt"):
        tap.check(f"{name}-{layout}: logits are the reference's", lambda: logits(layout))
    tap.check(f"{name}: both NVFP4 layouts give the same bits", same)


def check_gguf(tap, troupe, name, folder, models):
    """A GGUF form; one that is quantised has a record of its own."""
    own = folder / "golden.safetensors"
    golden = load_file(str(own if own.is_file() else models / name / "golden.safetensors"))

    def logits():
        found = troupe.logits(folder / "model.gguf", golden["input_ids"])
        return difference(found, golden["logits"], BOUND)

    tap.check(f"{folder.name}: logits are the reference's", logits)


def main():
    tap, troupe = Tap(), Troupe()
    models = models_folder(troupe.path)
    for name in MODELS:
        check_model(tap, troupe, name, models / name)
        if (models / f"{name}-ct").is_dir():
            check_nvfp4(tap, troupe, name, models)
        for folder in sorted(models.glob(f"{name}-gguf*")):
            check_gguf(tap, troupe, name, folder, models)
    tap.done()


main()
