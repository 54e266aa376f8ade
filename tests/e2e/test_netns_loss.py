"""A node dies on another machine while 16 streams run.

Two network namespaces, UCX over TCP: nothing but silence and resets tells of the death. The streams that
the survivor can carry end with their bytes, the rest end with an error within 3 s; a node that is started
again gets its share back; a node that was drained is not missed, whichever of the two it is.
TROUPE_TEST_KILLS says how many deaths at random moments (3).
"""

import os
import random
import sys
import time

import netns

netns.enter()

from cluster import limits  # noqa: E402  (only what has entered needs them)
from netns_cluster import (  # noqa: E402
    TOKENS,
    NetworkCluster,
    Streams,
    await_health,
    both_work,
)
from troupe_test import SLOWNESS, Tap  # noqa: E402

SEED = int(os.environ.get("TR_SEED", time.time_ns()))
KILLS = int(os.environ.get("TROUPE_TEST_KILLS", "3"))
DEFAULT = limits()  # the peer_timeout of a placement file that names none
ERROR_S = 3 * SLOWNESS  # from the death of a node to the last error that tells of it


def kill(cluster, streams, moment, early):
    """Kills node1 in the middle of a round and starts it again: early, or when the round has ended."""
    streams.begin()
    time.sleep(moment)
    cluster.kill_node(-1)
    begin = time.monotonic()
    if early:
        time.sleep(0.2)
        cluster.start_node(1)
    trouble = streams.trouble()
    late = time.monotonic() - begin
    if not early:
        if trouble is None:
            streams.begin()
            trouble = streams.trouble()
        cluster.start_node(1)
    return trouble or await_health(cluster, ["serving"]) or both_work(cluster, streams), late


def kills():
    chance = random.Random(SEED)
    print(f"# TR_SEED={SEED}", file=sys.stderr)
    longest = 0.0
    with netns.Network() as network, NetworkCluster(network, DEFAULT) as cluster:
        with Streams(cluster, TOKENS) as streams:
            undisturbed = streams.undisturbed()
            for i in range(KILLS):
                moment, early = chance.uniform(0, undisturbed), chance.random() < 0.5
                trouble, late = kill(cluster, streams, moment, early)
                longest = max(longest, late)
                if trouble:
                    return (
                        f"kill {i} after {moment:.2f} of {undisturbed:.2f} s, started again "
                        f"{'at once' if early else 'later'}: {trouble}\n{cluster.log_text()}"
                    )
    print(f"# {KILLS} kills, the streams ended at most {longest:.1f} s later", file=sys.stderr)
    return None


def errors():
    # Node 0 has room for its share of the model and the API (242 MiB), and for little more.
    with netns.Network() as network:
        with NetworkCluster(network, DEFAULT, ["memory: 250 MiB"]) as cluster:
            with Streams(cluster, TOKENS) as streams:
                streams.undisturbed()
                streams.begin()
                streams.await_part(1 / 3)
                begin = time.monotonic()
                cluster.processes[1].kill()
                pairs = list(zip(streams.end(), streams.expected))
            failed = [found for found, _ in pairs if found.error is not None]
            if any(found.error is None and found.text != wanted.text for found, wanted in pairs):
                return f"a stream ended without an error and not whole\n{cluster.log_text()}"
            if not failed:
                return f"no stream ended with an error\n{cluster.log_text()}"
            took = max(found.ended for found in failed) - begin
            print(
                f"# {len(failed)} streams had their errors {took:.2f} s after the kill: {failed[0].error}",
                file=sys.stderr,
            )
            if took > ERROR_S:
                return f"the last error came {took:.2f} s after the kill, expected {ERROR_S}"
            code, body = cluster.health_report()
            return None if code == 503 else f"health {code} {body}"


def drained(lost):
    """Everything on one node, the sampler as well; then it is drained, and killed."""
    batcher = 1 - lost
    with netns.Network() as network:
        with NetworkCluster(network, DEFAULT, batcher=batcher) as cluster:
            with Streams(cluster, TOKENS) as streams:
                streams.undisturbed()
                for words in (
                    ("drain", f"node{batcher}"),  # whatever its node can give stands on the other
                    ("drain", f"node{lost}"),
                ):
                    streams.begin()
                    cluster.change(*words)
                    if trouble := streams.trouble():
                        return f"{' '.join(words)}: {trouble}\n{cluster.log_text()}"
                streams.begin()
                cluster.processes[lost].kill()
                trouble = streams.trouble()
                if trouble is None:
                    cluster.await_logged("peer_lost")
                    streams.begin()
                    trouble = streams.trouble()
                code, body = cluster.health_report()
                if trouble is None and (code, body["status"]) != (200, "serving"):
                    trouble = f"health {code} {body}"
                return trouble and f"{trouble}\n{cluster.log_text()}"


tap = Tap()
tap.check("streams go on without the machine that was lost, and then with it", kills)
tap.check("streams that the survivor cannot carry end with an error", errors)
tap.check("nobody notices the death of a drained node1", lambda: drained(1))
tap.check("nobody notices the death of a drained node0", lambda: drained(0))
tap.done()
