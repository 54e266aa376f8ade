"""Kept prompts and snapshots, as a user of the API and of the command line sees them.

A prompt that was asked before is not computed again, and the answer is the same. A snapshot is taken
while streams run; then every process is killed. Another cluster, with another placement, takes the
file: the streams that were cut short are asked again and have the bytes of undisturbed ones.
"""

import concurrent.futures
import json
import pathlib
import sys
import tempfile
import threading
import urllib.request

from cluster import PATIENCE_S, REQUEST_TIMEOUT_S, Cluster
from troupe_test import ROOT, Tap

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
STREAMS = 4
TOKENS = 400
LIMITS = "limits: {peer_timeout: 20 s, context: 1024, cache_tokens: 16384, prefix_cache: 8}\n"
# The second cluster gives everything but vocabulary and experts to the other node.
ELSEWHERE = "routers: [{node: node1}]\nattention: [{node: node1}]\nsampler: node1\n" + LIMITS


def complete(cluster, number, tokens=TOKENS, extra="", begun=None):
    """The text, and how many tokens of the prompt were taken from a kept one. begun: set when the first
    token is there, so when the prompt has been computed."""
    body = {
        "prompt": f"Tale number {number}: " + "once upon a time " * (8 + 8 * number) + extra,
        "max_tokens": tokens, "temperature": 0.8 if number % 2 else 0, "seed": number, "stop": None,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    request = urllib.request.Request(
        cluster.url + "/v1/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    text, usage = "", None
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"stream {number}: {event['error']}")
            text += "".join(choice["text"] for choice in event["choices"])
            usage = event.get("usage") or usage
            if begun:
                begun.set()
    return text, usage["prompt_tokens_details"]["cached_tokens"]


def generated(cluster):
    return cluster.ask("status", node=0)["nodes"][0]["stats"]["generated_tokens"]


class Story:
    def __init__(self, folder):
        self.file = pathlib.Path(folder) / "states"
        self.texts = []
        self.ended = ""

    def kept(self, cluster):
        """Twice the same prompt, and once a longer one that begins with it."""
        first, none = complete(cluster, 9, tokens=8)
        second, most = complete(cluster, 9, tokens=8)
        _, longer = complete(cluster, 9, tokens=8, extra="there was more")
        self.ended = first
        if first != second:
            return f"{first!r}, then {second!r}"
        return None if none == 0 and most >= 64 and longer >= 64 else f"cached {none}, {most}, {longer}"

    def snapshot(self, cluster):
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            begun = [threading.Event() for _ in range(STREAMS)]
            running = [
                pool.submit(complete, cluster, i, begun=event) for i, event in enumerate(begun)
            ]
            if not all(event.wait(PATIENCE_S) for event in begun):
                return f"a stream does not begin\n{cluster.log_text()}"
            # A path that is relative to where the command runs.
            report = cluster.change("snapshot", self.file.name, cwd=self.file.parent)
            self.texts = [stream.result()[0] for stream in running]
        print(
            f"# {report['sequences']} sequences, {report['prefixes']} prefixes, "
            f"{report['bytes'] / 2**20:.1f} MiB, pause {report['pause_ns'] / 1e6:.1f} ms",
            file=sys.stderr,
        )
        if self.file.stat().st_size != report["bytes"]:
            return f"{self.file.stat().st_size} bytes, {report['bytes']} reported"
        if not 0 < report["sequences"] <= STREAMS or report["prefixes"] < 1:
            return f"{report}"
        cluster.kill()
        return None

    def restore(self, cluster):
        before = generated(cluster)
        report = cluster.change("restore", self.file)
        if report["sequences"] < 1 or report["prefixes"] < 1 or report["left"] != 0:
            return f"{report}"
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            found = list(pool.map(lambda i: complete(cluster, i), range(STREAMS)))
        if [text for text, _ in found] != self.texts:
            return "other texts after the restart"
        if generated(cluster) - before >= STREAMS * TOKENS:
            return "every token was drawn again"
        if not all(cached > 0 for _, cached in found):  # whole prompts
            return f"cached {[cached for _, cached in found]}"
        text, cached = complete(cluster, 9, tokens=8)
        return None if text == self.ended and cached >= 64 else f"{text!r}, cached {cached}"

    def refusals(self, cluster):
        whole = self.file.read_bytes()
        for damaged, sentence in (
            (whole[: len(whole) // 2], "bytes, slot"),
            (whole[:-1], "expected"),
            (whole[:500] + bytes([whole[500] ^ 1]) + whole[501:], "the file is damaged"),
            (b"PK" + whole[2:], "not a file of sequence states"),
        ):
            self.file.write_bytes(damaged)
            done = cluster.admin("restore", self.file, "--json")
            if done.returncode != 1 or sentence not in done.stderr:
                return f"{done.returncode}: {done.stderr}"
        done = cluster.admin("restore", self.file.parent / "none", "--json")
        return None if done.returncode == 1 and "No such file" in done.stderr else done.stderr


tap = Tap()
with tempfile.TemporaryDirectory(prefix="troupe-states-") as scratch:
    story = Story(scratch)
    with Cluster(MODEL, tail=LIMITS) as first:
        tap.check("a prompt that was asked before is not computed again", lambda: story.kept(first))
        tap.check("a snapshot is taken while streams run", lambda: story.snapshot(first))
    with Cluster(MODEL, tail=ELSEWHERE) as second:
        tap.check("streams go on in another cluster", lambda: story.restore(second))
        tap.check("wrong files are refused with a sentence", lambda: story.refusals(second))
tap.done()
