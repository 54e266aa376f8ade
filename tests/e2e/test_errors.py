"""What is wrong at the start is one sentence and exit code 1, and nothing is left running."""

import json
import os
import shutil
import signal
import socket
import subprocess

from cluster import free_ports, placement_text
from troupe_test import ROOT, SLOWNESS, Tap, Troupe

MODEL = ROOT / "models" / "tiny-solar-nvfp4"
TIMEOUT_S = 60 * SLOWNESS


def expect_sentence(troupe, arguments, words, table=()):
    process = subprocess.Popen(
        [*troupe.command, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"still running after {TIMEOUT_S} s"
    errors = errors.decode(errors="replace")
    try:
        os.killpg(process.pid, signal.SIGKILL)
        return f"it left a process running\n{errors}"
    except ProcessLookupError:
        pass
    if process.returncode != 1:
        return f"exit code {process.returncode}, expected 1\n{errors}"
    sentences = [line for line in errors.splitlines() if line.startswith("troupe")]
    if not any(all(word in sentence for word in words) for sentence in sentences):
        return f"no sentence names {words}\n{errors}"
    if not all(word in errors for word in table):
        return f"{table} are not in the table\n{errors}"
    return None


def broken_model(troupe, change):
    """A copy of the model whose config is changed; the weights are links."""
    folder = troupe.path / "broken"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for source in MODEL.iterdir():
        (folder / source.name).symlink_to(source)
    config = json.loads((MODEL / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config | change))
    return folder


def main():
    tap, troupe = Tap(), Troupe()
    path = troupe.path / "placement.yaml"

    def launch(words, model=MODEL, ports=None, tail="", text=None, table=()):
        path.write_text(
            text or placement_text(model, "ucx", ports or free_ports(3), 2, tail=tail)
        )
        return expect_sentence(troupe, ["launch", path], words, table)

    def occupied(index, words):
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            ports = free_ports(3)
            ports[index] = holder.getsockname()[1]
            return launch([str(ports[index]), *words], ports=ports)

    tap.check(
        "a placement file that is not there",
        lambda: expect_sentence(troupe, ["launch", troupe.path / "none.yaml"], ["none.yaml"]),
    )
    tap.check(
        "an unknown key, with its line",
        lambda: launch(["placement.yaml:9", "colour"], tail="colour: blue\n"),
    )
    tap.check(
        "a rule for a layer that the model does not have",
        lambda: launch(["experts", "8"], tail="experts:\n  - {node: node0, layers: 8}\n"),
    )
    tap.check("a model that is not there", lambda: launch(["none"], model=troupe.path / "none"))
    tap.check(
        "a tensor whose shape is not the config's",
        lambda: launch(["256"], model=broken_model(troupe, {"hidden_size": 512})),
    )
    tap.check("the HTTP port is in use", lambda: occupied(2, ["in use"]))
    tap.check("a control port is in use", lambda: occupied(0, ["in use"]))
    tap.check(
        "a budget that does not admit the model",
        lambda: launch(
            ["node0"],
            text=placement_text(MODEL, "ucx", free_ports(3), 2, ["memory: 4 MiB"]),
            table=["kv pages", "runtime", "transport", "front end", "4 MiB\n", "too much by"],
        ),
    )
    # A billion tokens of state take more than any machine has, and nothing of it is tried.
    tap.check(
        "no budget in the file, and a model that does not fit in what is free",
        lambda: launch(
            ["node0", "kv pages"],
            tail="limits: {cache_tokens: 1000000000}\n",
            table=["kv pages", "of 90 % of what was free, shared by 2 nodes", "too much by"],
        ),
    )
    tap.done()


main()
