"""Parts move between two machines while 16 streams run, and no stream changes a bit.

The machines are network namespaces, the transport is UCX over TCP. TROUPE_TEST_MOVES says how many
changes of placement (30), of every sort in turn: moves, replicas, drains, and back. How much later
tokens come meanwhile is measured by tools/bench/moves.
"""

import os
import random
import sys
import time

import netns

netns.enter()

from netns_cluster import KINDS, TOKENS, NetworkCluster, Streams, random_change  # noqa: E402
from troupe_test import Tap  # noqa: E402  (only what has entered needs them)

MOVES = int(os.environ.get("TROUPE_TEST_MOVES", "30"))
SEED = int(os.environ.get("TR_SEED", time.time_ns()))


def moves(cluster):
    chance = random.Random(SEED)
    print(f"# TR_SEED={SEED}", file=sys.stderr)
    reports = []
    with Streams(cluster, TOKENS) as streams:
        streams.undisturbed()
        for i in range(MOVES):
            if streams.rounds == 1 or streams.done():
                if streams.rounds > 1 and (trouble := streams.trouble()):
                    return trouble
                streams.begin()
            if report := random_change(cluster, chance, KINDS[i % len(KINDS)]):
                reports.append(report)
        if trouble := streams.trouble():
            return trouble
        pauses = sorted(report["pause_ns"] / 1e6 for report in reports)
        print(
            f"# {len(reports)} changes, {streams.rounds} rounds, pauses {pauses[0]:.1f} to "
            f"{pauses[-1]:.1f} ms, {sum(r['bytes'] for r in reports) / 2**20:.1f} MiB",
            file=sys.stderr,
        )
    if len(reports) < MOVES * 2 // 3:
        return f"only {len(reports)} of {MOVES} changes had something to change"
    epochs = [report["epoch"] for report in reports]
    return None if epochs == sorted(set(epochs)) else f"epochs {epochs}"


def path(cluster):
    """A test that means TCP must not be carried by shared memory."""
    peers = [peer for peer in cluster.ask("status", node=0)["nodes"][0]["peers"] if not peer["self"]]
    return None if [peer["path"] for peer in peers] == ["tcp"] else f"peers {peers}"


tap = Tap()
with netns.Network() as network, NetworkCluster(network) as running:
    tap.check("the nodes speak TCP", lambda: path(running))
    tap.check("16 streams do not notice moves and drains", lambda: moves(running))
tap.done()
