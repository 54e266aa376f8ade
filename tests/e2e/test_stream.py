"""A node whose model folder is empty gets every byte of the model from the other, and serves.

Two processes, each with a placement file of its own that differs in the model's path: that of node1
names an empty folder. Once the API is on node0, which has the files, and once on node1, which has not;
in both cases the texts are those of one node alone, before and after everything has moved, and when
node1 was killed and started again.
"""

import concurrent.futures
import json
import os
import pathlib
import sys
import time
import urllib.request

from cluster import PATIENCE_S, PATIENT, Cluster, limits
from troupe_test import ROOT, Tap

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
STREAMS = 3
TOKENS = 40


class StreamingCluster(Cluster):
    """node1 streams; its file names a folder of the same name with nothing in it."""

    def __init__(self, batcher, tail=PATIENT):
        super().__init__(MODEL, separate=True, tail=f"batcher: {batcher}\n{tail}")
        folder = pathlib.Path(self.folder.name)
        self.empty = folder / "empty" / MODEL.name
        self.empty.mkdir(parents=True)
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        text = self.placement.read_text()
        text = text.replace("  - name: node1\n", "  - name: node1\n    checkpoint: stream\n")
        self.placement.write_text(text)
        self.other = folder / "other.yaml"
        self.other.write_text(text.replace(str(MODEL), str(self.empty)))

    def start_node(self, i):
        file = self.other if i == 1 else self.placement
        inside = ("env", f"TMPDIR={self.scratch}")
        return self.start_process(
            "node", "--placement", file, "--name", f"node{i}", inside=inside
        )


def complete(cluster, number):
    return cluster.tale(number, TOKENS)


def texts(cluster):
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        return list(pool.map(lambda i: complete(cluster, i), range(STREAMS)))


def experts_of_node1(cluster):
    """Bytes. Until a node listens again it is asked in vain."""
    parts = cluster.ask("status", node=1)["nodes"][0]["memory"]["parts"]
    return next((part["bytes"] for part in parts if part["part"] == "expert weights"), 0)


def comes_back(expected):
    """Killed and started again, it streams its share once more."""
    with StreamingCluster("node0", limits(silence_ms=1500)) as cluster:
        share = experts_of_node1(cluster)
        cluster.kill_node(1)
        if texts(cluster) != expected:
            return "other texts without it"
        cluster.start_node(1)
        deadline = time.monotonic() + PATIENCE_S
        while experts_of_node1(cluster) < share:
            if time.monotonic() > deadline:
                return f"it does not get its share back: {cluster.log_text()}"
            time.sleep(0.1)
        if texts(cluster) != expected:
            return "other texts with it"
        cluster.stop()
        left = os.listdir(cluster.scratch)  # the second process has removed what the first one left
        return f"left behind: {left}" if left or share == 0 else None


def serves(batcher, expected):
    with StreamingCluster(batcher) as cluster:
        if os.listdir(cluster.empty):
            return "the folder is not empty"
        if texts(cluster) != expected:
            return "other texts"
        received = 0
        for words in (
            ("move", "expert/all.all", "node1"),
            ("drain", "node0"),
            ("move", "attention/all.0", "node0"),
            ("drain", "node1"),
        ):
            report = cluster.change(*words)
            received += report["bytes"]
            if texts(cluster) != expected:
                return f"other texts after {words}"
        with urllib.request.urlopen(cluster.url + "/v1/models", timeout=60) as answer:
            name = json.load(answer)["data"][0]["id"]
        print(f"# {received / 2**20:.1f} MiB loaded by changes", file=sys.stderr)
        codes = cluster.stop()
        if any(codes):
            return f"exit codes {codes}"
        left = os.listdir(cluster.scratch)
        if left:
            return f"left behind: {left}"
        return None if name == MODEL.name else f"the model's name is {name}"


def one_process():
    with Cluster(MODEL, nodes=1) as one:
        EXPECTED.extend(texts(one))


EXPECTED = []
tap = Tap()
tap.check("one process with the model answers", one_process)
tap.check("a node without the model serves", lambda: serves("node0", EXPECTED))
tap.check("a node without the model has the API", lambda: serves("node1", EXPECTED))
tap.check("a node without the model comes back", lambda: comes_back(EXPECTED))
tap.done()
