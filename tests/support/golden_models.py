"""The small models of tests/golden/*.tar.xz, unpacked.

The build unpacks them once, for tests in C and in Python:

    golden_models.py FOLDER STAMP ARCHIVE...
"""

import os
import pathlib
import shutil
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def unpack(folder, archives):
    shutil.rmtree(folder, ignore_errors=True)
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    for archive in archives:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, **safely)


def models_folder(scratch):
    """Where the models are: what the build unpacked (TROUPE_GOLDEN_MODELS), else below scratch."""
    built = os.environ.get("TROUPE_GOLDEN_MODELS")
    if built:
        return pathlib.Path(built).resolve()
    folder = pathlib.Path(scratch) / "models"
    unpack(folder, sorted((ROOT / "tests" / "golden").glob("*.tar.xz")))
    return folder


if __name__ == "__main__":
    unpack(pathlib.Path(sys.argv[1]), sys.argv[3:])
    pathlib.Path(sys.argv[2]).touch()
