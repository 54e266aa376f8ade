"""The admin and trace commands against two made-up nodes (tests/api/fake_node.c): what people see,
what --json says, and what happens when a node is not there.

    python test_admin.py FAKE_NODE
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import check_trace
from troupe_test import ROOT, Tap, binary

FOLDER = tempfile.TemporaryDirectory(prefix="troupe-admin-")
PATH = pathlib.Path(FOLDER.name)
MODEL = ROOT / "models" / "tiny-solar-nvfp4"


class Nodes:
    """Two nodes that know each other."""

    number = 0

    def __enter__(self):
        Nodes.number += 1
        self.urls = [f"ipc://{PATH}/{Nodes.number}.{i}" for i in range(2)]
        self.placement = PATH / f"{Nodes.number}.yaml"
        self.placement.write_text(
            "model: m\nnodes:\n"
            + "".join(f"  - {{name: spark{i + 1}, control: '{self.urls[i]}'}}\n" for i in range(2))
        )
        self.processes = []
        for i in range(2):  # one after the other: the second receives what the first sent
            process = subprocess.Popen(
                [sys.argv[1], *self.urls, str(i), str(MODEL)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self.processes.append(process)
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError("a made-up node did not start")
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()


def troupe(*arguments):
    return subprocess.run(
        [binary(), *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def expect(done, code, *parts, stream="stdout"):
    text = getattr(done, stream)
    if done.returncode != code:
        return f"exit code {done.returncode}, expected {code}: {done.stdout}{done.stderr}"
    for part in parts:
        if part not in text:
            return f"'{part}' is not in:\n{text}"
    return None


def status(nodes):
    one = expect(
        troupe("admin", "status", "--node", nodes.urls[0]),
        0,
        "spark1: serving",
        "(solar_open2), 8 layers, context 4096 tokens",
        "http://127.0.0.1:8888",
        "2 running of 16",
        "0 read, 777 generated, in 1000 steps",
        "1.0 GiB of 2 GiB",
        "expert weights",
        "spark2               alive  posix               -1.5 us       183.0 us",
    )
    both = expect(
        troupe("admin", "status", "--placement", nodes.placement),
        0,
        "spark1: serving",
        "spark2: serving",
    )
    return one or both


def status_json(nodes):
    done = troupe("admin", "status", "--placement", nodes.placement, "--json")
    answers = json.loads(done.stdout)["nodes"]
    found = [
        (a["ok"], a["node"], a["health"], a["memory"]["limit_bytes"], a["stats"]["steps"], a["url"])
        for a in answers
    ]
    wanted = [(True, f"spark{i + 1}", "serving", 2**31, 1000, nodes.urls[i]) for i in range(2)]
    return None if found == wanted and done.returncode == 0 else f"found {found}"


def actors(nodes):
    done = troupe("admin", "actors", "--node", nodes.urls[0], "--node", nodes.urls[1])
    trouble = expect(done, 0, "spark1\n", "echo@spark1", "echo@spark2", "mailbox", "received")
    if trouble:
        return trouble
    done = troupe("admin", "actors", "--node", nodes.urls[1], "--json")
    (answer,) = json.loads(done.stdout)["nodes"]
    rows = [(a["name"], a["kind"], a["failed"]) for a in answer["actors"]]
    return None if rows == [("echo@spark2", "echo", False)] else f"found {rows}"


def trace(nodes):
    path = PATH / "trace.json"
    done = troupe("trace", "dump", "-o", path, "--node", nodes.urls[0])
    trouble = expect(done, 0, "2 nodes", "10 arrows") or check_trace.check(path)
    if trouble:
        return trouble
    document = check_trace.load(path)
    pairs = check_trace.arrows_between_processes(document)
    if pairs != {(1, 2): 10}:
        return f"arrows: {pairs}"
    names = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    missing = {"echo@spark1", "echo@spark2", "thread fake"} - names
    return f"no track {missing}" if missing else None


def one_is_missing(nodes):
    nodes.processes[1].kill()
    nodes.processes[1].wait()
    path = PATH / "half.json"
    done = troupe("admin", "status", "--placement", nodes.placement, "--json")
    answers = json.loads(done.stdout)["nodes"]
    if done.returncode != 1 or [a["ok"] for a in answers] != [True, False]:
        return f"exit code {done.returncode}: {answers}"
    if "nobody answers" not in answers[1]["error"]:
        return f"error: {answers[1]['error']}"
    done = troupe("trace", "dump", "-o", path, "--placement", nodes.placement)
    trouble = expect(done, 1, "spark2 is missing in the trace", stream="stderr")
    return trouble or check_trace.check(path)


def shutdown(nodes):
    trouble = expect(
        troupe("admin", "shutdown", "--placement", nodes.placement),
        0,
        "spark1 shuts down",
        "spark2 shuts down",
    )
    codes = [process.wait(20) for process in nodes.processes]
    return trouble or (None if codes == [0, 0] else f"exit codes {codes}")


def not_utf8():
    """The command line may hold any bytes, and what is said about them comes back."""
    done = subprocess.run(
        [binary(), "admin", "status", "--json", "--node", b"smoke://\xff"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    answers = json.loads(done.stdout)["nodes"]
    if done.returncode != 1 or len(answers) != 1:
        return f"exit code {done.returncode}: {answers}"
    found = (answers[0]["ok"], answers[0]["url"], "smoke://?" in answers[0]["error"])
    return None if found == (False, "smoke://?", True) else f"found {answers}"


def nobody():
    done = troupe("admin", "status", "--node", f"ipc://{PATH}/nobody")
    return expect(done, 1, "nobody answers there", stream="stderr")


def wrong_usage():
    rows = [
        (["admin"], 2, "something is missing"),
        (["admin", "stats"], 2, "'stats' is nothing to ask nodes for"),
        (["admin", "status", "--node", "a", "--placement", "b"], 2, "exclude each other"),
        (["admin", "status", "--placement", "/nonexistent.yaml"], 1, "No such file"),
        (["admin", "status", "--node", "smoke://signal"], 1, "smoke://signal"),
        (["trace", "dump"], 2, "-o FILE is missing"),
        (["trace", "show", "-o", "x"], 2, "'show' is not dump"),
    ]
    for arguments, code, part in rows:
        trouble = expect(troupe(*arguments), code, part, stream="stderr")
        if trouble:
            return f"{arguments}: {trouble}"
    return None


def unwritable():
    with Nodes() as nodes:
        done = troupe("trace", "dump", "-o", "/nonexistent/t.json", "--node", nodes.urls[0])
        return expect(done, 1, "/nonexistent/t.json: No such file", stream="stderr")


def with_nodes(test):
    def run():
        with Nodes() as nodes:
            return test(nodes)

    return run


tap = Tap()
tap.check("status shows health, model, requests, memory and peers", with_nodes(status))
tap.check("status --json has one object for each node", with_nodes(status_json))
tap.check("actors lists the actors of each node that is named", with_nodes(actors))
tap.check("a trace joins all nodes that the first one knows", with_nodes(trace))
tap.check("a node that is gone is named, the others are shown", with_nodes(one_is_missing))
tap.check("shutdown ends every node of the placement", with_nodes(shutdown))
tap.check("nobody at the address is one sentence and exit code 1", nobody)
tap.check("--json stays JSON, whatever bytes are said", not_utf8)
tap.check("wrong usage is a sentence that names it", wrong_usage)
tap.check("a trace that cannot be written is one sentence and exit code 1", unwritable)
tap.done()
