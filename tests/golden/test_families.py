"""Every family against its reference: tiny random models with the logits, the hidden states and the
greedy continuation that their reference gave from the same weights.

Of each model and of each of its NVFP4 and GGUF forms: logits and hidden states after each layer, the
continuation token for token, and the same bits under random placements over two nodes of one process.
Both NVFP4 layouts must give the same bits, also with activations in four bits.

The models: tests/golden/README.md. To add one: a line in models.txt.
"""

import json
import os
import pathlib
import random
import re

from cluster import PATIENT, free_ports, placement_text
from golden_models import models_folder
from troupe_test import Tap, Troupe, difference, need, same_tokens

numpy = need("numpy")
load_file = need("safetensors.numpy").load_file

MODELS = pathlib.Path(__file__).with_name("models.txt").read_text(encoding="utf-8").split()

# Both sides compute in float32; NVFP4 references use the dequantised weights.
BOUND = 1e-4
WITHOUT_INPUT_SCALES = {"glm5_next-a"}  # NVFP4 for activations in float32 only
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
    """A record may keep some positions only."""
    kept = golden.get("hidden_positions", slice(None))
    troubles = []
    for i, rows in enumerate(found):
        rows = rows[kept]
        expected = golden[f"hidden_{i}"].reshape(rows.shape[0], -1)
        trouble = difference(rows, expected, BOUND, (f"hidden {i}: row norm", "largest element"))
        if trouble is not None:
            troubles.append(trouble)
    return "\n".join(troubles) or None


def check_model(tap, troupe, name, model, golden):
    """One model or form of it (a folder or a file) against its record. Gives its bits."""
    ids = golden["input_ids"]
    layers = max(int(key[7:]) for key in golden if re.fullmatch(r"hidden_\d+", key))
    hidden_path = troupe.path / "hidden.f32"
    reference = ()

    def logits():
        nonlocal reference
        found = troupe.logits_bytes(model, ids, "--hidden", hidden_path)
        reference = (found, hidden_path.read_bytes())
        rows = numpy.frombuffer(found, "<f4").reshape(len(ids), -1)
        return difference(rows, golden["logits"], BOUND)

    def hidden():
        size = golden[f"hidden_{layers}"].shape[-1]
        return check_hidden(hidden_states(hidden_path, len(ids), layers, size), golden)

    def continuation():
        expected = golden["gen"].tolist()
        return same_tokens(troupe.greedy(model, ids, len(expected)), expected)

    def generated():
        every = [*ids.tolist(), *golden["gen"].tolist()]
        found = troupe.logits(model, every)[len(ids) - 1 : -1]
        return difference(found, golden["gen_logits"], BOUND)

    def placed(seed):
        path = troupe.path / "placement.yaml"
        rules = random_rules(random.Random(seed), layers, golden["logits"].shape[1])
        path.write_text(placement_text(model, "loop", free_ports(2), 2, (), rules + PATIENT))
        found = troupe.logits_bytes(model, ids, "--placement", path, "--hidden", hidden_path)
        if (found, hidden_path.read_bytes()) == reference:
            return None
        return f"other bits under\n{path.read_text()}"

    tap.check(f"{name}: logits are the reference's", logits)
    tap.check(f"{name}: hidden states after each layer are the reference's", hidden)
    tap.check(f"{name}: logits of the generated positions are the reference's", generated)
    tap.check(f"{name}: the greedy continuation is the reference's", continuation)
    for seed in range(PLACEMENTS):
        tap.check(f"{name}: random placement {seed} gives the same bits", lambda: placed(seed))
    return reference


def form_record(folder, form):
    """The record of a quantised form. Hidden states and text are not in its folder."""
    states = folder.with_name("states") / f"{form}.safetensors"
    return load_file(str(folder / "golden.safetensors")) | load_file(str(states))


def check_nvfp4(tap, troupe, name, models):
    """Both layouts against one record, and their bits, also with activations in four bits, of which
    tests/golden/test_activations.py knows the values."""
    golden = form_record(models / f"{name}-ct", f"{name}-nvfp4")
    ids = golden["input_ids"]
    layouts = [models / f"{name}-{layout}" for layout in ("ct", "modelopt")]
    found = [check_model(tap, troupe, path.name, path, golden) for path in layouts]

    def same():
        return None if found[0] == found[1] else "other bits"

    def rounded():
        bits = [troupe.logits_bytes(path, ids, "--activations", "nvfp4") for path in layouts]
        if bits[0] != bits[1]:
            return "other bits"
        return "the bits of float32 activations" if bits[0] == found[0][0] else None

    def refused(path):
        try:
            troupe.logits_bytes(path, ids, "--activations", "nvfp4")
        except RuntimeError as error:
            return None if "activations: found nvfp4, but no matrix" in str(error) else str(error)
        return "nothing is refused"

    tap.check(f"{name}: both NVFP4 layouts give the same bits", same)
    if name in WITHOUT_INPUT_SCALES:
        for path in layouts:
            tap.check(f"{path.name}: activations in four bits are refused", lambda: refused(path))
    else:
        tap.check(f"{name}: both NVFP4 layouts round activations to the same bits", rounded)


def check_second_name(tap, troupe, models):
    """Qwen3.8-Flash-Next was published under two names; with its vision tower, which is skipped."""
    source, folder = models / "qwen4_exp_vl-a", troupe.path / "qwen3_8_flash_next"
    golden = load_file(str(source / "golden.safetensors"))
    text = (source / "config.json").read_text(encoding="utf-8")
    folder.mkdir()
    renamed_text = text.replace("qwen4_exp", folder.name)
    (folder / "config.json").write_text(renamed_text, encoding="utf-8")
    (folder / "model.safetensors").symlink_to((source / "model.safetensors").resolve())

    def renamed():
        config = json.loads(renamed_text)
        if config["model_type"] != folder.name or "vision_config" not in config:
            return f"model_type is {config['model_type']}"
        expected = troupe.logits_bytes(source, golden["input_ids"])
        same = troupe.logits_bytes(folder, golden["input_ids"]) == expected
        return None if same else "other bits"

    def skipped(*command):
        said = [line for line in troupe.said(*command) if "tensors_skipped" in line]
        wanted = f"model={folder.name} tensors=33 reason=\"vision tower: images are not served\" example=model.visual."
        return None if len(said) == 1 and wanted in said[0] else f"said {said}, expected {wanted}"

    ids = troupe.ids_file(golden["input_ids"][:3])
    tap.check(f"{folder.name}: the bits of the other name", renamed)
    tap.check(f"{folder.name}: run says that the vision tower is skipped", lambda: skipped(
        "run", folder, "--ids", ids, "-n", 1, "--no-text"))  # fmt: skip
    tap.check(f"{folder.name}: logits says that the vision tower is skipped", lambda: skipped(
        "logits", folder, "--ids", ids, "--out", troupe.path / "logits.bin"))  # fmt: skip


def main():
    tap, troupe = Tap(), Troupe()
    models = models_folder(troupe.path)
    for name in MODELS:
        golden = load_file(str(models / name / "golden.safetensors"))
        check_model(tap, troupe, name, models / name, golden)
        if (models / f"{name}-ct").is_dir():
            check_nvfp4(tap, troupe, name, models)
        for folder in sorted(models.glob(f"{name}-gguf*")):
            # one that is not quantised has the numbers of the model itself
            own = form_record(folder, folder.name) if (folder / "golden.safetensors").is_file() else golden
            check_model(tap, troupe, folder.name, folder / "model.gguf", own)
    check_second_name(tap, troupe, models)
    tap.done()


main()
