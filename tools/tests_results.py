"""Reads what a meson test run left: prints "PASSED FAILED SKIPPED", and says which programs failed.

    tools/tests_results.py build/meson-logs failures.txt

Each cmocka test inside a program counts, and so does each program that reports nothing finer. A failed
program is appended to failures.txt with the end of its output.
"""

import json
import pathlib
import sys
import xml.etree.ElementTree as ElementTree

LAST_LINES = 30


def count(path):
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def failed_programs(path):
    programs = map(json.loads, path.read_text(errors="replace").splitlines())
    return [program for program in programs if program["result"] not in ("OK", "SKIP")]


def report(program):
    lines = [f"{program['name']}: {program['result']} after {program['duration']:.0f} s"]
    for stream in ("stdout", "stderr"):
        lines += [f"    {text}" for text in program.get(stream, "").splitlines()[-LAST_LINES:]]
    return "".join(f"{line}\n" for line in lines)


def main():
    logs = pathlib.Path(sys.argv[1])
    passed, failed, skipped = count(logs / "testlog.junit.xml")
    programs = failed_programs(logs / "testlog.json")
    # One that crashed or hung after its last result has failed without saying which one.
    print(passed, max(failed, len(programs)), skipped)
    with open(sys.argv[2], "a", encoding="utf-8") as out:
        out.writelines(map(report, programs))


if __name__ == "__main__":
    main()
