"""Activations in four bits: `--activations nvfp4` against a computation in numpy.

A small model whose linear attention adds nothing (its output projection is zero), so that what is
left, softmax attention, routing and feed-forwards, is a few lines of numpy. Its matrices are NVFP4,
each with an activation scale of its own, as calibration gives them; gate and up of the shared expert
have one in common, as many files have. The same bits must come out of every placement.
"""

import re
import zlib

from cluster import PATIENT, free_ports, placement_text
from random_solar import LAYERS, make, random_model
from troupe_test import Tap, Troupe, difference, need

from quantizer import scaled
from quantizer.checkpoint import Checkpoint

np = need("numpy")

INPUT_SCALE = np.float32(0.0021)  # of activations: 6 * 448 times this is about their largest
BOUND = 1e-5
# Two computations differ by 1e-7. Of 300,000 numbers that are rounded, one or the other is that close
# to the border between two codes, takes the other one, and its row is off by several percent.
ROWS_ON_A_BORDER = 3


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def norm(x, weight, eps):
    x = x.astype(np.float64)
    return (x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight).astype(np.float32)


class Model:
    """The folder as numpy sees it. rounds: activations are rounded before quantised products."""

    def __init__(self, folder, rounds):
        checkpoint = Checkpoint(folder)
        self.config, self.tensors, self.rounds = checkpoint.config, checkpoint.tensors, rounds

    def product(self, x, name):
        tensor = self.tensors[name + ".weight"]
        if tensor.dtype != "U8":
            return x.astype(np.float64) @ tensor.values().astype(np.float64).T
        block, matrix, inputs = (self.tensors[name + suffix].raw() for suffix in
                                 (".weight_scale", ".weight_scale_2", ".input_scale"))
        w = scaled.nvfp4_values(tensor.raw(), block, matrix)
        if self.rounds:
            x = scaled.nvfp4_values(*scaled.nvfp4(x.astype(np.float32), inputs))
        return x.astype(np.float64) @ w.astype(np.float64).T

    def feed_forward(self, x, name):
        gate, up = self.product(x, name + ".gate_proj"), self.product(x, name + ".up_proj")
        return self.product((gate * sigmoid(gate) * up).astype(np.float32), name + ".down_proj")

    def experts(self, h, layer):
        scores = sigmoid(self.product(h, layer + "gate"))
        chosen = (-(scores + self.tensors[layer + "gate.e_score_correction_bias"].values())).argsort(-1)
        weights = np.zeros_like(scores)
        for row, best in enumerate(chosen[:, : self.config["num_experts_per_tok"]]):
            weights[row, best] = scores[row, best] / scores[row, best].sum()
        weights *= self.config["routed_scaling_factor"]
        y = self.feed_forward(h, layer + "shared_experts")
        for e in range(scores.shape[1]):
            y += weights[:, e : e + 1] * self.feed_forward(h, f"{layer}experts.{e}")
        return y

    def attention(self, h, layer):
        heads, shared, dim = (self.config[key] for key in
                              ("num_attention_heads", "num_key_value_heads", "head_dim"))
        q, k, v, gate = (self.product(h, f"{layer}{name}_proj") for name in "qkvg")
        mask = np.tril(np.ones((len(h), len(h)), bool))
        out = np.zeros_like(q)
        for head in range(heads):
            own = slice(head * dim, head * dim + dim)
            theirs = slice(head // (heads // shared) * dim, head // (heads // shared) * dim + dim)
            scores = np.where(mask, q[:, own] @ k[:, theirs].T / dim**0.5, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, own] = weights / weights.sum(-1, keepdims=True) @ v[:, theirs]
        return self.product((out * sigmoid(gate)).astype(np.float32), layer + "o_proj")

    def logits(self, ids):
        eps = self.config["rms_norm_eps"]
        x = self.tensors["model.embed_tokens.weight"].values()[ids]
        for i in range(LAYERS):
            layer = f"model.layers.{i}."
            if i == 0:
                h = norm(x, self.tensors[layer + "input_layernorm.weight"].values(), eps)
                x = x + self.attention(h, layer + "self_attn.").astype(np.float32)
            h = norm(x, self.tensors[layer + "post_attention_layernorm.weight"].values(), eps)
            x = x + self.experts(h, layer + "mlp.").astype(np.float32)
        h = norm(x, self.tensors["model.norm.weight"].values(), eps)
        return self.product(h, "lm_head")


def without_linear_attention(name, values):
    return 0 * values if name == "model.layers.1.self_attn.o_proj.weight" else values


def own_scale(stem):
    """0.6 to 1.6 times INPUT_SCALE. As a reciprocal of a reciprocal, for which both layouts stand."""
    shared = re.sub(r"shared_experts\.(gate|up)", "shared_experts", stem)
    wanted = INPUT_SCALE * np.float32(0.6 + zlib.crc32(shared.encode()) % 1000 / 1000)
    return 1 / (1 / wanted)


def spread_scales(folder):
    """Gives every matrix of a quantised folder its own_scale, in place."""
    for name, tensor in Checkpoint(folder).tensors.items():
        stem, _, kind = name.rpartition(".")
        if kind in ("input_scale", "input_global_scale"):
            scale = own_scale(stem)
            with open(tensor.path, "r+b") as file:
                file.seek(tensor.begin)
                file.write((scale if kind == "input_scale" else 1 / scale).astype("<f4").tobytes())


def main():
    tap, troupe = Tap(), Troupe()
    source, folder = troupe.path / "source", troupe.path / "nvfp4"
    random_model(source, without_linear_attention)
    every = ("--parts", "experts,shared,attention", "--input-scale", INPUT_SCALE)
    make(source, "nvfp4-modelopt", folder, *every)
    other = make(source, "nvfp4-compressed-tensors", troupe.path / "ct", *every)
    for layout in (folder, other):
        spread_scales(layout)
    ids = np.random.default_rng(9).integers(17, 4096, 70)
    rounded = Model(folder, True).logits(ids)
    plain = Model(folder, False).logits(ids)

    def as_numpy():
        found = troupe.logits(folder, ids, "--activations", "nvfp4").astype(np.float64)
        errors = np.linalg.norm(found - rounded, axis=1) / np.linalg.norm(rounded, axis=1)
        flips = (errors >= BOUND).sum()
        print(f"# row norm {np.sort(errors)[-1 - ROWS_ON_A_BORDER]:.2e} but for {flips} rows")
        return None if flips <= ROWS_ON_A_BORDER else f"errors of rows {errors}"

    def differ():
        """In every expert but the shared one, three scales of an order that differs between experts."""
        found = {name: float(tensor.raw()) for name, tensor in Checkpoint(folder).tensors.items()
                 if name.endswith(".input_scale")}  # fmt: skip
        experts = {name.rsplit(".", 2)[0] for name in found if ".experts." in name}
        orders = set()
        for expert in experts:
            three = [found[f"{expert}.{part}_proj.input_scale"] for part in ("gate", "up", "down")]
            if len(set(three)) < 3:
                return f"{expert}: {three}"
            orders.add(tuple(np.argsort(three)))
        return None if len(experts) == 8 and len(orders) > 3 else f"{len(experts)} experts, orders {orders}"

    tap.check("gate, up and down of each expert have scales of their own", differ)
    tap.check("the logits are numpy's", as_numpy)
    tap.check("without the option they are those of float32 activations", lambda: difference(
        troupe.logits(folder, ids), plain, BOUND))  # fmt: skip

    def matters():
        change = np.linalg.norm(rounded - plain) / np.linalg.norm(plain)
        return None if change > 1000 * BOUND else f"rounding changes {change} only"

    tap.check("rounding shows: four bits are four bits", matters)
    reference = troupe.logits_bytes(folder, ids, "--activations", "nvfp4")

    def same(name, *options, model=folder):
        def check():
            bits = troupe.logits_bytes(model, ids, *options)
            return None if bits == reference else "other logits"

        tap.check(f"the same bits: {name}", check)

    same("the other NVFP4 layout", "--activations", "nvfp4", model=other)
    for kernels in ("cpu-portable", "cpu"):
        same(kernels, "--activations", "nvfp4", "--kernels", kernels)
    for rules in ("", "experts:\n  - {node: node1, layers: 0, experts: 0-2}\n",
                  "slices:\n  - {node: node1, layers: all, slices: 1-2}\n",
                  "attention:\n  - {node: node1, layers: all, terms: 1}\n"):  # fmt: skip
        text = placement_text(folder, "loop", free_ports(2), 2, tail=rules + PATIENT)
        path = troupe.path / "placement.yaml"
        path.write_text("activations: nvfp4\n" + text)
        same(f"two nodes, {rules.split(':')[0] or 'no rules'}", "--placement", path)

    def refused(sentence, *options):
        try:
            troupe.logits_bytes(*options)
        except RuntimeError as error:
            return None if sentence in str(error) else str(error)
        return "nothing is refused"

    tap.check("a checkpoint without activation scales is refused", lambda: refused(
        "activations: found nvfp4, but no matrix", source, ids, "--activations", "nvfp4"))  # fmt: skip
    tap.check("a word that is neither is refused", lambda: refused(
        "--activations: found fp4, expected f32 or nvfp4", folder, ids, "--activations", "fp4"))  # fmt: skip
    tap.done()


main()
