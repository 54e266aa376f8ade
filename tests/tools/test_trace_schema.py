"""The made-up trace of tests/tools/trace_sample.c, as a viewer would read it."""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile

import check_trace
from troupe_test import Tap, need

need("jsonschema")
FOLDER = tempfile.TemporaryDirectory(prefix="troupe-trace-")
PATH = pathlib.Path(FOLDER.name) / "trace.json"


def sample():
    return json.loads(subprocess.check_output([sys.argv[1]], timeout=60))


def check(document):
    PATH.write_text(json.dumps(document))
    return check_trace.check(PATH)


def good():
    return check(sample())


def crosses_processes():
    PATH.write_text(json.dumps(sample()))
    pairs = check_trace.arrows_between_processes(check_trace.load(PATH))
    return None if pairs == {(1, 2): 20, (2, 1): 20} else f"arrows: {pairs}"


def notices():
    """The check itself: each of these faults must be found."""
    document = sample()
    events = document["traceEvents"]
    first = {ph: next(i for i, e in enumerate(events) if e["ph"] == ph) for ph in "MXsf"}
    faults = {
        "a second event without a name": lambda e: e[first["X"]].pop("name"),
        "a negative time": lambda e: e[first["X"]].update(ts=-1),
        "an unknown phase": lambda e: e[first["X"]].update(ph="B"),
        "an unknown key": lambda e: e[first["X"]].update(colour="red"),
        "an arrow without an end": lambda e: e.pop(first["f"]),
        "an arrow backwards": lambda e: e[first["f"]].update(ts=0),
        "a slice that does not nest": lambda e: e.append(dict(e[first["X"]], ts=0.5, dur=1e6)),
        "a track without a name": lambda e: e.append(dict(e[first["X"]], tid=999)),
    }
    for name, fault in faults.items():
        broken = copy.deepcopy(document)
        fault(broken["traceEvents"])
        if check(broken) is None:
            return f"{name} was not noticed"
    return None


tap = Tap()
tap.check("a joined trace has the schema, nests, and its arrows point forward", good)
tap.check("its arrows lead from each process to the other", crosses_processes)
tap.check("the check notices what a viewer would stumble over", notices)
tap.done()
