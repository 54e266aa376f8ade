#!/usr/bin/env python3
"""Packs folders of small models into one archive that tests unpack (tests/support/golden_models.py).

    tools/golden/pack_models.py tests/golden/models.tar.xz FOLDER

FOLDER holds one folder for each model. Equal files are stored once. The same files give the same
archive, byte for byte. To change one model: unpack, change, pack again.
"""

import hashlib
import lzma
import pathlib
import sys
import tarfile

# Weights are two and four bytes wide: that many literal contexts are worth 7 %.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 2, "pb": 2}]


def pack(archive, folder):
    first = {}
    with lzma.open(archive, "wb", filters=FILTERS) as xz, tarfile.open(
        fileobj=xz, mode="w", format=tarfile.GNU_FORMAT
    ) as tar:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            content = path.read_bytes()
            digest = hashlib.sha256(content).digest()
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            if digest in first:
                member.type, member.linkname = tarfile.LNKTYPE, first[digest]
                tar.addfile(member)
            else:
                first[digest] = member.name
                member.size = len(content)
                with path.open("rb") as file:
                    tar.addfile(member, file)


pack(sys.argv[1], pathlib.Path(sys.argv[2]))
