# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that is locked down, and lets nobody read its memory: one line says so, text is read."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from live import run_live

from mmscope.reports.bundle.bundle import Bundle

PROGRAM = """
import ctypes, os
from mmscope.reports.commands.command import main

libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"securityfs", b"/sys/kernel/security", b"securityfs", 0, None):
    raise OSError(ctypes.get_errno(), "securityfs")
# Not at boot: the lab's init needs a port.
with open("/sys/kernel/security/lockdown", "w") as file:
    file.write("confidentiality")

def run(name, *arguments):
    child = os.fork()
    if child == 0:
        for number, stream in enumerate(("out", "err"), 1):
            os.dup2(os.open(f"/out/{name}.{stream}", os.O_WRONLY | os.O_CREAT), number)
        os._exit(main(arguments))
    status = os.waitpid(child, 0)[1]
    with open(f"/out/{name}.code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(status)))

run("doctor", "doctor")
run("collect", "collect", "-o", "/out/bundle")
run("script", "show", "zones")
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]) -> Path:
    folder = tmp_path_factory.mktemp("lockdown")
    return run_live(PROGRAM, folder, "7.2", say, symbols=False)


def test_collect_says_so_in_a_line_and_reads_text(out: Path) -> None:
    first = (out / "collect.err").read_text().splitlines()[0]
    assert "/proc/kcore: this kernel is locked down (lockdown=confidentiality)" in first
    assert first.endswith("; reading /proc and /sys instead")
    assert (out / "collect.code").read_text() in ("0", "1")
    bundle = Bundle(out / "bundle")
    status = {section.section: section.status for section in bundle.sections}
    assert {status[name] for name in ("zones", "vm_counters", "free_lists")} == {"ok"}
    target = json.loads((out / "bundle" / "datapackage.json").read_text())
    assert "locked down" in json.dumps(target)


def test_so_does_show(out: Path) -> None:
    assert (out / "script.code").read_text() == "0"
    assert "locked down" in (out / "script.err").read_text()
    assert "DMA32" in (out / "script.out").read_text()


def test_doctor_names_it(out: Path) -> None:
    said = " ".join((out / "doctor.out").read_text().split())
    assert (out / "doctor.code").read_text() == "0"
    assert "locked down" in said
