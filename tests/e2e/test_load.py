"""The experts by heat, over both nodes, while parts move."""

import json

from cluster import Cluster
from troupe_test import ROOT, Tap

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
EXPERTS, TOP_K, LAYERS = 16, 2, 8
TOKENS = 40


def complete(cluster, number):
    return cluster.complete(f"Tale number {number}: once upon a time", TOKENS)["usage"]


def load(cluster, *words):
    return cluster.ask("load", *words)["layers"]


def rows_of(layers):
    return {(layer["layer"], e["expert"]): e["rows"] for layer in layers for e in layer["experts"]}


def counted(cluster):
    """Every computed row asks for top_k experts of each layer; both nodes count what they compute."""
    before = {layer["layer"]: layer["rows"] for layer in load(cluster)}
    usage = complete(cluster, 1)
    # The last token is drawn and not computed; steps in flight may compute one more in vain.
    least = TOP_K * (usage["prompt_tokens"] + usage["completion_tokens"] - 1)
    layers = load(cluster)
    if [layer["layer"] for layer in layers] != list(range(LAYERS)):
        return f"layers {[layer['layer'] for layer in layers]}"
    for layer in layers:
        experts = layer["experts"]
        rows = layer["rows"] - before[layer["layer"]]
        if not least <= rows <= least + 4 * TOP_K:
            return f"layer {layer['layer']}: {rows} rows, expected {least}"
        if sorted(e["expert"] for e in experts) != list(range(EXPERTS)):
            return f"experts {experts}"
        heat = [e["rows"] for e in experts]
        if heat != sorted(heat, reverse=True) or sum(heat) != layer["rows"]:
            return f"layer {layer['layer']}: {heat}"
        if abs(sum(e["share"] for e in experts) - 1) > 1e-9:
            return f"layer {layer['layer']}: shares do not add up to 1"
        if sum(layer["node_rows"].values()) != layer["rows"] or layer["expert_bytes"] == 0:
            return f"layer {layer['layer']}: {layer['node_rows']}"
        if any(e["nodes"] != ["node0" if e["expert"] < EXPERTS // 2 else "node1"] for e in experts):
            return f"layer {layer['layer']}: they stand elsewhere than by default"
        if any(e["rows"] > 0 and (e["busy_ns"] == 0 or e["steps"] > e["rows"]) for e in experts):
            return f"layer {layer['layer']}: rows without time or steps without rows"
    return None


def moved(cluster):
    """Heat belongs to the expert: it stays when the expert goes."""
    before = rows_of(load(cluster))
    if cluster.admin("move", "expert/3.0-3", "node1").returncode != 0:
        return "the move failed"
    layers = load(cluster)
    if rows_of(layers) != before:
        return "rows changed by the move"
    where = {e["expert"]: e["nodes"] for e in layers[3]["experts"]}
    if any(where[e] != ["node1"] for e in range(4)):
        return f"{where}"
    on_node0 = layers[3]["node_rows"]["node0"]
    complete(cluster, 2)
    layers = load(cluster)
    after = rows_of(layers)
    gone = sum(after[3, e] - before[3, e] for e in range(4, 8))
    return (
        None
        if layers[3]["node_rows"]["node0"] == on_node0 + gone
        else "node0 computed rows of experts that have gone"
    )


def shown(cluster):
    done = cluster.admin("load", "--layer", "2", "--top", "3")
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != 6 or not lines[0].startswith("layer 2: 16 experts"):
        return f"exit {done.returncode}: {done.stdout}{done.stderr}"
    if "node0" not in done.stdout or "13 colder experts" not in lines[-1]:
        return done.stdout
    hottest = load(cluster, "--layer", "2", "--top", "1")
    if len(hottest) != 1 or len(hottest[0]["experts"]) != 1:
        return f"{hottest}"
    if str(hottest[0]["experts"][0]["expert"]) != lines[2].split()[0]:
        return f"{hottest} and {lines[2]}"
    for words, code in ((("load", "--layer", "99"), 1), (("load", "--top", "0"), 2), (("status", "--top", "3"), 2)):  # fmt: skip
        if cluster.admin(*words).returncode != code:
            return f"{words}: not {code}"
    return None


def asked_twice(cluster):
    """A node counts once, however often it is asked."""
    once = cluster.admin("load", "--json", node=0).stdout
    twice = cluster.admin("load", "--json", "--node", cluster.controls[0], node=0).stdout
    if not json.loads(once)["layers"][0]["rows"]:
        return "node0 has computed nothing"
    return None if once == twice else f"{twice[:300]} and once {once[:300]}"


tap = Tap()
with Cluster(MODEL) as running:
    complete(running, 0)
    tap.check("every routed row is counted once", lambda: counted(running))
    tap.check("heat stays with an expert that moves", lambda: moved(running))
    tap.check("a table shows the hottest first", lambda: shown(running))
    tap.check("a node that is named twice counts once", lambda: asked_twice(running))
tap.done()
