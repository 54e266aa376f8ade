"""Adds up the results of a meson test run: prints "PASSED FAILED SKIPPED".

    tools/tests_count.py build/meson-logs/testlog.junit.xml

Each cmocka test inside a program counts, and so does each program that reports nothing finer.
"""

import sys
import xml.etree.ElementTree as ElementTree


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


if __name__ == "__main__":
    print(*count(sys.argv[1]))
