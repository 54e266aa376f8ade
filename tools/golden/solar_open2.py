"""Solar Open 2 in numpy and float64, written from the model's published equations: the reference
where the installed transformers lacks the family. README.md says how far the two are apart.

    solar_open2.py      checks itself against the published numbers of a tiny deterministic model

Every position is computed from scratch; the recurrence runs token by token. Nothing is shared with
Troupe's kernels but the equations.
"""

import sys

import numpy

L2_EPS = 1e-6


def sigmoid(x):
    return 1 / (1 + numpy.exp(-x))


def softplus(x):
    return numpy.logaddexp(0, x)


def silu(x):
    return x * sigmoid(x)


def rms_norm(x, weight, eps):
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def full_layers(config):
    """Which layers have softmax attention."""
    count = config["num_hidden_layers"]
    if config.get("layer_types"):
        return [kind == "full_attention" for kind in config["layer_types"]]
    if config.get("gqa_layers") is not None:
        return [i in config["gqa_layers"] for i in range(count)]
    return [i % (config["gqa_interval"] + 1) == 0 for i in range(count)]


def shapes(config):
    """Names and shapes of all tensors as the published checkpoints have them."""
    hidden, linear = config["hidden_size"], config["linear_attn_config"]
    heads, dim = config["num_attention_heads"], config["head_dim"]
    width, rank = linear["num_heads"] * linear["head_dim"], linear["head_dim"]
    result = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }

    def feed_forward(prefix, inner):
        result[prefix + "gate_proj.weight"] = (inner, hidden)
        result[prefix + "up_proj.weight"] = (inner, hidden)
        result[prefix + "down_proj.weight"] = (hidden, inner)

    for i, full in enumerate(full_layers(config)):
        layer = f"model.layers.{i}."
        result[layer + "input_layernorm.weight"] = (hidden,)
        result[layer + "post_attention_layernorm.weight"] = (hidden,)
        attention = {}
        if full:
            kv_width = config["num_key_value_heads"] * dim
            attention = {"q_proj": (heads * dim, hidden), "k_proj": (kv_width, hidden),
                         "v_proj": (kv_width, hidden), "o_proj": (hidden, heads * dim)}  # fmt: skip
            if config["use_gqa_gate"]:
                attention["g_proj"] = (heads * dim, hidden)
            if config["use_qk_norm"]:
                attention |= {"q_norm": (dim,), "k_norm": (dim,)}
        else:
            for part in "qkv":
                attention[f"{part}_proj"] = (width, hidden)
                attention[f"{part}_conv1d"] = (width, 1, linear["short_conv_kernel_size"])
            attention |= {"b_proj": (linear["num_heads"], hidden), "o_norm": (rank,),
                          "o_proj": (hidden, width)}  # fmt: skip
            if config["kda_use_full_proj"]:
                attention |= {"f_proj": (width, hidden), "g_proj": (width, hidden)}
            else:
                for gate in "fg":
                    attention |= {f"{gate}_a_proj": (rank, hidden), f"{gate}_b_proj": (width, rank)}
            result[layer + "self_attn.A_log"] = (1, 1, linear["num_heads"], 1)
            result[layer + "self_attn.dt_bias"] = (width,)
        for name, shape in attention.items():
            result[f"{layer}self_attn.{name}.weight"] = shape
        if i < config["first_k_dense_replace"]:
            feed_forward(layer + "mlp.", config["intermediate_size"])
            continue
        result[layer + "mlp.gate.weight"] = (config["n_routed_experts"], hidden)
        result[layer + "mlp.gate.e_score_correction_bias"] = (config["n_routed_experts"],)
        for e in range(config["n_routed_experts"]):
            feed_forward(f"{layer}mlp.experts.{e}.", config["moe_intermediate_size"])
        shared = config["moe_intermediate_size"] * config["n_shared_experts"]
        feed_forward(layer + "mlp.shared_experts.", shared)
    return result


class SolarOpen2:
    """config.json and float64 arrays by name."""

    def __init__(self, config, tensors):
        self.config = config
        self.tensors = tensors
        self.full = full_layers(config)
        self.eps = config["rms_norm_eps"]

    def weight(self, layer, name):
        return self.tensors[f"model.layers.{layer}.{name}"]

    def project(self, layer, name, x):
        return x @ self.weight(layer, name + ".weight").T

    def rotate(self, x):
        """[T, heads, dim]: halves of a head rotate together."""
        positions, dim = x.shape[0], x.shape[-1]
        theta = (self.config.get("rope_parameters") or {}).get("rope_theta", 10000.0)
        frequencies = theta ** (-numpy.arange(0, dim, 2) / dim)
        angles = numpy.arange(positions)[:, None, None] * frequencies
        a, b = x[..., : dim // 2], x[..., dim // 2 :]
        cos, sin = numpy.cos(angles), numpy.sin(angles)
        return numpy.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def softmax_attention(self, layer, h):
        c = self.config
        count, dim = len(h), c["head_dim"]
        q, k, v = (self.project(layer, f"self_attn.{n}_proj", h).reshape(count, -1, dim)
                   for n in "qkv")  # fmt: skip
        if c["use_qk_norm"]:
            q = rms_norm(q, self.weight(layer, "self_attn.q_norm.weight"), self.eps)
            k = rms_norm(k, self.weight(layer, "self_attn.k_norm.weight"), self.eps)
        if c["use_rope"]:
            q, k = self.rotate(q), self.rotate(k)
        share = q.shape[1] // k.shape[1]
        k, v = k.repeat(share, axis=1), v.repeat(share, axis=1)
        scores = numpy.einsum("thd,shd->hts", q, k) / numpy.sqrt(dim)
        scores[:, numpy.triu(numpy.ones((count, count), bool), 1)] = -numpy.inf
        scores = numpy.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        out = numpy.einsum("hts,shd->thd", scores, v).reshape(count, -1)
        if c["use_gqa_gate"]:
            out = out * sigmoid(self.project(layer, "self_attn.g_proj", h))
        return self.project(layer, "self_attn.o_proj", out)

    def convolve(self, layer, part, h):
        """Causal, a filter for each channel, then SiLU. [T, heads, dim]"""
        weight = self.weight(layer, f"self_attn.{part}_conv1d.weight").reshape(-1, self.taps)
        x = self.project(layer, f"self_attn.{part}_proj", h)
        x = numpy.concatenate([numpy.zeros((self.taps - 1, x.shape[1])), x])
        x = sum(weight[:, j] * x[j : j + len(h)] for j in range(self.taps))
        return silu(x).reshape(len(h), -1, self.config["linear_attn_config"]["head_dim"])

    @property
    def taps(self):
        return self.config["linear_attn_config"]["short_conv_kernel_size"]

    def two_steps(self, layer, gate, h):
        """A gate's projection: of full rank, or through a narrow middle."""
        if self.config["kda_use_full_proj"]:
            return self.project(layer, f"self_attn.{gate}_proj", h)
        middle = self.project(layer, f"self_attn.{gate}_a_proj", h)
        return self.project(layer, f"self_attn.{gate}_b_proj", middle)

    def delta_attention(self, layer, h):
        q, k, v = (self.convolve(layer, part, h) for part in "qkv")
        count, heads, dim = q.shape
        q = q / numpy.sqrt((q * q).sum(-1, keepdims=True) + L2_EPS) / numpy.sqrt(dim)
        k = k / numpy.sqrt((k * k).sum(-1, keepdims=True) + L2_EPS)
        decay = self.two_steps(layer, "f", h) + self.weight(layer, "self_attn.dt_bias")
        decay = softplus(decay).reshape(count, heads, dim)
        factor = numpy.exp(self.weight(layer, "self_attn.A_log")).reshape(heads, 1)
        decay = numpy.exp(-factor * decay)
        beta = sigmoid(self.project(layer, "self_attn.b_proj", h))
        if self.config["kda_allow_neg_eigval"]:
            beta = 2 * beta
        state = numpy.zeros((heads, dim, dim))
        out = numpy.empty((count, heads, dim))
        for t in range(count):
            state *= decay[t][:, :, None]
            seen = numpy.einsum("hd,hdv->hv", k[t], state)
            state += k[t][:, :, None] * (beta[t][:, None] * (v[t] - seen))[:, None, :]
            out[t] = numpy.einsum("hd,hdv->hv", q[t], state)
        out = rms_norm(out, self.weight(layer, "self_attn.o_norm.weight"), self.eps)
        out = out * sigmoid(self.two_steps(layer, "g", h)).reshape(count, heads, dim)
        return self.project(layer, "self_attn.o_proj", out.reshape(count, -1))

    def feed_forward(self, layer, prefix, h):
        inner = silu(self.project(layer, prefix + "gate_proj", h))
        inner = inner * self.project(layer, prefix + "up_proj", h)
        return self.project(layer, prefix + "down_proj", inner)

    def choose_experts(self, layer, h):
        """Indices and weights, [T, top_k] each."""
        c = self.config
        scores = sigmoid(self.project(layer, "mlp.gate", h))
        wanted = scores + self.weight(layer, "mlp.gate.e_score_correction_bias")
        grouped = wanted.reshape(len(h), c["n_group"], -1)
        if c["n_group"] > 1:
            best = numpy.sort(grouped, axis=-1)[..., -2:].sum(-1)
            kept = numpy.argsort(-best, axis=-1, kind="stable")[:, : c["topk_group"]]
            mask = numpy.full(best.shape, -numpy.inf)
            numpy.put_along_axis(mask, kept, 0, axis=-1)
            wanted = (grouped + mask[..., None]).reshape(wanted.shape)
        chosen = numpy.argsort(-wanted, axis=-1, kind="stable")[:, : c["num_experts_per_tok"]]
        weights = numpy.take_along_axis(scores, chosen, axis=-1)
        if c["norm_topk_prob"]:
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        return chosen, weights * c["routed_scaling_factor"]

    def channel(self, layer, h):
        if layer < self.config["first_k_dense_replace"]:
            return self.feed_forward(layer, "mlp.", h)
        out = self.feed_forward(layer, "mlp.shared_experts.", h)
        chosen, weights = self.choose_experts(layer, h)
        for e in numpy.unique(chosen):
            rows, slots = numpy.nonzero(chosen == e)
            part = self.feed_forward(layer, f"mlp.experts.{e}.", h[rows])
            out[rows] += weights[rows, slots][:, None] * part
        return out

    def run(self, ids):
        """Logits [T, vocabulary] and the rows after the embedding, after each layer but the last, and
        after the final norm."""
        x = self.tensors["model.embed_tokens.weight"][ids]
        hidden = [x]
        for layer, full in enumerate(self.full):
            h = rms_norm(x, self.weight(layer, "input_layernorm.weight"), self.eps)
            x = x + (self.softmax_attention if full else self.delta_attention)(layer, h)
            h = rms_norm(x, self.weight(layer, "post_attention_layernorm.weight"), self.eps)
            x = x + self.channel(layer, h)
            hidden.append(x)
        hidden[-1] = rms_norm(x, self.tensors["model.norm.weight"], self.eps)
        return hidden[-1] @ self.tensors["lm_head.weight"].T, hidden


# -- the published tiny model --

TINY = {
    "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "moe_intermediate_size": 32, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "routed_scaling_factor": 1.0,
    "norm_topk_prob": True, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
    "gqa_layers": [0], "use_rope": False, "use_qk_norm": False, "use_gqa_gate": True,
    "kda_use_full_proj": False, "kda_allow_neg_eigval": True, "rms_norm_eps": 1e-5,
    "linear_attn_config": {"short_conv_kernel_size": 4, "head_dim": 16, "num_heads": 4},
}  # fmt: skip

MASK = (1 << 64) - 1


def tiny_tensor(name, shape):
    """FNV-1a of the name seeds splitmix64; values are exact in BF16."""
    if name == "model.embed_tokens.weight":
        base, scale = 0, 1
    elif "norm" in name:
        base, scale = 1, 0.25
    elif "conv1d" in name:
        base, scale = 0, 0.5
    elif "A_log" in name:
        base, scale = 0.5, 0.5
    elif "dt_bias" in name:
        base, scale = -1, 1
    elif "correction_bias" in name:
        base, scale = 0, 0.125
    else:
        base, scale = 0, 0.25
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001B3 & MASK
    bits, values = 8 if base == 0 else 4, []
    for _ in range(int(numpy.prod(shape))):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        z ^= z >> 31
        half = 1 << (bits - 1)
        values.append(base + scale * ((z >> (64 - bits)) - half) / half)
    return numpy.array(values).reshape(shape)


# Of the 73-token prompt: position, argmax, first logits; then of two variants at the last position.
TINY_LOGITS = {
    0: (111, [1.361019670, -1.163759076, -0.336021986, 0.044618959]),
    63: (85, [2.243848790, 0.824228954, -0.524837234, 2.358344446]),
    64: (72, [1.049633899, -0.494464939, 1.434641444, -0.360702614]),
    72: (97, [0.787827489, 0.206151505, -1.058824183, 0.307419550]),
}
TINY_VARIANTS = [
    ({"n_group": 2, "topk_group": 1, "routed_scaling_factor": 2.5},
     [2.357225875, -0.573292489, 0.038592984, -0.620307026]),
    ({"kda_allow_neg_eigval": False}, [0.802452669, 0.094231718, -1.052270859, 0.502656184]),
]  # fmt: skip


def main():
    tensors = {name: tiny_tensor(name, shape) for name, shape in shapes(TINY).items()}
    ids = [(7 * t * t + 3 * t + 11) % 128 for t in range(73)]
    logits, _ = SolarOpen2(TINY, tensors).run(ids)
    worst = 0
    for position, (best, first) in TINY_LOGITS.items():
        worst = max(worst, numpy.abs(logits[position][:4] - first).max())
        if logits[position].argmax() != best:
            sys.exit(f"position {position}: token {logits[position].argmax()}, expected {best}")
    for changes, first in TINY_VARIANTS:
        other, _ = SolarOpen2(TINY | changes, tensors).run(ids)
        worst = max(worst, numpy.abs(other[-1][:4] - first).max())
    print(f"largest difference to the published logits: {worst:.1e}")
    if worst > 1e-8:
        sys.exit(1)


if __name__ == "__main__":
    main()
