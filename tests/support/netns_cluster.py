"""A cluster of two nodes with a network between them, and clients that look closely at its streams.

The node of the batcher and the tests stand on the near side, the other on the far side (netns.py). They
speak UCX over TCP.
"""

import concurrent.futures
import http.client
import json
import os
import re
import time

import netns
from cluster import PATIENT, REQUEST_TIMEOUT_S, Cluster
from troupe_test import ROOT

MODEL = os.environ.get("TROUPE_TINY_SOLAR", str(ROOT / "models" / "tiny-solar-nvfp4"))
STREAMS = int(os.environ.get("TROUPE_TEST_STREAMS", "16"))
TOKENS = 10 * STREAMS  # of each
TCP = 'transport: {tls: "tcp"}'  # else UCX finds shared memory, which namespaces do not separate


class NetworkCluster(Cluster):
    def __init__(self, network, tail=PATIENT, node_lines=(), batcher=0):
        self.network = network
        self.sides = ["far", "far"]
        self.sides[batcher] = "near"
        super().__init__(
            MODEL, separate=True, tail=tail + f"batcher: node{batcher}\n",
            node_lines=[TCP, *node_lines], hosts=[netns.ADDRESSES[side] for side in self.sides],
        )  # fmt: skip

    def start_node(self, i):
        """Call it from the main thread: the node is killed when the thread that started it ends."""
        return self.start_process(
            "node", "--placement", self.placement, "--name", f"node{i}",
            inside=["setpriv", "--pdeathsig", "KILL", *self.network.inside(self.sides[i])],
        )  # fmt: skip

    def work_received(self, node):
        """Messages with rows, and a few others, that a node's experts have got since it started."""
        actors = self.ask("actors", node=node)["nodes"][0]["actors"]
        return sum(a["received"] for a in actors if a["kind"] == "expert_shard")


class Answer:
    """What a stream said: its text, when each token came, when it ended, and the error that ended it, or
    None."""

    def __init__(self):
        self.text, self.times, self.ended, self.error = "", [], None, None

    def __eq__(self, other):
        return (self.text, self.error) == (other.text, other.error)


def body_of(number, tokens):
    return {
        "prompt": f"Tale number {number}: once upon a time " + "and on " * (10 * (number % 7)),
        "max_tokens": tokens,
        "temperature": 0.8 if number % 2 else 0,
        "seed": number,
        "stop": None,
        "stream": True,
    }


def read_events(response, answer):
    for line in response:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            answer.error = event["error"]["message"]
            return
        answer.times.append(time.monotonic())
        answer.text += event["choices"][0]["text"]


def stream(cluster, number, tokens, answer=None):
    """The answer to one request, read to its end. answer: an empty one, which somebody watches."""
    answer = answer or Answer()
    connection = http.client.HTTPConnection(
        "127.0.0.1", cluster.ports[-1], timeout=REQUEST_TIMEOUT_S
    )
    try:
        connection.request(
            "POST", "/v1/completions", json.dumps(body_of(number, tokens)),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        response = connection.getresponse()
        if response.status == 200:
            read_events(response, answer)
        else:
            answer.error = json.loads(response.read())["error"]["message"]
    except (OSError, http.client.HTTPException) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        answer.ended = time.monotonic()
        connection.close()
    return answer


class Streams:
    """STREAMS requests that run at the same time, again and again, and what they must say."""

    def __init__(self, cluster, tokens, count=STREAMS):
        self.cluster, self.tokens, self.count = cluster, tokens, count
        self.pool = concurrent.futures.ThreadPoolExecutor(count)
        self.expected = None
        self.running = []
        self.answers = []
        self.rounds = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pool.shutdown(wait=True)  # every request has a deadline

    def begin(self):
        self.answers = [Answer() for _ in range(self.count)]
        self.running = [
            self.pool.submit(stream, self.cluster, i, self.tokens, answer)
            for i, answer in enumerate(self.answers)
        ]
        self.rounds += 1

    def await_part(self, part):
        """Waits until so much of a round is there, by its tokens and not by the clock: no two rounds take
        the same time on a busy machine."""
        wanted = part * sum(len(answer.times) for answer in self.expected)
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while sum(len(answer.times) for answer in self.answers) < wanted:
            if self.done() or time.monotonic() > deadline:
                raise RuntimeError(f"the round does not get to {part:.2f}: {self.trouble()}")
            time.sleep(0.005)

    def done(self):
        return all(one.done() for one in self.running)

    def end(self):
        """Waits for the round; its answers."""
        return [one.result() for one in self.running]

    def undisturbed(self):
        """A round while nothing happens: what all others are held against. Returns its seconds."""
        begin = time.monotonic()
        self.begin()
        self.expected = self.end()
        for answer in self.expected:
            if answer.error is not None or not answer.text:
                raise RuntimeError(f"undisturbed: {answer.error or 'no text'}")
        return time.monotonic() - begin

    def trouble(self):
        """Waits for the round; a sentence when an answer is not what it must be."""
        for i, (found, wanted) in enumerate(zip(self.end(), self.expected)):
            if found.error is not None:
                return f"round {self.rounds}, stream {i}: {found.error}"
            if found.text != wanted.text:
                same = len(os.path.commonprefix([found.text, wanted.text]))
                return f"round {self.rounds}, stream {i}: another text after {same} characters"
        return None


def await_health(cluster, wanted):
    """As Cluster.await_health does, but what is wrong comes back as a sentence."""
    try:
        cluster.await_health(*wanted)
    except RuntimeError as error:
        return str(error)
    return None


def both_work(cluster, streams):
    """A round that both nodes must have a part in."""
    before = [cluster.work_received(node) for node in (0, 1)]
    streams.begin()
    if trouble := streams.trouble():
        return trouble
    rows = [cluster.work_received(node) - early for node, early in zip((0, 1), before)]
    return None if min(rows) > streams.tokens else f"after its return the nodes got {rows} messages"


# What stands for a part of each sort in `admin move`, of a model like tiny-solar.
PARTS = {
    "expert": ["expert/{a}.{t}", "expert/{a}-{b}.0-3", "expert/all.{t}", "expert/all.all"],
    "slice": ["slice/{a}.all", "slice/{a}-{b}.0", "slice/all.all"],
    "attention": ["attention/{a}.{h}", "attention/{a}-{b}.all", "attention/all.{h}"],
    "layers": ["layers/{a}", "layers/{a}-{b}"],
    "router": ["router/{a}", "router/{a}-{b}"],
    "vocabulary": ["vocabulary/0-1023", "vocabulary/1024-4095", "vocabulary/all"],
    "sampler": ["sampler"],
}
KINDS = [*PARTS, "replicate", "drain", "undrain"]
NOTHING_TO_DO = re.compile("nothing (of|stands|that)|stands on node. already")


def random_part(chance, kind):
    a, b = sorted(chance.sample(range(8), 2))
    return chance.choice(PARTS[kind]).format(a=a, b=b, t=chance.randrange(16), h=chance.randrange(2))


def random_change(cluster, chance, kind):
    """A change of a kind, of a part and to a node that chance chooses; its report. Where that would
    change nothing, the other node gets it; None when it would not there either."""
    nodes = ["node0", "node1"]
    chance.shuffle(nodes)
    if kind in ("drain", "undrain"):
        words = [kind]
    elif kind == "replicate":
        words = ["replicate", random_part(chance, "expert")]
    else:
        words = ["move", random_part(chance, kind)]
    for node in nodes:
        done = cluster.admin(*words, node, "--json")
        if done.returncode == 0:
            return json.loads(done.stdout)
        if not NOTHING_TO_DO.search(done.stderr):
            raise RuntimeError(f"{' '.join(words)} {node}: {done.stderr.strip()}")
    return None
