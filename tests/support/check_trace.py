"""Checks a trace as a viewer would read it: its schema (tests/e2e/trace_schema.json), slices that
nest on every track, and arrows that start inside a slice and never point backwards.

    python check_trace.py FILE.json
"""

import bisect
import collections
import json
import sys
from decimal import Decimal

from troupe_test import ROOT, need


SCHEMA_EVENTS_MAX = 20000  # a validator takes a millisecond for each


def load(path):
    """Times as decimals: the writer's are exact, and the comparisons below shall be as well."""
    with open(path, encoding="utf-8") as file:
        return json.load(file, parse_float=Decimal)


def check_schema(path):
    """Of a long trace, evenly many events."""
    jsonschema = need("jsonschema")
    schema = json.loads((ROOT / "tests/e2e/trace_schema.json").read_text())
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    events = document.get("traceEvents", [])
    document["traceEvents"] = events[:: len(events) // SCHEMA_EVENTS_MAX + 1]
    error = next(iter(jsonschema.Draft202012Validator(schema).iter_errors(document)), None)
    return f"{error.json_path}: {error.message[:500]}" if error else None


def tracks(document):
    """Slices by track, in time, the longer one first."""
    found = collections.defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["name"]))
    return {place: sorted(slices) for place, slices in found.items()}


def check_nesting(document):
    for place, slices in tracks(document).items():
        ends = []
        for begin, minus_duration, name in slices:
            end = begin - minus_duration
            while ends and ends[-1] <= begin:
                ends.pop()
            if ends and end > ends[-1]:
                return f"track {place}: {name} at {begin} ends after the slice around it"
            ends.append(end)
    return None


def check_names(document):
    named = {
        (event["pid"], event["tid"])
        for event in document["traceEvents"]
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    nameless = [place for place in tracks(document) if place not in named]
    return f"tracks without a name: {nameless}" if nameless else None


def outermost(slices):
    """Begins and ends of the slices that no other contains, of a track that nests."""
    begins, ends = [], []
    for begin, minus_duration, _ in slices:
        if not ends or begin >= ends[-1]:
            begins.append(begin)
            ends.append(begin - minus_duration)
    return begins, ends


def check_arrows(document):
    starts, finishes = {}, {}
    for event in document["traceEvents"]:
        if event["ph"] in "sf":
            ends = starts if event["ph"] == "s" else finishes
            if event["id"] in ends:
                return f"arrow {event['id']} has two ends of one sort"
            ends[event["id"]] = event
    if starts.keys() != finishes.keys():
        return f"{len(starts.keys() ^ finishes.keys())} arrows lack an end"
    outer = {place: outermost(slices) for place, slices in tracks(document).items()}
    for one in starts, finishes:
        for event in one.values():
            begins, ends = outer.get((event["pid"], event["tid"]), ([], []))
            i = bisect.bisect_right(begins, event["ts"]) - 1
            if i < 0 or event["ts"] > ends[i]:
                return f"arrow {event['id']}: no slice around its end at {event['ts']}"
    for key, start in starts.items():
        if finishes[key]["ts"] < start["ts"]:
            return f"arrow {key} of {start['name']} arrives before it was sent"
    return None


def arrows_between_processes(document):
    """Process pairs and how many arrows lead from the first to the second."""
    start = {e["id"]: e["pid"] for e in document["traceEvents"] if e["ph"] == "s"}
    pairs = collections.Counter()
    for event in document["traceEvents"]:
        if event["ph"] == "f" and start[event["id"]] != event["pid"]:
            pairs[start[event["id"]], event["pid"]] += 1
    return pairs


def check(path):
    """None, or a sentence that says what is wrong with the trace."""
    trouble = check_schema(path)
    if trouble:
        return trouble
    document = load(path)
    for test in check_nesting, check_names, check_arrows:
        trouble = test(document)
        if trouble:
            return trouble
    return None


if __name__ == "__main__":
    sys.exit(check(sys.argv[1]))
