"""The admin commands and a trace of a real cluster that has just answered a request."""

import json
import pathlib
import subprocess
import urllib.request

import check_trace
from cluster import Cluster
from troupe_test import ROOT, Tap, binary

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
TOKENS = 24


def troupe(*arguments):
    return subprocess.run(
        [binary(), *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


def complete(cluster):
    body = {"prompt": "Once upon a time", "max_tokens": TOKENS, "temperature": 0, "stop": None}
    request = urllib.request.Request(
        cluster.url + "/v1/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["usage"]["completion_tokens"]


def ask(cluster, what):
    done = troupe("admin", what, "--placement", cluster.placement, "--json")
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)["nodes"]


def status(cluster, generated):
    nodes = ask(cluster, "status")
    if [node["health"] for node in nodes] != ["serving"] * 2:
        return f"health {[node['health'] for node in nodes]}"
    stats = nodes[0]["stats"]
    if stats["generated_tokens"] < generated or stats["requests_finished"] < 1:
        return f"stats {stats}"
    for node in nodes:
        memory = node["memory"]
        if memory["used_bytes"] != sum(part["bytes"] for part in memory["parts"]):
            return f"memory {memory}"
        others = [peer for peer in node["peers"] if not peer["self"]]
        if len(others) != 1 or not others[0]["alive"] or not others[0]["path"]:
            return f"peers {node['peers']}"
    done = troupe("admin", "status", "--node", cluster.controls[0])
    return None if "node0: " in done.stdout else f"found {done.stdout}{done.stderr}"


def actors(cluster):
    nodes = ask(cluster, "actors")
    for node in nodes:
        kinds = {actor["kind"] for actor in node["actors"]}
        missing = {"router", "attention_shard", "expert_shard", "kv_pool"} - kinds
        if missing:
            return f"{node['node']} has no {missing}: {sorted(kinds)}"
        idle = [actor["name"] for actor in node["actors"] if actor["failed"]]
        if idle:
            return f"{node['node']}: failed: {idle}"
    return None


def trace(cluster):
    path = pathlib.Path(cluster.folder.name) / "trace.json"
    done = troupe("trace", "dump", "-o", path, "--node", cluster.controls[0])
    if done.returncode != 0:
        return done.stderr
    print(f"# {done.stdout.strip()}")
    trouble = check_trace.check(path)
    if trouble:
        return trouble
    document = check_trace.load(path)
    pairs = check_trace.arrows_between_processes(document)
    if pairs[1, 2] < TOKENS or pairs[2, 1] < TOKENS:
        return f"arrows between the nodes: {dict(pairs)}"
    kinds = {event["cat"] for event in document["traceEvents"] if event["ph"] == "X"}
    missing = {"request", "step", "receive", "kernel"} - kinds
    return f"no slice of {missing}" if missing else None


def shutdown(cluster):
    done = troupe("admin", "shutdown", "--placement", cluster.placement)
    if done.returncode != 0:
        return done.stderr
    codes = [process.wait(30) for process in cluster.processes]
    return None if codes == [0] else f"launch ended with {codes}\n{cluster.log_text()}"


tap = Tap()
with Cluster(MODEL) as running:
    count = complete(running)
    tap.check("status has figures, memory and live peers of both nodes",
              lambda: status(running, count))  # fmt: skip
    tap.check("actors has every kind on both nodes", lambda: actors(running))
    tap.check("the trace of both nodes nests, and arrows lead both ways", lambda: trace(running))
    tap.check("shutdown ends every node and the launch with code 0", lambda: shutdown(running))
tap.done()
