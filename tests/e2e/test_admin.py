"""The admin commands and a trace of a real cluster that has just answered a request."""

import os
import pathlib
import subprocess

import check_trace
from cluster import ADMIN_TIMEOUT_S, PATIENCE_S, Cluster
from troupe_test import ROOT, Tap, binary

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
TOKENS = 24


def troupe(*arguments):
    return subprocess.run(
        [binary(), *map(str, arguments)], capture_output=True, text=True, timeout=ADMIN_TIMEOUT_S,
        check=False,
    )  # fmt: skip


def complete(cluster):
    return cluster.complete("Once upon a time", TOKENS)["usage"]["completion_tokens"]


def status(cluster, generated):
    nodes = cluster.ask("status")["nodes"]
    if [node["health"] for node in nodes] != ["serving"] * 2:
        return f"health {[node['health'] for node in nodes]}"
    stats = nodes[0]["stats"]
    if stats["generated_tokens"] < generated or stats["requests_finished"] < 1:
        return f"stats {stats}"
    # Nothing is said of memory: launch has looked once, and both have the same share.
    limits = [node["memory"]["limit_bytes"] for node in nodes]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if limits[0] != limits[1] or not 0 < limits[0] <= machine * 0.45:
        return f"limits {limits} of {machine}"
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
    nodes = cluster.ask("actors")["nodes"]
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
    codes = [process.wait(PATIENCE_S) for process in cluster.processes]
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
