"""A node is lost and comes back: killed and started again, by hand and by launch, cut off for a while,
missed by others that have no room, or drained before. GET /health tells the truth all the while. And when
all nodes have stood still with their machine, nobody is lost."""

import concurrent.futures
import os
import pathlib
import signal
import time
import urllib.error

from cluster import PATIENCE_S, Cluster, limits
from troupe_test import ROOT, SLOWNESS, Tap

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
STREAMS = 4
TOKENS = 80
STAY = limits("exit_on_peer_loss: false", silence_ms=1500)
STILL_S = 3 if SLOWNESS == 1 else 12  # twice as long as STAY lets anybody be silent


def complete(cluster, number):
    return cluster.tale(number, TOKENS, "once upon a time " + "and on " * (30 * number))


def missing(cluster):
    return cluster.ask("status", node=0)["nodes"][0]["missing"]


def received(cluster, node):
    """Messages that the expert shard of a node has received."""
    actors = cluster.ask("actors", node=node)["nodes"][0]["actors"]
    return sum(actor["received"] for actor in actors if actor["kind"] == "expert_shard")


def streams(cluster, pool):
    return [pool.submit(complete, cluster, i) for i in range(STREAMS)]


def comes_back():
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        with Cluster(MODEL, separate=True, tail=STAY) as cluster:
            expected = [stream.result() for stream in streams(cluster, pool)]
            for turn in range(2):
                running = streams(cluster, pool)
                time.sleep(0.3 + 0.4 * turn)
                cluster.kill_node(-1)
                cluster.await_health("degraded")
                if turn == 0:  # the second time it comes back while streams are read again
                    found = [stream.result() for stream in running]
                cluster.start_node(1)
                begin = time.monotonic()
                cluster.await_health("serving")
                print(f"# whole {time.monotonic() - begin:.2f} s after its start")
                found = [stream.result() for stream in running]
                if found != expected:
                    return f"turn {turn}: other texts\n{cluster.log_text()}"
                before = received(cluster, 1)
                if complete(cluster, 2) != expected[2]:
                    return f"turn {turn}: another text afterwards\n{cluster.log_text()}"
                rows = received(cluster, 1) - before
                print(f"# turn {turn}: node1 has received {rows} messages with rows")
                if rows < TOKENS:
                    return f"turn {turn}: node1 computed {rows} messages\n{cluster.log_text()}"
    return None


def at_once():
    """Started again before anybody has noticed: heartbeats would take 20 s."""
    with Cluster(MODEL, separate=True, transport="nng") as cluster:
        expected = complete(cluster, 1)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(complete, cluster, 1)
            time.sleep(0.2)
            cluster.kill_node(1)
            cluster.start_node(1)
            if running.result() != expected:
                return f"another text\n{cluster.log_text()}"
        cluster.await_logged("node_joins")
        cluster.await_health("serving")
        before = received(cluster, 1)
        if complete(cluster, 1) != expected or received(cluster, 1) == before:
            return f"node1 computed nothing\n{cluster.log_text()}"
    return None


def one_of_three():
    with Cluster(MODEL, separate=True, nodes=3, tail=STAY) as cluster:
        expected = complete(cluster, 1)
        for node in (2, 1):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                running = pool.submit(complete, cluster, 1)
                time.sleep(0.2)
                cluster.kill_node(node)
                cluster.await_health("degraded")
                cluster.start_node(node)
                cluster.await_health("serving")
                if running.result() != expected:
                    return f"another text\n{cluster.log_text()}"
            before = received(cluster, node)
            if complete(cluster, 1) != expected or received(cluster, node) == before:
                return f"node{node} computed nothing\n{cluster.log_text()}"
    return None


def restarted_by_launch():
    with Cluster(MODEL, tail=STAY) as cluster:
        expected = complete(cluster, 1)
        launch = cluster.processes[0].pid
        children = pathlib.Path(f"/proc/{launch}/task/{launch}/children").read_text().split()
        node1 = [
            int(pid) for pid in children
            if b"node1" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        ]  # fmt: skip
        os.kill(node1[0], signal.SIGKILL)
        # By the log: launch does not wait until somebody has looked at the health.
        cluster.await_logged("peer_lost")
        cluster.await_logged("peer_back")
        cluster.await_health("serving")
        if complete(cluster, 1) != expected:
            return f"another text\n{cluster.log_text()}"
        codes = cluster.stop()
        return None if codes == [0] else f"launch ended with {codes}\n{cluster.log_text()}"


def cut_off():
    """A node that stood still for longer than peer_timeout: it has been given up, says so and ends."""
    with Cluster(MODEL, separate=True, tail=STAY) as cluster:
        expected = complete(cluster, 1)
        cluster.processes[1].send_signal(signal.SIGSTOP)
        found = cluster.await_health("degraded")
        if "node1" not in found["reason"] or missing(cluster) != ["node1"]:
            return f"node1 is not named: {found}, {missing(cluster)}"
        if complete(cluster, 1) != expected:
            return f"another text without it\n{cluster.log_text()}"
        cluster.processes[1].send_signal(signal.SIGCONT)
        if cluster.processes[1].wait(PATIENCE_S) != 1:
            return f"node1 ended with {cluster.processes[1].returncode}, expected 1"
        if not cluster.logged("troupe: node node0 is gone"):
            return f"node1 does not say why\n{cluster.log_text()}"
        cluster.start_node(1)
        cluster.await_health("serving")
        if missing(cluster) != []:
            return f"missing {missing(cluster)}"
        return None if complete(cluster, 1) == expected else "another text with it again"


def stood_still():
    """As in a machine that is suspended: every node was silent for too long, and none of them listened."""
    with Cluster(MODEL, separate=True, tail=STAY) as cluster:
        expected = complete(cluster, 1)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            running = pool.submit(complete, cluster, 1)
            for number in (signal.SIGSTOP, signal.SIGCONT):
                time.sleep(STILL_S if number == signal.SIGCONT else 0.2)
                for process in cluster.processes:
                    process.send_signal(number)
            if running.result() != expected:
                return f"another text\n{cluster.log_text()}"
        time.sleep(STILL_S)  # whoever has given up somebody says so by then
        _, report = cluster.health_report()
        if report["status"] != "serving" or cluster.logged("peer_lost"):
            return f"{report}\n{cluster.log_text()}"
        return None if complete(cluster, 1) == expected else "another text afterwards"


def missed():
    """Nobody has room for its share: nothing is served until it is there again."""
    with Cluster(MODEL, separate=True, node_lines=["memory: 250 MiB"], tail=STAY) as cluster:
        expected = complete(cluster, 1)
        cluster.kill_node(1)
        found = cluster.await_health("not_serving")
        if "node1" not in found["reason"]:
            return f"the reason does not name node1: {found}"
        try:
            complete(cluster, 1)
            return "a request was served without node1"
        except urllib.error.HTTPError as error:
            if error.code != 503 or not error.headers.get("Retry-After"):
                return f"{error.code}, Retry-After {error.headers.get('Retry-After')}"
        cluster.start_node(1)
        cluster.await_health("serving")
        return None if complete(cluster, 1) == expected else "another text with it again"


def drained():
    """What was drained before it went is not missed, and stays drained."""
    with Cluster(MODEL, separate=True, tail=STAY) as cluster:
        expected = complete(cluster, 1)
        cluster.change("drain", "node1")
        cluster.kill_node(1)
        cluster.await_logged("peer_lost")
        _, report = cluster.health_report()
        if report["status"] != "serving" or complete(cluster, 1) != expected:
            return f"{report}\n{cluster.log_text()}"
        cluster.start_node(1)
        cluster.await_logged("node_joins")
        before = received(cluster, 1)
        if complete(cluster, 1) != expected or received(cluster, 1) != before:
            return f"node1 computed something\n{cluster.log_text()}"
        cluster.change("undrain", "node1")
        if complete(cluster, 1) != expected or received(cluster, 1) == before:
            return f"node1 computed nothing\n{cluster.log_text()}"
    return None


def main():
    tap = Tap()
    tap.check("a node that was killed comes back and gets its share", comes_back)
    tap.check("a node is started again before anybody has noticed, over nng", at_once)
    tap.check("one of three comes back, then another", one_of_three)
    tap.check("launch starts a node again that was killed", restarted_by_launch)
    tap.check("a node that was cut off ends, and comes back", cut_off)
    tap.check("nobody is lost when all have stood still", stood_still)
    tap.check("without room for its share nothing is served until it is back", missed)
    tap.check("a node that was drained is not missed, and stays drained", drained)
    tap.done()


main()
