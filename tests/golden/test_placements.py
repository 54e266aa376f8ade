"""The same bits, whatever stands where: files of logits are compared byte for byte.

One process with one thread is the reference. Against it stand: two threads, every instruction set
of this processor, several chunk sizes, two nodes over each transport, and random placements of
attention terms, experts, slices, vocabulary, routers and single actors over two to four nodes.
TROUPE_PLACEMENTS says how many (50).
"""

import os
import platform
import random

from cluster import PATIENT, free_ports, placement_text
from skipped import skipped
from troupe_test import ROOT, Tap, Troupe, need

load_file = need("safetensors.numpy").load_file

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
PLACEMENTS = int(os.environ.get("TROUPE_PLACEMENTS", "50"))

# More than two chunks of 64 positions, and a rest.
POSITIONS = 150

# tiny-solar: softmax attention in layers 0 and 4 (two KV heads), KDA in the others (four heads).
LAYERS = 8
TERMS = [2, 4, 4, 4, 2, 4, 4, 4]
EXPERTS = 16
SLICES = 4
VOCABULARY = 4096
GRANULE = 64


AVX2 = {"avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}


def instruction_sets():
    """Names of kernels, and what this processor lacks for them."""
    if platform.machine() != "x86_64":
        return [("cpu-portable", set()), ("cpu-neon", set())]
    flags = set(open("/proc/cpuinfo", encoding="ascii").read().split())
    return [("cpu-portable", set()), ("cpu-avx2", AVX2 - flags), ("cpu-avx512", AVX512 - flags)]


def random_range(choose, count):
    first = choose.randrange(count)
    last = choose.randrange(first, count)
    return first, last


def random_rules(choose, nodes):
    """YAML of rules that move random parts to random nodes; what they leave out is sliced."""

    def node():
        return f"node{choose.randrange(nodes)}"

    def layers():
        first, last = random_range(choose, LAYERS)
        return first, last, f"layers: {first}-{last}"

    lines = []
    for key, item, count in (
        ("attention", "terms", None),
        ("experts", "experts", EXPERTS),
        ("slices", "slices", SLICES),
    ):
        rules = []
        for _ in range(choose.randrange(6)):
            first_layer, last_layer, text = layers()
            most = count or max(TERMS[first_layer : last_layer + 1])
            first, last = random_range(choose, most)
            rules.append(f"  - {{node: {node()}, {text}, {item}: {first}-{last}}}")
        if rules:
            lines += [f"{key}:", *rules]
    if choose.random() < 0.5:
        first, last = random_range(choose, VOCABULARY // GRANULE)
        rows = f"{first * GRANULE}-{last * GRANULE + GRANULE - 1}"
        lines += ["vocabulary:", f"  - {{node: {node()}, rows: {rows}}}"]
    if choose.random() < 0.6:  # otherwise a router of every layer on every node
        cut = choose.randrange(1, LAYERS)
        lines.append("routers:")
        for first, last in ((0, cut - 1), (cut, LAYERS - 1)):
            for i in sorted(choose.sample(range(nodes), choose.randrange(1, nodes + 1))):
                lines.append(f"  - {{node: node{i}, layers: {first}-{last}}}")
    lines += [f"batcher: {node()}", f"sampler: {node()}"]
    return "\n".join(lines) + "\n"


def main():
    tap, troupe = Tap(), Troupe()
    ids = load_file(str(MODEL / "golden.safetensors"))["passkey.input_ids"][:POSITIONS]
    reference = troupe.logits_bytes(MODEL, ids, "--threads", "1")

    def same(*options):
        found = troupe.logits_bytes(MODEL, ids, *options)
        if found == reference:
            return None
        first = next(i for i, (a, b) in enumerate(zip(found, reference)) if a != b)
        return f"position {first // 4 // VOCABULARY}, logit {first // 4 % VOCABULARY} differs"

    def placed(transport, nodes, tail="", node_lines=()):
        path = troupe.path / "placement.yaml"
        text = placement_text(
            MODEL, transport, free_ports(nodes), nodes, node_lines, tail + PATIENT
        )
        path.write_text(text)
        trouble = same("--placement", path)
        return trouble and f"{trouble}\n{path.read_text()}"

    tap.check("the reference has a row for each position", lambda: None if len(reference) ==
              POSITIONS * VOCABULARY * 4 else f"{len(reference)} bytes")  # fmt: skip
    tap.check("two threads", lambda: same("--threads", "2"))
    for name, lacks in instruction_sets():
        if lacks:
            skipped(tap, f"kernels {name}", f"this processor lacks {' '.join(sorted(lacks))}")
            continue
        tap.check(f"kernels {name}", lambda: same("--threads", "1", "--kernels", name))
    for rows in (64, 128, 256):
        tap.check(f"chunks of {rows}", lambda: same("--chunk", rows))
    for transport in ("loop", "ucx", "nng"):
        tap.check(f"two nodes over {transport}", lambda: placed(transport, 2))
    tap.check("two nodes with two threads", lambda: placed("loop", 2, node_lines=["threads: 2"]))
    for seed in range(PLACEMENTS):
        choose = random.Random(seed)
        nodes = choose.choice((2, 2, 3, 4))
        rules = random_rules(choose, nodes)
        tap.check(f"random placement {seed} on {nodes} nodes", lambda: placed("loop", nodes, rules))
    tap.done()


main()
