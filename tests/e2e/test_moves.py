"""Parts move between two processes, by the command line, while streams run; no stream changes.

Each stream is asked for twice: before anything moves, and while parts move, experts get replicas and nodes
are drained and get their share back. After the drain of the second node nothing of the model stands on it,
and after `undrain` it works again.
"""

import concurrent.futures
import sys
import time

from cluster import PATIENCE_S, Cluster, limits
from troupe_test import ROOT, Tap

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
STREAMS = 6
TOKENS = 160
CHANGES = (
    ("move", "expert/0-7.0-3", "node1"),
    ("replicate", "expert/all.0-7", "node0"),
    ("move", "expert/all.all", "node0"),
    ("move", "slice/1-3.all", "node1"),
    ("move", "attention/all.0", "node1"),
    ("replicate", "expert/all.all", "node1"),
    ("move", "attention/2-5.1-2", "node0"),
    ("move", "router/0-3", "node1"),
    ("move", "vocabulary/0-1023", "node1"),
    ("move", "sampler", "node1"),
    ("move", "layers/2-4", "node0"),
    ("move", "attention/2-4.0", "node1"),
    ("replicate", "router/2-4", "node1"),
    ("move", "expert/all.4-11", "node1"),
    ("drain", "node1"),
    ("undrain", "node1"),
    ("drain", "node0"),
    ("undrain", "node0"),
)


def complete(cluster, number):
    return cluster.tale(number, TOKENS)


def streams(cluster, pool):
    return [pool.submit(complete, cluster, i) for i in range(STREAMS)]


def moves(cluster):
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        expected = [stream.result() for stream in streams(cluster, pool)]
        running = streams(cluster, pool)
        reports = []
        rounds = 1
        for words in CHANGES:
            if all(stream.done() for stream in running):
                if [stream.result() for stream in running] != expected:
                    return f"other texts in round {rounds}"
                running = streams(cluster, pool)
                rounds += 1
            reports.append(cluster.change(*words))
        if [stream.result() for stream in running] != expected:
            return f"other texts in round {rounds}"
    pauses = sorted(report["pause_ns"] / 1e6 for report in reports)
    gaps = sorted(report["gap_ns"] / 1e6 for report in reports)
    print(
        f"# {len(reports)} changes, {rounds} rounds of {STREAMS} streams, pauses "
        f"{pauses[0]:.1f} to {pauses[-1]:.1f} ms, gaps between tokens to {gaps[-1]:.1f} ms, "
        f"{sum(report['bytes'] for report in reports) / 2**20:.1f} MiB",
        file=sys.stderr,
    )
    if gaps[-1] == 0:
        return "no stream has seen any of it"
    epochs = [report["epoch"] for report in reports]
    return None if epochs == sorted(set(epochs)) else f"epochs {epochs}"


def received(cluster):
    """Messages that the actors of node1 with work of the model have got."""
    nodes = cluster.ask("actors")["nodes"]
    return sum(
        actor["received"]
        for actor in nodes[1]["actors"]
        if actor["kind"] in ("router", "attention_shard", "expert_shard", "sampler")
    )


def received_when_quiet(cluster):
    """The same, when the end of earlier requests has reached everybody."""
    deadline = time.monotonic() + PATIENCE_S
    last, count = -1, received(cluster)
    while count != last and time.monotonic() < deadline:
        time.sleep(0.2)
        last, count = count, received(cluster)
    return count


def messages_of_an_answer(cluster):
    before = received_when_quiet(cluster)
    complete(cluster, 1)
    return received_when_quiet(cluster) - before


def drained(cluster):
    """Everything comes to node0: node1 gets no more rows."""
    cluster.change("drain", "node1")
    messages = messages_of_an_answer(cluster)
    # What the pool says to the shard beside it is not work; rows would be several a token.
    return None if messages < TOKENS / 4 else f"{messages} messages for {TOKENS} tokens"


def given_back(cluster):
    """node1 works again, with what the placement file gives it."""
    cluster.change("undrain", "node1")
    messages = messages_of_an_answer(cluster)
    if messages < TOKENS:
        return f"{messages} messages for {TOKENS} tokens"
    done = cluster.admin("undrain", "node1", "--json")
    return None if done.returncode == 1 and "stands elsewhere" in done.stderr else done.stderr


def shared(cluster):
    """All experts on both nodes: each computes some of the rows."""
    for node in ("node0", "node1"):
        cluster.change("replicate", "expert/all.all", node)

    def rows():
        layers = cluster.ask("load")["layers"]
        return [sum(layer["node_rows"][node] for layer in layers) for node in ("node0", "node1")]

    before = rows()
    complete(cluster, 1)
    gained = [late - early for early, late in zip(before, rows(), strict=True)]
    total = sum(gained)
    return None if min(gained) > total / 4 else f"rows {gained}"


def aborted(cluster):
    """By another command while the first waits for the end. Now and then that comes too late."""
    expected = complete(cluster, 1)
    for _ in range(30):
        epoch = cluster.change("move", "expert/all.all", "node0")["epoch"]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            moving = pool.submit(cluster.admin, "move", "layers/0-7", "node1", "--json")
            deadline = time.monotonic() + PATIENCE_S
            while (done := cluster.admin("abort")).returncode != 0 and not moving.done():
                if time.monotonic() > deadline:
                    return f"neither done nor aborted: {done.stderr}"
            moved = moving.result()
        if complete(cluster, 1) != expected:
            return "another text afterwards"
        if done.returncode == 0:
            if "nothing has changed" not in done.stdout or "aborted by command" not in moved.stderr:
                return f"{done.stdout}{moved.stderr}"
            later = cluster.change("undrain", "node1")["epoch"]
            return None if later > epoch else f"epoch {later} after {epoch}"
    return "none of 30 was aborted"


def node1_alive(cluster):
    """As node0 says; it is asked alone, because node1 does not answer any more."""
    peers = cluster.ask("status", node=0)["nodes"][0]["peers"]
    return any(peer["alive"] for peer in peers if not peer["self"])


def killed(cluster):
    """node1 holds nothing: its death is not noticed by a stream, nor by those after it."""
    cluster.change("drain", "node1")
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        expected = [stream.result() for stream in streams(cluster, pool)]
        running = streams(cluster, pool)
        cluster.processes[1].kill()
        if [stream.result() for stream in running] != expected:
            return "other texts while it died"
        deadline = time.monotonic() + PATIENCE_S
        while node1_alive(cluster):
            if time.monotonic() > deadline:
                return "its death was not noticed at all"
            time.sleep(0.1)
        if [stream.result() for stream in streams(cluster, pool)] != expected:
            return "other texts after its death"
    code, report = cluster.health_report()
    return None if code == 200 else f"health {code} {report}"


def refusals(cluster):
    for words, expected in (
        (("move", "expert/99.0", "node1"), "layers 99-99"),
        (("move", "expert/0.0", "node7"), "node7"),
        (("move", "nonsense", "node1"), "expert/LAYERS.EXPERTS"),
        (("replicate", "slice/0.0", "node1"), "only experts and routers have replicas"),
        (("replicate", "expert/0.0", "node7"), "node7"),
        (("undrain", "node7"), "node7"),
    ):
        done = cluster.admin(*words, "--json")
        if done.returncode != 1 or expected not in done.stderr:
            return f"{words}: exit {done.returncode}, {done.stderr}"
    for words in (("move", "sampler"), ("replicate", "expert/0.0"), ("undrain",)):
        done = cluster.admin(*words, "--json")
        if done.returncode != 2:
            return f"{words}: exit {done.returncode}"
    done = cluster.admin("abort")
    return None if done.returncode == 1 and "no change" in done.stderr else f"abort: {done.stderr}"


tap = Tap()
SHORT = limits(silence_ms=8000)  # a busy machine must not look like a dead one
with Cluster(MODEL) as running:
    tap.check("streams do not notice moves and drains", lambda: moves(running))
    tap.check("a drained node does nothing", lambda: drained(running))
    tap.check("a node gets its share back and works again", lambda: given_back(running))
    tap.check("holders of replicas share their rows", lambda: shared(running))
    tap.check("a change that is aborted has changed nothing", lambda: aborted(running))
    tap.check("what cannot be is refused by a sentence", lambda: refusals(running))
with Cluster(MODEL, separate=True, tail=SHORT) as running:
    tap.check("nobody notices the death of a drained node", lambda: killed(running))
tap.done()
