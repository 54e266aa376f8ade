"""The wire between two machines is cut, unplugged or slow while streams run: nothing hangs, no answer is
wrong, and the health says what is so.

Two network namespaces, UCX over TCP. A cut that is shorter than peer_timeout only delays. A longer one
parts the nodes: node0 goes on alone, then both with the same bits. In the last test parts move meanwhile, and the
cuts come at random moments; TROUPE_TEST_CUTS says how many (3).
"""

import os
import random
import sys
import threading
import time

import netns

netns.enter()

from cluster import PATIENCE_S, PATIENT  # noqa: E402  (only what has entered needs them)
from netns_cluster import (  # noqa: E402
    KINDS,
    STREAMS,
    TOKENS,
    NetworkCluster,
    Streams,
    await_health,
    both_work,
    random_change,
)
from troupe_test import Tap  # noqa: E402

SEED = int(os.environ.get("TR_SEED", time.time_ns()))
CUTS = int(os.environ.get("TROUPE_TEST_CUTS", "3"))

SHORT_S = 1.5  # TCP sends again until about twice that; far from PATIENT's peer_timeout
IMPATIENT = "limits: {peer_timeout: 4 s}\n"  # a busy machine must not look like a dead one

# What happens to the wire: (name, needs a relay, command to break it, command to mend it)
LOST = ("packets are lost", True, "drop both", "pass")
LOST_THERE = ("packets to node1 are lost", True, "drop near", "pass")
LOST_BACK = ("packets from node1 are lost", True, "drop far", "pass")
NEAR_DOWN = ("the link of node0 is down", False, "near down", "near up")
FAR_DOWN = ("the link of node1 is down", False, "far down", "far up")
SLOW = ("the wire is 200 ms long", True, "delay 0.2", "pass")


def do(network, relay, command):
    if relay:
        network.relay(command)
    else:
        network.link(*command.split())


def both_alive(cluster):
    status = [cluster.ask("status", node=node)["nodes"][0] for node in (0, 1)]
    peers = [peer for one in status for peer in one["peers"] if not peer["self"]]
    return len(peers) == 2 and all(peer["alive"] for peer in peers)


def begin_and_wait(streams):
    """Begins a round and waits for about a third of it."""
    streams.begin()
    streams.await_part(1 / 3)


def delays(events):
    """All of them are of the same wire."""
    with netns.Network(events[0][1]) as network, NetworkCluster(network, PATIENT) as cluster:
        with Streams(cluster, TOKENS, STREAMS // 2) as streams:
            streams.undisturbed()
            for name, relay, cut, mend in events:
                begin_and_wait(streams)
                do(network, relay, cut)
                time.sleep(SHORT_S)
                do(network, relay, mend)
                if trouble := streams.trouble():
                    return f"{name}: {trouble}\n{cluster.log_text()}"
        if not both_alive(cluster):
            return f"a node was given up\n{cluster.log_text()}"
        return await_health(cluster, ["serving"])


def comes_back(cluster, streams):
    """The node that was cut off has noticed, and ended, for whoever looks after it to start it again."""
    code = cluster.processes[-1].wait(PATIENCE_S)
    if code != 1:
        return f"node1 ended with {code}, expected 1"
    cluster.start_node(1)
    return await_health(cluster, ["serving"]) or both_work(cluster, streams)


def parts(event):
    _, relay, cut, mend = event
    with netns.Network(relay) as network, NetworkCluster(network, IMPATIENT) as cluster:
        with Streams(cluster, TOKENS, STREAMS // 2) as streams:
            streams.undisturbed()
            begin_and_wait(streams)
            do(network, relay, cut)
            if trouble := await_health(cluster, ["degraded"]):
                return trouble
            trouble = streams.trouble()  # still without node1
            if trouble is None:
                streams.begin()
                trouble = streams.trouble()
            if trouble is None and cluster.health_report()[1]["status"] != "degraded":
                trouble = f"health {cluster.health_report()} while the wire is cut"
            do(network, relay, mend)
            trouble = trouble or comes_back(cluster, streams)
            return trouble and f"{trouble}\n{cluster.log_text()}"


def slow(event):
    """A hop takes 200 ms, so a token takes seconds: few are asked for, and nobody is given up."""
    _, relay, cut, mend = event
    with netns.Network(relay) as network, NetworkCluster(network) as cluster:
        with Streams(cluster, 3, STREAMS // 2) as streams:
            streams.undisturbed()
            do(network, relay, cut)
            streams.begin()
            if trouble := streams.trouble():
                return f"{trouble}\n{cluster.log_text()}"
            report = cluster.change("move", "expert/all.0-7", "node1")
            print(f"# a move took {report['total_ns'] / 1e9:.2f} s", file=sys.stderr)
            if not both_alive(cluster):
                return f"a node was given up\n{cluster.log_text()}"
            do(network, relay, mend)
            streams.begin()
            return streams.trouble() or await_health(cluster, ["serving"])


def late():
    """Answers take 0.8 s, which is no silence: pings must wait for them."""
    with netns.Network(relay=True) as network:
        with NetworkCluster(network, "limits: {peer_timeout: 6 s}\n") as cluster:
            network.relay("delay 0.4")
            time.sleep(8)
            return None if both_alive(cluster) else f"a node was given up\n{cluster.log_text()}"


def keep_moving(cluster, chance, stop):
    """Moves parts until told to stop. What a cut makes of a move is the streams' business."""
    while not stop.is_set():
        try:
            random_change(cluster, chance, chance.choice(KINDS))
        except RuntimeError:
            stop.wait(0.05)


def random_cut(chance):
    """One cut at a random moment of a round, while parts move; a sentence, or None."""
    _, relay, cut, mend = event = chance.choice(
        [LOST, LOST_THERE, LOST_BACK, NEAR_DOWN, FAR_DOWN, SLOW]
    )
    seconds = chance.choice([chance.uniform(0, 0.8), chance.uniform(2, 6)])
    stop = threading.Event()
    with netns.Network(relay) as network, NetworkCluster(network, IMPATIENT) as cluster:
        with Streams(cluster, TOKENS, STREAMS // 2) as streams:
            undisturbed = streams.undisturbed()
            mover = threading.Thread(target=keep_moving, args=(cluster, chance, stop))
            mover.start()
            try:
                streams.begin()
                time.sleep(chance.uniform(0, undisturbed))
                do(network, relay, cut)
                time.sleep(seconds)
                do(network, relay, mend)
                trouble = streams.trouble()
            finally:
                stop.set()
                mover.join()
            if trouble is None:
                streams.begin()
                trouble = streams.trouble()
            trouble = trouble or await_health(cluster, ["serving", "degraded"])
            return trouble and f"{event[0]} for {seconds:.2f} s: {trouble}\n{cluster.log_text()}"


def random_cuts():
    print(f"# TR_SEED={SEED}", file=sys.stderr)
    for i in range(CUTS):
        if trouble := random_cut(random.Random(SEED + i)):
            return f"TR_SEED={SEED + i}: {trouble}"
    return None


tap = Tap()
tap.check("packets are lost for a moment: streams are late", lambda: delays([LOST, LOST_BACK]))
tap.check("a link is down for a moment: streams are late", lambda: delays([NEAR_DOWN, FAR_DOWN]))
for one in (LOST, LOST_THERE, NEAR_DOWN, FAR_DOWN):
    tap.check(f"{one[0]} for long: node0 goes on alone, then both", lambda: parts(one))
tap.check(f"{SLOW[0]}: streams are slow", lambda: slow(SLOW))
tap.check("late answers to pings are signs of life", late)
tap.check("the wire is cut while parts move", random_cuts)
tap.done()
