"""Starts the nodes of a placement on this machine, for tests, and ends them whatever happens.

    with Cluster(model) as cluster:          # troupe launch: what a user does
        urllib.request.urlopen(cluster.url + "/v1/models")

    with Cluster(model, separate=True) as cluster:   # one troupe node each, as launch would
        cluster.kill_node(1)

Ports are chosen anew for each cluster; every wait has a deadline.
"""

import collections
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from troupe_test import SLOWNESS, binary

START_TIMEOUT_S = int(os.environ.get("TROUPE_TEST_START_S", 60 * SLOWNESS))
STOP_TIMEOUT_S = 15 * SLOWNESS
REQUEST_TIMEOUT_S = min(240 * SLOWNESS, 600)  # by then the server has given up
ADMIN_TIMEOUT_S = min(120 * SLOWNESS, 600)
HEALTH_TIMEOUT_S = 30
PATIENCE_S = 60 * SLOWNESS  # for something to become so that a node does by itself


def limits(*keys, silence_ms=None):
    """The line of a placement file with these limits. silence_ms: peer_timeout, for tests that wait for
    a node to be given up; None: the default, which is 1500. It is that in a plain build; under a
    sanitizer a living node may be silent for longer."""
    if SLOWNESS > 1:
        silence_ms = (silence_ms or 1500) * 4
    if silence_ms is not None:
        keys = (*keys, f"peer_timeout: {silence_ms} ms")
    return f"limits: {{{', '.join(keys)}}}\n" if keys else ""


# A test machine may be small, busy and under a sanitizer; only tests of lost peers want less.
PATIENT = "limits: {peer_timeout: 20 s}\n"

# Below those that the kernel gives away by itself (ip_local_port_range): a port is chosen long before a
# node listens there, and meanwhile UCX or another program would be given the same one now and then.
PORTS = range(20000, 32768)
# Sockets without a file whose names say which ports are ours, so that no other test of this machine takes
# them. The kernel forgets them with this process. Clusters that are so long ago have ended.
PORTS_TAKEN = collections.deque(maxlen=256)


def take_port(port):
    """Makes a port ours, when it is nobody's."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0troupe-test-port-{port}")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        return False
    PORTS_TAKEN.append(claim)
    return True


def free_ports(count):
    """Ports on which nobody listens, and no other test will."""
    chance = random.SystemRandom()  # a test's own seed must not make it choose what others choose
    ports = []
    for port in chance.sample(PORTS, len(PORTS)):
        if take_port(port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError(f"no {count} free ports in {PORTS}")


def session_of(leader):
    """Ids of the processes of a session. A child of launch has a process group of its own, so the group
    is not all that a process has started."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()  # state, parent, group, session
        except OSError:
            continue  # it has ended
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def placement_text(model, transport, ports, nodes, node_lines=(), tail=PATIENT, hosts=None):
    """ports: one control port for each node, then the API's (absent: no API). hosts: the addresses of
    nodes that are not on the loop-back device."""
    lines = [f"model: {model}", f"transport: {transport}", "nodes:"]
    for i in range(nodes):
        lines.append(f"  - name: node{i}")
        lines.append(f"    control: tcp://{hosts[i] if hosts else '127.0.0.1'}:{ports[i]}")
        lines += [f"    {line}" for line in node_lines]
    lines.append(f"api: {{port: {ports[nodes] if len(ports) > nodes else 0}}}")
    return "\n".join(lines) + "\n" + tail


class Cluster:
    def __init__(
        self, model, transport="ucx", nodes=2, node_lines=(), tail=PATIENT, separate=False, hosts=None
    ):
        self.nodes = nodes
        self.separate = separate
        self.ports = free_ports(nodes + 1)
        self.url = f"http://127.0.0.1:{self.ports[nodes]}"
        hosts = hosts or ["127.0.0.1"] * nodes
        self.controls = [f"tcp://{host}:{port}" for host, port in zip(hosts, self.ports)]
        self.folder = tempfile.TemporaryDirectory(prefix="troupe-cluster-")
        self.placement = pathlib.Path(self.folder.name) / "placement.yaml"
        self.log = pathlib.Path(self.folder.name) / "log"
        self.processes = []
        self.placement.write_text(
            placement_text(model, transport, self.ports, nodes, node_lines, tail, hosts)
        )

    def start_process(self, *arguments, inside=()):
        """inside: what stands before the command, to run it elsewhere."""
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [*inside, binary(), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start_node(self, i):
        return self.start_process("node", "--placement", self.placement, "--name", f"node{i}")

    def __enter__(self):
        try:
            if self.separate:
                for i in range(self.nodes):
                    self.start_node(i)
            else:
                self.start_process("launch", self.placement)
            self.wait_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def health_report(self):
        """Status and body of GET /health, which no cut of a wire reaches."""
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=HEALTH_TIMEOUT_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def await_health(self, *wanted):
        """Waits until the health is one of these; its report. Raises when it does not become so, or when
        it contradicts its own status code."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            code, report = self.health_report()
            if (code == 200) != (report["status"] in ("serving", "degraded")):
                raise RuntimeError(f"health {code} {report}")
            if report["status"] in wanted:
                return report
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"health {report}, expected {' or '.join(wanted)}\n{self.log_text()}"
                )
            time.sleep(0.05)

    def complete(self, prompt, tokens, temperature=0, seed=0):
        """The answer to POST /v1/completions. An error of the API raises HTTPError."""
        body = {
            "prompt": prompt, "max_tokens": tokens, "temperature": temperature, "seed": seed, "stop": None,
        }  # fmt: skip
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
            return json.load(answer)

    def tale(self, number, tokens, begin="once upon a time"):
        """The text of one of several requests that differ; every second one is drawn, by its seed."""
        answer = self.complete(
            f"Tale number {number}: {begin}", tokens, 0.8 if number % 2 else 0, number
        )
        return answer["choices"][0]["text"]

    def admin(self, *words, node=None, cwd=None):
        """`troupe admin` of all nodes of the placement file, or of the one with a number."""
        where = ("--placement", self.placement) if node is None else ("--node", self.controls[node])
        return subprocess.run(
            [binary(), "admin", *map(str, (*words, *where))],
            capture_output=True, text=True, timeout=ADMIN_TIMEOUT_S, check=False, cwd=cwd,
        )  # fmt: skip

    def ask(self, *words, node=None):
        """What nodes say of themselves. On a machine that is too busy to answer they are asked again."""
        deadline = time.monotonic() + PATIENCE_S
        while (done := self.admin(*words, "--json", node=node)).returncode != 0:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{words}: {done.stderr}{self.log_text()}")
        return json.loads(done.stdout)

    def change(self, *words, cwd=None):
        """One change of placement to its end; its report."""
        done = self.admin(*words, "--json", cwd=cwd)
        if done.returncode != 0:
            raise RuntimeError(f"{words}: {done.stderr}")
        return json.loads(done.stdout)

    def wait_healthy(self):
        """Until every node says that it serves; the one with the API is ready last of all."""
        wanted = {f"api {self.url}", *(f"admin {control}" for control in self.controls)}
        deadline = time.monotonic() + START_TIMEOUT_S
        while not wanted <= set(self.log_lines()):
            ended = [p.returncode for p in self.processes if p.poll() is not None]
            if ended or time.monotonic() > deadline:
                state = f"a process ended with {ended[0]}" if ended else "not healthy in time"
                raise RuntimeError(f"{state}; log:\n{self.log_text()}")
            time.sleep(0.05)
        self.await_health("serving")

    def log_lines(self):
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def log_text(self):
        """The end of the log, for people."""
        return "\n".join(self.log_lines())[-4000:]

    def logged(self, words):
        return any(words in line for line in self.log_lines())

    def await_logged(self, words):
        deadline = time.monotonic() + PATIENCE_S
        while not self.logged(words):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no {words!r} in the log:\n{self.log_text()}")
            time.sleep(0.05)

    def kill_node(self, i):
        """Kills a process and waits until it is no more, so that its sockets are free."""
        self.processes[i].kill()
        self.processes[i].wait()

    def kill(self):
        """Kills every process, and what it has started."""
        for process in self.processes:
            process.kill()
            for child in session_of(process.pid):
                try:
                    os.kill(child, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def stop(self):
        """Asks every process to end; what is left of its session after the deadline is killed.
        Returns their exit codes."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        self.kill()
        return [process.wait() for process in self.processes]
