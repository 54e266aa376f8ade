"""One of two nodes is killed: the other says so, ends its requests, and exits or stays as told."""

import http.client
import json
import time
import urllib.error
import urllib.request

from cluster import PATIENCE_S, REQUEST_TIMEOUT_S, Cluster, limits
from troupe_test import ROOT, Tap

MODEL = ROOT / "models" / "tiny-solar-nvfp4"


def stream(cluster):
    """An open stream that would go on for long, after its first event."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.ports[-1], timeout=REQUEST_TIMEOUT_S)
    body = {"model": "tiny-solar-nvfp4", "prompt": "Once", "max_tokens": 3500, "stream": True,
            "temperature": 0}  # fmt: skip
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.read()[:500]}")
    answer.readline()
    return connection, answer


def lose_node(cluster):
    """Kills node1 under an open stream; what the stream then said, and after how long."""
    connection, answer = stream(cluster)
    begin = time.monotonic()
    cluster.processes[1].kill()
    try:
        rest = answer.read()
    except http.client.IncompleteRead as error:
        rest = error.partial
    took = time.monotonic() - begin
    connection.close()
    print(f"# the stream ended {took:.2f} s after the kill")
    return rest.decode(errors="replace")


def exits():
    with Cluster(MODEL, separate=True, tail=limits("exit_on_peer_loss: true")) as cluster:
        rest = lose_node(cluster)
        if "error" not in rest.splitlines()[-1] and "error" not in rest[-1000:]:
            return f"the stream ended without an error: {rest[-500:]}"
        try:
            code = cluster.processes[0].wait(PATIENCE_S)
        except Exception:
            return f"node0 is still running\n{cluster.log_text()}"
        if code != 1:
            return f"node0 ended with {code}, expected 1\n{cluster.log_text()}"
        if not cluster.logged("peer_lost peer=node1"):
            return f"the log does not name node1\n{cluster.log_text()}"
    return None


def stays():
    # Node 0 has room for its share of the model and the API (242 MiB), and for little more.
    with Cluster(MODEL, separate=True, node_lines=["memory: 250 MiB"], tail=limits()) as cluster:
        rest = lose_node(cluster)
        if "error" not in rest[-1000:]:
            return f"the stream ended without an error: {rest[-500:]}"
        code, report = cluster.health_report()
        if code != 503:
            return f"health is {code} {report}, expected 503"
        request = urllib.request.Request(
            cluster.url + "/v1/completions",
            json.dumps({"model": "tiny-solar-nvfp4", "prompt": "Once", "max_tokens": 4}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S)
            return "a request was accepted without the other node"
        except urllib.error.HTTPError as error:
            if error.code != 503:
                return f"a request got {error.code}, expected 503"
        codes = cluster.stop()
        if codes[0] != 0:
            return f"node0 ended with {codes[0]} when asked to, expected 0\n{cluster.log_text()}"
    return None


def ends_without_batcher():
    with Cluster(MODEL, separate=True, tail=limits()) as cluster:
        cluster.processes[0].kill()
        try:
            code = cluster.processes[1].wait(PATIENCE_S)
        except Exception:
            return f"node1 is still running\n{cluster.log_text()}"
        return None if code == 1 else f"node1 ended with {code}, expected 1"


def main():
    tap = Tap()
    tap.check("a node whose peer is killed ends its requests and exits", exits)
    tap.check("a node that cannot hold the rest of the model answers 503", stays)
    tap.check("without the batcher's node the others end", ends_without_batcher)
    tap.done()


main()
