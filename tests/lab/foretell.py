# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What is foretold of kernels by their types alone: ``docs/kernels-foretold.json``, of which
``make docs`` makes tables of docs/kernels.md.

Of a kernel whose name docs/kernels-seen.json has, by those of other series only: what was said
before it was booted is held against what came of it.

    python tests/lab/foretell.py                      # the lab's kernels that the cache has
    python tests/lab/foretell.py ubuntu-5.15=vmlinux.h
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import kernels
from archive import cache_folder

from mmscope.drgn.opening.foretold import Has, known, what_it_has
from mmscope.drgn.opening.no_debug_info import NoDebugInfoError

DOCS = Path(__file__).resolve().parents[2] / "docs"
SEEN, FORETOLD = DOCS / "kernels-seen.json", DOCS / "kernels-foretold.json"


def main() -> int:
    """Foretell the kernels whose types are given, and those of the cache."""
    seen: dict[str, Any] = json.loads(SEEN.read_text())
    told: dict[str, Any] = json.loads(FORETOLD.read_text()) if FORETOLD.exists() else {}
    files = {name: Path(file) for name, _, file in (word.partition("=") for word in sys.argv[1:])}
    for name, file in {**in_cache(), **files}.items():
        try:
            told[name] = of_kernel(name, what_it_has(file), seen)
        except NoDebugInfoError as error:
            print(f"{name}: {error}", file=sys.stderr)
    rows = [*(name for name in seen if name in told), *sorted(told.keys() - seen.keys())]
    FORETOLD.write_text(written({name: told[name] for name in rows}))
    return 0


def written(told: dict[str, Any]) -> str:
    """As JSON, a line for each section."""

    def said(what: object) -> str:
        return json.dumps(what, ensure_ascii=False)

    kernels = []
    for name, of in told.items():
        lines = ",\n".join(f"  {said(key)}: {said(row)}" for key, row in of["sections"].items())
        begin = f'{said(name)}: {{"by": {said(of["by"])}, "sections": {{'
        kernels.append(f" {begin}\n{lines}\n }}}}")
    return "{\n" + ",\n".join(kernels) + "\n}\n"


def in_cache() -> dict[str, Path]:
    """The debug info of each stock kernel that the cache has."""
    found = {}
    for name in kernels.stock():
        for release in kernels.releases(kernels.table()["kernels"][name]["release"])[:1]:
            vmlinux = cache_folder() / "kernels" / release / "vmlinux"
            found |= {name: vmlinux} if vmlinux.exists() else {}
    return found


def of_kernel(name: str, has: Has, seen: dict[str, Any]) -> dict[str, Any]:
    """What is foretold of a kernel, and by which others."""
    asked = known()
    of = {each: series(seen[each]["release"]) for each in asked.kernels}
    mine = series(seen[name]["release"]) if name in seen else ""
    without = [each for each in asked.kernels if of[each] == mine]
    sections = asked.foretell(has, without)
    return {
        "by": [each for each in asked.kernels if each not in without],
        "sections": {each.section: [each.status, each.like, each.why[:3]] for each in sections},
    }


def series(release: str) -> str:
    """``7.3`` of a release."""
    found = re.match(r"\d+\.\d+", release)
    return found[0] if found else release


if __name__ == "__main__":
    sys.exit(main())
