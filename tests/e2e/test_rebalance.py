"""Experts that all stand on one node are dealt out by what was measured, while streams run."""

import concurrent.futures
import json
import re
import time

from cluster import PATIENCE_S, PATIENT, Cluster
from troupe_test import ROOT, Tap

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
STREAMS = 6
TOKENS = 120
UNEVEN = "experts: [{node: node1}]\n" + PATIENT
NOT_MEASURED = re.compile("no message came back from|are being measured")


def complete(cluster, number):
    return cluster.tale(number, TOKENS)


def rebalance(cluster, *words):
    done = cluster.admin("rebalance", "--json", *words)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    answer = json.loads(done.stdout)
    return answer["rebalance"], answer["change"]


def measured(cluster, good, *words):
    """The same, asked again while what was measured promises no gain: a busy machine lets the way to the
    other node look longer than what is saved there, or has no time to measure it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            found, change = rebalance(cluster, *words)
            if good(found) or time.monotonic() > deadline:
                return found, change
        except RuntimeError as error:
            if not NOT_MEASURED.search(str(error)) or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def shown(cluster, words):
    """What people are told; asked again until there are these words, for the same reason."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        text = cluster.admin("rebalance", "--dry-run").stdout
        if words in text or time.monotonic() > deadline:
            return text
        time.sleep(0.1)


def held(cluster):
    """How many (layer, expert) stand on each node; replicas count on each of theirs."""
    layers = cluster.ask("load")["layers"]
    experts = [expert for layer in layers for expert in layer["experts"]]
    return [sum(name in expert["nodes"] for expert in experts) for name in ("node0", "node1")]


def nothing_known(cluster):
    done = cluster.admin("rebalance")
    if done.returncode != 1 or "no step has been measured" not in done.stderr:
        return f"exit {done.returncode}: {done.stdout}{done.stderr}"
    return None


def dry(cluster):
    """It says what it measured, what it would do and what that would gain; and does nothing."""
    found, change = measured(
        cluster, lambda found: found["gain_ppm"] > 0, "--dry-run", "--threshold", "0"
    )
    if not found["dry_run"] or found["changes"] or change["moved"] != 0 or change["epoch"] != 1:
        return f"{change}"
    if found["experts_before_ns"] <= found["experts_after_ns"] or found["gain_ppm"] <= 0:
        return f"no gain: {found}"
    if found["step_ns"] == 0 or found["experts_ns"] == 0:
        return f"not measured: {found}"
    if found["moves"] == 0 or len(found["edits"]) < found["moves"] or found["recorded_steps"] == 0:
        return f"{found}"
    if [hop["between"] for hop in found["hops"]] != [["node0", "node1"]]:
        return f"hops {found['hops']}"
    if found["costs"][0]["measured"] != 0 or found["costs"][1]["measured"] == 0:
        return f"costs {found['costs']}"
    if any(edit["before"] != ["node1"] or "node0" not in edit["after"] for edit in found["edits"]):
        return f"edits {found['edits']}"
    text = shown(cluster, "node1 to node0")
    for words in ("measured", "data plane", "predicted", "gain", "dry run", "node1 to node0"):
        if words not in text:
            return f"no {words!r} in\n{text}"
    return None if held(cluster)[0] == 0 else "something has moved"


def not_worth_it(cluster):
    found, change = rebalance(cluster, "--threshold", "99")
    if found["changes"] or change["moved"] != 0:
        return f"{change}"
    done = cluster.admin("rebalance", "--threshold", "99")
    if done.returncode != 0 or "nothing was changed: the gain is below 99.0 %" not in done.stdout:
        return f"exit {done.returncode}: {done.stdout}{done.stderr}"
    return None if held(cluster)[0] == 0 else "something has moved"


def done(cluster, expected):
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        running = [pool.submit(complete, cluster, i) for i in range(STREAMS)]
        found, change = measured(cluster, lambda found: found["changes"], "--threshold", "0")
        texts = [stream.result() for stream in running]
    if texts != expected:
        return "other texts"
    if not found["changes"] or change["epoch"] != 2 or change["phase"] != "done":
        return f"{found['gain_ppm']} {change}"
    if change["moved"] != found["moves"] + found["replicas"] or change["bytes"] < found["bytes"]:
        return f"{change}, proposed {found}"
    print(f"# {found['moves']} moves, {found['replicas']} replicas, gain {found['gain_ppm'] / 1e4} %")
    on = held(cluster)
    if on[0] != len(found["edits"]):
        return f"experts on the nodes: {on}, {len(found['edits'])} edits"
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        after = list(pool.map(lambda i: complete(cluster, i), range(STREAMS)))
    return None if after == expected else "other texts afterwards"


def usage(cluster):
    for words in (("rebalance", "now"), ("rebalance", "--threshold", "x"), ("load", "--dry-run")):
        code = cluster.admin(*words).returncode
        if code != 2:
            return f"{words}: exit {code}"
    return None


tap = Tap()
with Cluster(MODEL, tail=UNEVEN) as running:
    tap.check("without a measurement nothing is guessed", lambda: nothing_known(running))
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as workers:
        reference = list(workers.map(lambda i: complete(running, i), range(STREAMS)))
    tap.check("a dry run says what would be gained", lambda: dry(running))
    tap.check("below the threshold nothing is done", lambda: not_worth_it(running))
    tap.check("experts go where they are best, and no stream notices", lambda: done(running, reference))
    tap.check("wrong words are refused", lambda: usage(running))
tap.done()
