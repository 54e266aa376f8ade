"""Checkpoints that are wrong on purpose, given to the command as a user would give them.

Goal: each is refused within seconds, with exit code 1 and one sentence on standard error that names the
file and what is wrong in it; no signal, no hang, no memory beyond a bound. Method: cases are made from the
small golden models, one part of one file changed; each is opened by `troupe run`, which loads all of it,
and those that are wrong in their headers also by `troupe inspect`.

    test_hostile.py [--sanitized] [WORD]    only the cases with WORD in their names
"""

import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import config_cases
import family_cases
import gguf_cases
import quantized_cases
import safetensors_cases
import text_cases
from golden_models import models_folder
from troupe_test import Tap, binary

TEXT = "ha" * 500 + "!"  # long enough for a pattern that tries everything
CASES_MIN = 300  # what the project promises
SECONDS, SECONDS_SANITIZED = 10, 120  # none takes one on an idle machine; a hang fails
ADDRESS_SPACE = 4 << 30  # most of it is what libraries reserve
RESIDENT = 512 << 20  # bytes, of a process that opens a model of half a megabyte
LOGGED = re.compile(r"\d\d:\d\d:\d\d\.\d+ (info|warn) ")  # what looks odd, said before the verdict
# A sentence about a tensor says what it should have been, or which bound it breaks.
EXPECTATION = re.compile(r"expected|, the file has \d+|, where the index puts it")
RESIDENT_SANITIZED = 1 << 30  # shadow memory and freed blocks count


# Starts what follows with little address space, and without a core file.
LIMITED = ["sh", "-c", f'ulimit -c 0; ulimit -v {ADDRESS_SPACE >> 10}; exec "$0" "$@"']


class Runner:
    def __init__(self, scratch, sanitized):
        self.scratch, self.sanitized = scratch, sanitized
        self.limits = [] if sanitized else LIMITED  # a sanitizer reserves terabytes
        self.seconds = SECONDS_SANITIZED if sanitized else SECONDS
        self.ids = scratch / "ids.txt"
        self.ids.write_text("1 5 7\n")
        self.largest = 0

    def command(self, case, model):
        options = {"ids": ["--ids", self.ids, "--no-text"], "text": ["-p", TEXT], "chat": ["--chat", "-p", "hi"]}
        return ["run", model, *options[case.how], "-n", "1"]

    def execute(self, arguments):
        """(exit code, standard error, largest resident set in bytes)"""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = subprocess.Popen(
                [*self.limits, binary(), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
            timer = threading.Timer(self.seconds, child.kill)
            timer.start()
            _, status, usage = os.wait4(child.pid, 0)
            timer.cancel()
            child.returncode = os.waitstatus_to_exitcode(status)
            err.seek(0)
            return child.returncode, err.read(), usage.ru_maxrss << 10

    def refusal(self, case, arguments):
        """What is wrong with how it was refused, or None."""
        code, err, resident = self.execute(arguments)
        self.largest = max(self.largest, resident)
        text = err.decode(errors="replace")
        lines = [line for line in text.split("\n") if line and not LOGGED.match(line)]
        bound = RESIDENT_SANITIZED if self.sanitized else RESIDENT
        said = lines[-1] if lines else ""
        trouble = []
        if code == -signal.SIGKILL:
            trouble.append(f"killed, or not done after {self.seconds} s")
        elif code != 1:
            trouble.append(f"exit code {code}, expected 1")
        if len(lines) != 1 or not said.startswith("troupe: ") or re.search(r"[\x00-\x1f\x7f]", said):
            trouble.append(f"{len(lines)} lines, expected one that begins with 'troupe: '")
        trouble += [f"{name!r} is not named" for name in case.names if name not in said]
        if ": tensor " in said and not EXPECTATION.search(said):
            trouble.append("it does not say what was expected")
        if resident > bound:
            trouble.append(f"{resident >> 20} MiB resident, expected at most {bound >> 20}")
        return f"troupe {arguments[0]}: {'; '.join(trouble)}: {text[-1500:]}" if trouble else None

    def __call__(self, case):
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.scratch))
        try:
            model = case.write(folder)
            commands = [self.command(case, model)]
            if case.headers and case.how == "ids" and not self.sanitized:
                commands.append(["inspect", model])
            return next(filter(None, (self.refusal(case, c) for c in commands)), None)
        except Exception as error:  # it is this case's failure
            return f"{type(error).__name__}: {error}"
        finally:
            shutil.rmtree(folder)


def main():
    words = [a for a in sys.argv[1:] if not a.startswith("--")]
    tap = Tap()
    with tempfile.TemporaryDirectory(prefix="troupe-hostile-") as scratch:
        models = models_folder(scratch)
        runner = Runner(pathlib.Path(scratch), "--sanitized" in sys.argv)
        sources = (safetensors_cases, quantized_cases, gguf_cases, config_cases, text_cases, family_cases)
        cases = [case for source in sources for case in source.cases(models)]
        twice = [n for n, count in collections.Counter(c.name for c in cases).items() if count > 1]
        tap.check("the names of cases differ", lambda: f"twice: {twice}" if twice else None)
        tap.check(
            f"{CASES_MIN} cases or more",
            lambda: None if len(cases) >= CASES_MIN else f"{len(cases)} cases",
        )
        cases = [c for c in cases if all(w in c.name for w in words)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for case, trouble in zip(cases, pool.map(runner, cases)):
                tap.check(case.name, lambda trouble=trouble: trouble)
        print(f"# {len(cases)} hostile models, at most {runner.largest >> 20} MiB resident")
    tap.done()


main()
