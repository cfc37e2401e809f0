# SPDX-License-Identifier: LGPL-2.1-or-later
"""``profile.proto`` by its own reader: ``go tool pprof``, of the Go that builds the server here."""

import subprocess
import sys
from pathlib import Path

from mmscope.perf.pprof import pprof

WORK = "main;work;__alloc_pages"
SETS = [("cpu", "ns", [(WORK, 5_000_000), ("main", 2_000_000)]), ("held", "bytes", [(WORK, 300)])]


def test_go_reads_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "profile").write_bytes(pprof(SETS, "mmscope: both", 1.5))
    done = subprocess.run(
        [Path(sys.executable).with_name("go"), "tool", "pprof", "-raw", tmp_path / "profile"],
        env={"GOCACHE": f"{tmp_path}/cache", "HOME": str(tmp_path), "GOTOOLCHAIN": "local",
             "CGO_ENABLED": "0", "GOPROXY": "off", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    at = lines.index(["cpu/nanoseconds", "held/bytes"])
    assert lines[at + 1 : at + 3] == [["5000000", "300:", "1", "2", "3"], ["2000000", "0:", "3"]]
    places = lines[lines.index(["Locations"]) :]
    named = {line[0]: line[3] for line in places if line[1:2] == ["0x0"]}
    assert named == {"1:": "__alloc_pages", "2:": "work", "3:": "main"}
