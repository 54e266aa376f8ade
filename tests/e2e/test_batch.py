"""A request gets the same tokens and the same log probabilities alone and among eight others, over
two nodes and over one. TROUPE_RUNS says how often (3)."""

import concurrent.futures
import json
import os
import urllib.request

from cluster import REQUEST_TIMEOUT_S, Cluster
from troupe_test import ROOT, Tap

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
RUNS = int(os.environ.get("TROUPE_RUNS", "3"))

# Longer than a page of 64 positions, so that its prefill shares steps with the others' decoding.
PROMPT = "The old house by the river stood empty for many years, and " * 8


def complete(cluster, **fields):
    body = {"model": "tiny-solar-nvfp4", "max_tokens": 40, "logprobs": 5} | fields
    request = urllib.request.Request(
        cluster.url + "/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
        choice = json.load(answer)["choices"][0]
    return choice["text"], choice["logprobs"]


def watched(cluster):
    return complete(cluster, prompt=PROMPT, temperature=0.8, top_p=0.95, seed=11)


def crowded(cluster):
    """The watched request, begun in the middle of eight others."""
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        others = [
            pool.submit(
                complete, cluster, prompt=PROMPT[: 20 * i + 10], temperature=0.7, seed=i,
                max_tokens=60 + 10 * i,
            )
            for i in range(8)
        ]  # fmt: skip
        answer = pool.submit(watched, cluster).result()
        for other in others:
            other.result()
    return answer


def main():
    tap = Tap()
    with Cluster(MODEL) as two, Cluster(MODEL, nodes=1) as one:
        alone = watched(two)
        for name, cluster in (("two nodes", two), ("one node", one)):
            for run in range(RUNS):
                tap.check(
                    f"among eight others on {name}, run {run}",
                    lambda: None if crowded(cluster) == alone else "the answers differ",
                )
        tap.check(
            "alone on one node", lambda: None if watched(one) == alone else "the answers differ"
        )
    tap.done()


main()
