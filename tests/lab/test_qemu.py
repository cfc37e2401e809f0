# SPDX-License-Identifier: LGPL-2.1-or-later
"""
A QEMU guest read from outside, over QMP: as it runs, and stopped; a dump of the same stopped guest
has the same tables, cell by cell.
"""

import asyncio
import contextlib
import itertools
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import children
import kernels
import machine
import pytest
from archive import LabError
from bundle_files import contents
from capture import one_at_a_time
from children import DIES_WITH_US
from conftest import FUNCTIONS_ONLY, KERNELS
from kernels import Kernel
from qemu.qmp import QMPClient

from mmscope.reports.bundle.bundle import Bundle

pytestmark = pytest.mark.any_kernel

# In one line.
REFUSED = r"mmscope: .*give --symbols VMLINUX; .*no variables \(CONFIG_KALLSYMS_ALL\).*\n"
ROOT = Path(__file__).resolve().parents[2]


def mmscope(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return children.run(
        [sys.executable, "-m", "mmscope", *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )


async def _tell(address: Path, command: str, arguments: dict[str, object]) -> None:
    client = QMPClient("test")
    await client.connect(str(address))
    await client.execute(command, arguments)
    await client.disconnect()


class Guest:
    """A guest at work, with one QMP socket for us and one for mmscope."""

    def __init__(self, folder: Path, kernel: Kernel) -> None:
        self.kernel, self.ours, self.theirs = kernel, folder / "ours", folder / "theirs"
        self.console = folder / "console.log"
        arch = kernel.architecture
        init = machine.build_init(folder, arch, kernel.page_bytes)
        initramfs = machine.build_initramfs(folder, init, kernel.modules)
        # Of several consoles the last is /dev/console.
        line = [machine.COMMAND_LINE, f"console={arch.console}", arch.options, kernel.options]
        self.process = subprocess.Popen(
            [
                *DIES_WITH_US,
                *(arch.qemu, *arch.machine),
                *("-serial", f"file:{self.console}"),
                *("-qmp", f"unix:{self.ours},server,nowait"),
                *("-qmp", f"unix:{self.theirs},server,nowait"),
                *("-kernel", str(kernel.vmlinuz), "-initrd", str(initramfs)),
                *("-append", " ".join([*line, "lab.workload=fragment"])),
            ],
            stdin=subprocess.DEVNULL,
        )

    def tell(self, command: str, **arguments: object) -> None:
        """A QMP command."""
        asyncio.run(_tell(self.ours, command, arguments))

    def wait_for(self, words: str) -> None:
        """Until the console says so."""
        end = time.monotonic() + 10 * machine.BOOT_SECONDS
        while not self.console.exists() or words not in self.console.read_text(errors="replace"):
            if self.process.poll() is not None or time.monotonic() > end:
                raise LabError(f"the guest never said '{words}'")
            time.sleep(0.1)


@pytest.fixture(scope="module", params=KERNELS)
def guest(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    say: Callable[[str], None],
) -> Iterator[Guest]:
    kernel = kernels.get(request.param, say)
    folder = tmp_path_factory.mktemp("guest")
    with one_at_a_time():
        say(f"booting {kernel.release}, to be read over QMP")
        guest = Guest(folder, kernel)
        try:
            guest.wait_for("workload fragment")
            yield guest
        finally:
            guest.process.kill()
            guest.process.wait()
            for path in folder.iterdir():
                with contextlib.suppress(OSError):
                    path.unlink()  # gigabytes


def test_a_running_guest_is_read_with_nothing_but_its_socket(guest: Guest, tmp_path: Path) -> None:
    bundle = tmp_path / "running"
    done = mmscope("collect", "--no-findings", "--qemu", guest.theirs, "-o", bundle)
    if guest.kernel.name in FUNCTIONS_ONLY:
        assert done.returncode == 3
        assert re.fullmatch(REFUSED, done.stderr), done.stderr
        assert not bundle.exists()
        assert guest.process.poll() is None
        return
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    read = Bundle(bundle)
    assert (read.target["kind"], read.target["release"]) == ("qemu", guest.kernel.release)
    assert read.target["types"] == "BTF and kallsyms"
    # What moves while it is read is said; nothing fails.
    assert {s.status for s in read.sections} <= {"ok", "partial", "absent"}, read.sections
    assert guest.process.poll() is None


def by_owner(bundle: Bundle) -> Counter[str]:
    """
    Pages of the ledger's classes. Of a kernel that runs, nr_slab_unreclaimable does not tell which
    compound pages kmalloc() has, where they have no mark of their own (6.12).
    """
    pages: Counter[str] = Counter()
    for row in bundle.rows("memory_ledger"):
        owner = row["owner"]
        pages["slab, unexplained" if owner in ("slab", "unexplained") else owner] += row["pages"]
    return pages


def test_stopped_it_has_the_tables_of_its_dump(guest: Guest, tmp_path: Path) -> None:
    symbols = ("--symbols", guest.kernel.vmlinux)
    needed = symbols if guest.kernel.name in FUNCTIONS_ONLY else ()
    again = ("collect", "--no-findings", "--force", "-o")
    outside_of = (*again, tmp_path / "outside", "--qemu", guest.theirs, *needed)
    core = guest.console.parent / "vmcore"
    dump_of = (*again, tmp_path / "dumped", "--core", core, *symbols)
    for number in itertools.count(1):
        guest.tell("stop")
        outside = mmscope(*outside_of)
        assert outside.returncode in (0, 1), outside.stderr
        core.unlink(missing_ok=True)
        guest.tell("dump-guest-memory", paging=False, protocol=f"file:{core}")
        dumped = mmscope(*dump_of)
        sections = Bundle(tmp_path / "outside").sections
        torn = any("while it was read" in (section.message or "") for section in sections)
        if not torn and dumped.returncode == outside.returncode:
            break
        # Stopped within an update: two readings that differ are damage in a dump.
        assert number < 10, (sections, dumped.stderr, outside.stderr)
        guest.tell("cont")
        time.sleep(number / 2)  # beside others it gets little of a CPU
    one, other = Bundle(tmp_path / "outside"), Bundle(tmp_path / "dumped")
    for here, there in zip(one.sections, other.sections, strict=True):
        assert (here.section, here.status) == (there.section, there.status)
        assert here.rows == there.rows or here.section == "memory_ledger"
    assert by_owner(one) == by_owner(other)
    tables = [contents(bundle.path) for bundle in (one, other)]
    for name in ("memory_ledger", "ledger_checks", "ledger_unexplained"):
        assert all(table.pop(f"{name}.csv") for table in tables)
    if not needed:
        # What shows only in the code, by which functions were inlined, BTF does not say.
        assert all(table.pop("kernel_features.csv") for table in tables)
        assert all(table.pop("reclaim_threads.csv") for table in tables)  # it has stacks
    assert tables[0] == tables[1]
    assert one.target["total_pages"] == other.target["total_pages"]
