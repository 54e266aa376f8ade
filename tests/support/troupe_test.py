"""What the tests in Python share: running build/troupe, comparing, and reporting in TAP.

meson sets TROUPE_BINARY, and TROUPE_TEST_SLOWNESS for builds with a sanitizer. A test that lacks a
package, a file or a processor is skipped; under tools/check (TROUPE_CHECK=1) it fails instead, because
there nothing may be missing.
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.error

ROOT = pathlib.Path(__file__).resolve().parents[2]
# By how much deadlines are longer than in a plain build, where promises in seconds must hold.
SLOWNESS = int(os.environ.get("TROUPE_TEST_SLOWNESS", "1"))
TIMEOUT_S = int(os.environ.get("TROUPE_TEST_TIMEOUT_S", 300 * SLOWNESS))


def skip_all(reason, forbidden=False):
    """forbidden: by the machine, which no setup step can mend; then tools/check counts it as skipped."""
    if os.environ.get("TROUPE_CHECK") and not forbidden:
        print(f"Bail out! {reason}")
        sys.exit(1)
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)


def need(module):
    """The imported module, or the end of the test."""
    try:
        return importlib.import_module(module)
    except ImportError:
        skip_all(f"the Python package {module} is not installed (tools/setup check)")



def binary():
    return os.environ.get("TROUPE_BINARY", str(ROOT / "build" / "troupe"))


class Troupe:
    """Runs the command in a scratch folder. wrapper: what stands before it (an emulator)."""

    def __init__(self, command=None, wrapper=()):
        self.command = [*wrapper, command or binary()]
        self.folder = tempfile.TemporaryDirectory(prefix="troupe-test-")
        self.path = pathlib.Path(self.folder.name)

    def execute(self, *arguments):
        """Standard output and standard error; raises with the latter when the exit code is not 0."""
        done = subprocess.run(
            [*self.command, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"troupe {' '.join(map(str, arguments))}: exit code {done.returncode}: "
                + done.stderr.decode(errors="replace")[-2000:]
            )
        return done.stdout.decode(), done.stderr.decode()

    def run(self, *arguments):
        return self.execute(*arguments)[0]

    def said(self, *arguments):
        """The lines of its log and other remarks."""
        return self.execute(*arguments)[1].splitlines()

    def ids_file(self, ids):
        path = self.path / "ids.txt"
        path.write_text(" ".join(str(int(i)) for i in ids) + "\n")
        return path

    def logits_bytes(self, model, ids, *options):
        out = self.path / "logits.bin"
        out.unlink(missing_ok=True)
        self.run("logits", model, "--ids", self.ids_file(ids), "--out", out, *options)
        return out.read_bytes()

    def logits(self, model, ids, *options):
        """float32 [len(ids), vocabulary]"""
        numpy = need("numpy")
        flat = numpy.frombuffer(self.logits_bytes(model, ids, *options), "<f4")
        return flat.reshape(len(ids), -1)

    def greedy(self, model, ids, count):
        """Token ids of a greedy continuation that no stop token ends."""
        text = self.run(
            "run", model, "--ids", self.ids_file(ids), "-n", count,
            "--temperature", "0", "--no-stop", "--no-text", "--json",
        )  # fmt: skip
        return json.loads(text)["tokens"]

    def perplexity(self, model, text, window):
        out = self.run("perplexity", model, "--text", text, "--window", window, "--json")
        return json.loads(out)["perplexity"]


class Tap:
    """Counts checks and prints them as TAP. A check that raises has failed; the others go on."""

    def __init__(self):
        self.count = 0
        self.failed = 0

    def check(self, name, test):
        """test() returns None when all is well, otherwise a sentence that says what is not."""
        self.count += 1
        try:
            trouble = test()
        except Exception as error:  # whatever it is, it is this check's failure
            trouble = f"{type(error).__name__}: {error}"
            if isinstance(error, urllib.error.HTTPError):
                trouble += f": {error.read(2000).decode(errors='replace')}"
        if trouble is None:
            print(f"ok {self.count} - {name}", flush=True)
            return
        self.failed += 1
        print(f"not ok {self.count} - {name}")
        for line in str(trouble).splitlines():
            print(f"# {line}", flush=True)
            print(f"{name}: {line}", file=sys.stderr, flush=True)  # meson shows only this of a TAP test

    def done(self):
        print(f"1..{self.count}")
        sys.exit(1 if self.failed else 0)


def difference(found, expected, bound, names=("row norm", "largest element")):
    """Relative errors of rows [T, N] in float64: per row the norm of the difference over the norm of
    the reference, and over all rows the largest difference over the largest element. A sentence when
    either is not below the bound, else None."""
    numpy = need("numpy")
    if found.shape != expected.shape:
        return f"shape {found.shape}, expected {expected.shape}"
    found, expected = found.astype(numpy.float64), expected.astype(numpy.float64)
    if not numpy.isfinite(found).all():
        return "the logits contain NaN or infinity"
    rows = numpy.linalg.norm(found - expected, axis=1) / numpy.linalg.norm(expected, axis=1)
    element = numpy.abs(found - expected).max() / numpy.abs(expected).max()
    print(f"# {names[0]} {rows.max():.2e} (row {rows.argmax()}), {names[1]} {element:.2e}")
    if rows.max() < bound and element < bound:
        return None
    return f"{names[0]} {rows.max():.3e}, {names[1]} {element:.3e}, expected below {bound:g}"


def same_tokens(found, expected):
    if list(found) == list(expected):
        return None
    for i, (a, b) in enumerate(zip(found, expected)):
        if a != b:
            return f"token {i} is {a}, expected {b}"
    return f"{len(found)} tokens, expected {len(expected)}"
