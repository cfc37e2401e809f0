# SPDX-License-Identifier: LGPL-2.1-or-later
"""``make nightly``: what is too long for each change, each of it whatever became of the others."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from command_line import ROOT
from watched_host import wait_for

MAKEFILE = (ROOT / "Makefile").read_text()
(NIGHTLY,) = re.findall(r"^NIGHTLY := (.*)$", MAKEFILE, re.MULTILINE)
TARGETS = re.findall(r"^([a-z0-9-]+):.*## ", MAKEFILE, re.MULTILINE)
# Of what every change has, or with a checkout that has to be given.
BY_HAND = {"test", "kdump-utils-try"}
GIVEN = "100,1000 10000 build/pictures"


def test_it_has_every_target_that_tests_and_that_make_test_leaves_out() -> None:
    assert set(NIGHTLY.split()) <= set(TARGETS)
    testing = {name for name in TARGETS if re.search(r"\btest\b|\btry\b", name.replace("-", " "))}
    assert testing - BY_HAND <= set(NIGHTLY.split())


@pytest.mark.parametrize("failing", ["", "box matrix"])
def test_what_fails_keeps_nothing_from_being_run_and_is_named(tmp_path: Path, failing: str) -> None:
    make = tmp_path / "make"
    make.write_text(f"""#!/bin/sh
echo "$2 $HOSTS $ATTACKS $PICTURES" >> {tmp_path}/run
for name in {failing}; do [ "$name" != "$2" ] || exit 2; done
""")
    make.chmod(0o755)
    done = subprocess.run(
        ["make", "nightly", f"MAKE={make}"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    run = (tmp_path / "run").read_text().splitlines()
    assert run == [f"{name} {GIVEN}" for name in NIGHTLY.split()]
    failed = [name for name in NIGHTLY.split() if name in failing.split()]
    assert (done.returncode != 0) == bool(failed)
    assert (f"failed: {' '.join(failed)}\n" in done.stdout) == bool(failed)


def test_what_it_runs_ends_with_it(tmp_path: Path) -> None:
    make = tmp_path / "make"
    make.write_text(f"""#!/bin/sh
echo $$ >> {tmp_path}/pids
exec sleep 600
""")
    make.chmod(0o755)
    nightly = subprocess.Popen(
        ["make", "nightly", f"MAKE={make}"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    pids = tmp_path / "pids"
    wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
    nightly.terminate()
    assert nightly.wait(600) != 0
    (pid,) = pids.read_text().split()  # nothing came after it
    wait_for(lambda: not Path("/proc", pid).exists())
