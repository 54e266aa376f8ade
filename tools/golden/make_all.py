#!/usr/bin/env python3
"""Makes every golden file of tests/ again, or compares what it would make with what is committed.

    make_all.py [--check] [STEP..]     all steps without a name

Run it with the Python of an environment with requirements.txt. --check changes nothing: files must be equal byte for
byte, records of floats (golden.safetensors, states, .npz) within 1e-4 of the largest element, since they depend on the processor.
The models of models.tar.xz are given; their records are compared with the reference even without --check.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap

import numpy
from family_models import compare
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = ROOT / "tests"
DATA, GOLDEN = TESTS / "model/data", TESTS / "golden"
SOLAR = ROOT / "models/tiny-solar-nvfp4"


def run(program, *arguments):
    subprocess.run([sys.executable, HERE / program, *arguments], check=True)


def smollm2():
    found = subprocess.run([ROOT / "tools/fetch_smollm2"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def unpacked(name, folder):
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


# -- steps: each fills a folder with what belongs into tests/; a folder NAME there stands for NAME.tar.xz --


def vectors(out):
    run("given_vectors.py", DATA, out / "model/data")


def ids(out):
    """A prompt for the command line: the first tokens of a record of tiny-solar."""
    tokens = load_file(str(SOLAR / "golden.safetensors"))["passkey.input_ids"][:150]
    text = textwrap.fill(" ".join(str(token) for token in tokens), 96)
    (out / "golden/ids.txt").write_text(text + "\n")


def gguf_blocks(out):
    run("gguf_blocks.py", out / "model/data/gguf_blocks.txt")


def gguf_types(out):
    run("gguf_types.py", out / "golden/models_gguf")


def models(out):
    for folder in sorted(unpacked("models", out / "given").iterdir()):
        run("family_models.py", "record", folder, "--check")
    shutil.rmtree(out / "given")


def models_own(out):
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        own, given = unpacked("models_own", scratch / "own"), unpacked("models", scratch / "given")
        (out / "golden/models_own").mkdir()
        run("own_models.py", own, given, out / "golden/models_own")


def states(out):
    """The other half of the records of quantised folders."""
    target = out / "golden/states/states"
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folders = unpacked("models_own", unpacked("models", scratch / "models"))
        for folder in sorted(folders.glob("*-ct")):
            name = folder.name.removesuffix("-ct")
            run("family_models.py", "states", folder, target / f"{name}-nvfp4.safetensors")
        for folder in sorted(folders.glob("*-gguf-*")):
            name, kind = folder.name.split("-gguf-")
            values = scratch / folder.name
            run("gguf_models.py", folders / name, scratch / "model.gguf", "--experts", kind.upper(),
                "--dequantised", values)  # fmt: skip
            shutil.copy(folder / "golden.safetensors", values)
            run("family_models.py", "states", values, target / f"{folder.name}.safetensors")


def tokenizer_cases(out):
    run("tokenizer_golden.py", SOLAR / "tokenizer.json", smollm2(), out / "model/data/tokenizer_cases.json")


def tokenizer_features(out):
    run("tokenizer_features.py", out / "model/data/tokenizer_features.json")


def tokenizer_families(out):
    name = "model/data/tokenizer_families.json"
    run("tokenizer_families.py", DATA / "tokenizer_cases.json", out / name, TESTS / name)


def chat_templates(out):
    run("chat_template_golden.py", SOLAR / "chat_template.jinja", smollm2(),
        out / "model/data/chat_template_cases.json")  # fmt: skip


def smollm2_greedy(out):
    run("smollm2_llamacpp.py", smollm2(), out / "golden/smollm2_greedy.json")


def smollm2_logits(out):
    run("smollm2_logits.py", smollm2(), GOLDEN / "smollm2_greedy.json", out / "golden/smollm2_logits.npz")


STEPS = {step.__name__: step for step in (
    vectors, ids, gguf_blocks, gguf_types, models, models_own, states, tokenizer_cases,
    tokenizer_features, tokenizer_families, chat_templates, smollm2_greedy, smollm2_logits)}  # fmt: skip


# -- comparing and keeping --


def same(made, old):
    if made.read_bytes() == old.read_bytes():
        return True
    if made.suffix == ".safetensors" and (made.stem == "golden" or made.parent.name == "states"):
        return compare(load_file(str(made)), load_file(str(old)))
    if made.suffix == ".npz":
        return compare(dict(numpy.load(made)), dict(numpy.load(old)))
    return False


def files_of(folder):
    return {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}


def check(out, old):
    """Compares what a step made with what is committed. Returns how many files differ."""
    wrong = 0
    made = files_of(out)
    for archive in (path for path in (out / "golden").iterdir() if path.is_dir()):
        unpacked(archive.name, old / archive.name)
        made = {name: path for name, path in made.items() if archive not in path.parents}
        theirs = files_of(old / archive.name)
        ours = files_of(archive)
        for name in sorted(ours.keys() ^ theirs.keys()):
            print(f"{archive.name}/{name}: only {'made' if name in ours else 'committed'}")
            wrong += 1
        for name in sorted(ours.keys() & theirs.keys()):
            if not same(ours[name], theirs[name]):
                print(f"{archive.name}/{name}: differs")
                wrong += 1
    for name, path in sorted(made.items()):
        if not same(path, TESTS / name):
            print(f"{name}: differs")
            wrong += 1
    return wrong


def keep(out):
    for path in (out / "golden").iterdir():
        if path.is_dir():
            run("pack_models.py", GOLDEN / f"{path.name}.tar.xz", path)
            shutil.rmtree(path)
    shutil.copytree(out, TESTS, dirs_exist_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=" ".join(STEPS))
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.steps if name not in STEPS]
    if unknown:
        parser.error(f"{unknown[0]} is no step; there are {' '.join(STEPS)}")
    results = {}
    for name in arguments.steps or STEPS:
        with tempfile.TemporaryDirectory() as scratch:
            out = pathlib.Path(scratch) / "out"
            (out / "golden").mkdir(parents=True)
            (out / "model/data").mkdir(parents=True)
            try:
                STEPS[name](out)
                if arguments.check:
                    wrong = check(out, pathlib.Path(scratch) / "old")
                    results[name] = f"{wrong} files differ" if wrong else "as committed"
                else:
                    keep(out)
                    results[name] = "made"
            except subprocess.CalledProcessError as error:
                results[name] = f"failed: {pathlib.Path(str(error.cmd[-1 if len(error.cmd) == 1 else 1])).name}"
        print(f"== {name}: {results[name]}", flush=True)
    good = all(result in ("made", "as committed") for result in results.values())
    print(json.dumps(results, indent=1))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
