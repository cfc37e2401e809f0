# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make sources``: whether what findings name as their source is in that file of that kernel.

Read are Debian's packages of the kernels' source, each fetched and removed again.
What is named by a commit instead of a release is counted, and not looked at.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from archive import LabError, cache_folder
from own_kernel import fetch_source

from mmscope.reports.findings.question import OURS

# The suites that have a release's source, the one that keeps it last.
SUITES = {
    "5.10": ["bullseye"],
    "6.1": ["bookworm"],
    "6.12": ["trixie"],
    "7.2": ["trixie-backports", "sid"],
    "7.3": ["sid", "experimental"],
}
NAMED = re.compile(r"(?P<file>[\w./-]+): (?P<names>.*) \((?P<kernels>[^()]*)\)")


def named() -> Iterator[tuple[str, str, str, str]]:
    """(finding, kernel or commit, file, name) of all sources, a function's without parentheses."""
    for question in OURS():
        for source in question.sources:
            found = NAMED.fullmatch(source)
            if found is None:
                raise ValueError(f"{question.id}: not a source: {source}")
            for kernel in found["kernels"].split(", "):
                for name in found["names"].split(", "):
                    yield question.id, kernel, found["file"], name.removesuffix("()")


def files_of(deb: Path, wanted: set[str]) -> dict[str, str]:
    """The files of a package with a kernel's source that are wanted, by name."""
    found = {}
    # One file of note: the source, packed once more.
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as package,
    ):
        packed = next(one for one in package if one.name.endswith(".tar.xz"))
        with tarfile.open(fileobj=package.extractfile(packed), mode="r|xz") as tree:
            for one in tree:
                name = one.name.partition("/")[2]
                if name in wanted and (file := tree.extractfile(one)):
                    found[name] = file.read().decode(errors="replace")
        for _ in package:  # or dpkg-deb complains of a closed pipe
            pass
    return found


def absent(files: dict[str, str], wanted: list[tuple[str, str, str]]) -> list[str]:
    """What of (finding, file, name) a kernel's files do not have."""
    lacking = []
    for finding, file, name in wanted:
        if file not in files:
            lacking.append(f"{finding}: no file {file}")
        elif not re.search(rf"\b{re.escape(name)}\b", files[file]):
            lacking.append(f"{finding}: no {name} in {file}")
    return lacking


def main() -> int:
    """A line for each kernel, and one for each name that is not where it is said to be."""
    wanted: dict[str, list[tuple[str, str, str]]] = {kernel: [] for kernel in SUITES}
    others: Counter[str] = Counter()
    for finding, kernel, file, name in named():
        if kernel in wanted:
            wanted[kernel].append((finding, file, name))
        else:
            others[kernel] += 1
    failed = False
    for kernel, names in wanted.items():
        package = [rf"linux-source-{re.escape(kernel)}"]
        try:
            with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
                version, deb = fetch_source(
                    kernel, package, SUITES[kernel], Path(folder), lambda _: None
                )
                lacking = absent(files_of(deb, {file for _, file, _ in names}), names)
            print(f"{kernel} ({version}): {len(names)} names, {len(lacking)} absent", flush=True)
        except LabError as error:
            lacking = [f"not looked at: {error}"]
            print(f"{kernel}: not looked at")
        for line in lacking:
            print(f"  {line}")
        failed |= bool(lacking)
    print(f"by a commit, not looked at: {sum(others.values())}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
