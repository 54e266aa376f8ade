"""A node is killed while streams run, and they end with the right bytes on the node that is left.

At several random moments; TROUPE_TEST_KILLS says how many. Each time a new cluster is started, and a
stream that is not equal to its undisturbed twin, that ends with an error or that hangs is a failure.
"""

import concurrent.futures
import os
import random
import sys
import time

from cluster import Cluster, limits
from troupe_test import ROOT, Tap

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
STREAMS = 6
TOKENS = 160
SEED = int(os.environ.get("TR_SEED", time.time_ns()))
KILLS = int(os.environ.get("TROUPE_TEST_KILLS", "3"))
STAY = limits("exit_on_peer_loss: false", silence_ms=1500)
# Streams begin with kept prompts, which are lost with the node.
KEEP = limits("prefix_cache: 8", "cache_tokens: 65536", silence_ms=1500)


def complete(cluster, number):
    return cluster.tale(number, TOKENS, "once upon a time " + "and on " * (30 * number))


def streams(cluster, pool):
    return [pool.submit(complete, cluster, i) for i in range(STREAMS)]


def kills(count):
    longest = 0.0
    random.seed(SEED)
    print(f"# TR_SEED={SEED}")
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        for i in range(count):
            tail = KEEP if i % 2 else STAY
            with Cluster(MODEL, separate=True, tail=tail) as cluster:
                begin = time.monotonic()
                expected = [stream.result() for stream in streams(cluster, pool)]
                undisturbed = time.monotonic() - begin
                running = streams(cluster, pool)
                moment = random.uniform(0, undisturbed)
                time.sleep(moment)
                cluster.processes[1].kill()
                begin = time.monotonic()
                found = [stream.result() for stream in running]
                longest = max(longest, time.monotonic() - begin)
                if found != expected:
                    return (
                        f"kill {i} after {moment:.2f} of {undisturbed:.2f} s: other texts\n"
                        + cluster.log_text()
                    )
                if complete(cluster, 2) != expected[2]:
                    return f"kill {i}: another text afterwards\n{cluster.log_text()}"
                _, health = cluster.health_report()
                if health.get("status") != "degraded" or "node1" not in health.get("reason", ""):
                    return f"health {health}"
    print(f"# {count} kills; the streams ended at most {longest:.1f} s later", file=sys.stderr)
    return None


tap = Tap()
tap.check("streams go on without the node that was killed", lambda: kills(KILLS))
tap.done()
