# SPDX-License-Identifier: LGPL-2.1-or-later
"""
What a lake costs: adding bundles, and asking all of them every finding.

``bench_lake.py [HOSTS…]``, default 100 and 1,000. The bundles are those of the made hosts, healthy
and sick, copied under other names: many hosts of few kinds. Memory is the largest of any process.
"""

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent)]

from test_made_hosts import HEALTHY, SICK  # noqa: E402

from mmscope.reports.findings.findings import load_questions  # noqa: E402
from mmscope.reports.fleet.fleet import ask_fleet  # noqa: E402
from mmscope.reports.lake.adding import add  # noqa: E402
from mmscope.reports.lake.catalog import read_catalog  # noqa: E402
from mmscope.reports.lake.staging import Given  # noqa: E402


def copies(folder: Path, hosts: int) -> list[Path]:
    """So many bundles: links to the tables of a few, each with a description of its own."""
    kinds = []
    for number, make in enumerate([*HEALTHY.values(), *(make for make, _ in SICK.values())]):
        make().write(folder / f"kind-{number}")
        kinds.append(folder / f"kind-{number}")
    made = []
    for number in range(hosts):
        of, path = kinds[number % len(kinds)], folder / f"host-{number}"
        path.mkdir()
        for file in of.glob("*.csv"):
            os.link(file, path / file.name)
        data = json.loads((of / "datapackage.json").read_text())
        data["target"] |= {"hostname": f"host-{number}", "captured_at": "2026-11-22T10:00:00Z"}
        (path / "datapackage.json").write_text(json.dumps(data))
        made.append(path)
    return made


def peak() -> str:
    used = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF,
                                                          resource.RUSAGE_CHILDREN)]  # fmt: skip
    return f"{max(used) >> 10} MiB"


def main() -> None:
    for hosts in map(int, sys.argv[1:] or ["100", "1000"]):
        with tempfile.TemporaryDirectory(prefix="mmscope-bench-") as there:
            folder = Path(there)
            bundles = copies(folder, hosts)
            begin = time.monotonic()
            add(folder / "lake", bundles, Given(), print)
            added = time.monotonic() - begin
            after_adding = peak()
            files = list((folder / "lake").rglob("*.parquet"))
            size = sum(file.stat().st_size for file in files)
            begin = time.monotonic()
            catalog = read_catalog(folder / "lake")
            fleet = ask_fleet(catalog, load_questions())
            asked = time.monotonic() - begin
            print(
                f"{hosts:,} hosts, {sum(b.rows for b in catalog.bundles):,} rows: added in "
                f"{added:.1f} s (peak {after_adding}), {len(files)} files of {size / 2**20:.1f} "
                f"MiB; all findings in {asked:.1f} s (peak {peak()}), {len(fleet.told)} found",
                flush=True,
            )


if __name__ == "__main__":
    main()
