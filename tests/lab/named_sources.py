# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make sources``: whether what findings name as their source is in that file of that kernel.

Read are Debian's packages of the kernels' source, each unpacked and removed again: 1.6 GB of disk.
What is named by a commit instead of a release is counted, and not looked at.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from archive import LabError, cache_folder
from own_kernel import fetch_source, unpack_source

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


def absent(tree: Path, wanted: list[tuple[str, str, str]]) -> list[str]:
    """What of (finding, file, name) the tree of a kernel does not have."""
    lacking = []
    for finding, file, name in wanted:
        path = tree / file
        if not path.is_file():
            lacking.append(f"{finding}: no file {file}")
        elif not re.search(rf"\b{re.escape(name)}\b", path.read_text(errors="replace")):
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
        folder = Path(tempfile.mkdtemp(prefix="source-", dir=cache_folder()))
        try:
            package = [rf"linux-source-{re.escape(kernel)}"]
            version, deb = fetch_source(kernel, package, SUITES[kernel], folder, lambda _: None)
            lacking = absent(unpack_source(deb, folder, lambda _: None), names)
            print(f"{kernel} ({version}): {len(names)} names, {len(lacking)} absent", flush=True)
        except LabError as error:
            lacking = [f"not looked at: {error}"]
            print(f"{kernel}: not looked at")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for line in lacking:
            print(f"  {line}")
        failed |= bool(lacking)
    print(f"by a commit, not looked at: {sum(others.values())}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
