"""--help of every command of the real binary: it answers, its example begins with troupe, and every
option that it shows, and every one of its example, is one that the command takes."""

import re
import shlex
import subprocess

from troupe_test import Tap, binary


def troupe(*arguments):
    return subprocess.run([binary(), *arguments], capture_output=True, text=True, timeout=60, check=False)


def help_of(*arguments):
    done = troupe(*arguments, "--help")
    if done.returncode != 0 or done.stderr:
        raise RuntimeError(f"{' '.join(arguments)} --help: exit code {done.returncode}: {done.stderr}")
    return done.stdout


def commands():
    section = help_of().split("Commands:\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in section.splitlines()]


def check_example(command, text):
    example = text.split("\nExample:\n")[1].strip().splitlines()
    lines = [line.strip() for line in example if line.strip().startswith(f"troupe {command} ")]
    if not lines:
        return f"no line of the example begins with 'troupe {command}': {example}"
    for line in lines:
        if help_of(*shlex.split(line)[1:]) != text:
            return f"'{line} --help' prints something else"
    return None


def check_options(command, text):
    """Those before --help have been parsed when it answers."""
    rows = text.split("\nOptions:\n")[1].split("\n\nExample:")[0].splitlines()
    given = []
    for row in rows:
        shown = re.match(r"  (?:-(\w), |    )--([a-z-]+)(?: ([A-Z.a-z]+))?(?: {2,}|$)", row[:30].ljust(32))
        if not shown:
            return f"not understood: {row}"
        letter, name, argument = shown.groups()
        if name == "help":
            continue
        for option in [f"--{name}", *([f"-{letter}"] if letter else [])]:
            given += [option, *(["1"] if argument else [])]
    if help_of(command, *given) != text:
        return f"{given} --help prints something else"
    wrong = troupe(command, "--no-such-option", "--help")
    return None if wrong.returncode == 2 else f"an unknown option gives exit code {wrong.returncode}"


def main():
    tap = Tap()
    names = commands()
    tap.check("there are commands", lambda: None if len(names) >= 9 else f"{names}")
    for name in names:
        text = help_of(name)
        tap.check(
            f"{name}: --help says how it is used",
            lambda: None if f"\nUsage: troupe {name} " in text else text,
        )
        tap.check(f"{name}: the example is one", lambda: check_example(name, text))
        tap.check(f"{name}: its options parse", lambda: check_options(name, text))
    tap.done()


main()
