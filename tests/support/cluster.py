"""Starts the nodes of a placement on this machine, for tests, and ends them whatever happens.

    with Cluster(model) as cluster:          # troupe launch: what a user does
        urllib.request.urlopen(cluster.url + "/v1/models")

    with Cluster(model, separate=True) as cluster:   # one troupe node each, as launch would
        cluster.processes[1].kill()

Ports are chosen anew for each cluster; every wait has a deadline.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from troupe_test import binary

START_TIMEOUT_S = int(os.environ.get("TROUPE_TEST_START_S", "60"))
STOP_TIMEOUT_S = 15
REQUEST_TIMEOUT_S = 240
ADMIN_TIMEOUT_S = 120

# A test machine may be small, busy and under a sanitizer; only tests of lost peers want less.
PATIENT = "limits: {peer_timeout: 20 s}\n"


def free_ports(count):
    """Ports that nobody listens on now. Another program can take one before we do, in theory."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


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

    def health(self):
        """HTTP status of GET /health, 0 when nobody answers."""
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

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

    def change(self, *words, cwd=None):
        """One change of placement to its end; its report."""
        done = self.admin(*words, "--json", cwd=cwd)
        if done.returncode != 0:
            raise RuntimeError(f"{words}: {done.stderr}")
        return json.loads(done.stdout)

    def wait_healthy(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.health() != 200:
            ended = [p.returncode for p in self.processes if p.poll() is not None]
            if ended or time.monotonic() > deadline:
                state = f"a process ended with {ended[0]}" if ended else "not healthy in time"
                raise RuntimeError(f"{state}; log:\n{self.log_text()}")
            time.sleep(0.05)

    def log_text(self):
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

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
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        return [process.returncode for process in self.processes]
