# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Dentries and inodes by file system, against what the kernel counts and what the workload looked up
in vain.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from capture import Capture, capture
from conftest import KERNELS
from drgn import Program
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.pid import find_task
from forked import in_a_fork, opened
from named_damage import say

from mmscope.drgn.filesystems import dentry_cache
from mmscope.drgn.filesystems.dentry_cache import (
    DentryCount,
    FilesystemDentries,
    dentries_from_files,
    dentries_from_memory,
)
from mmscope.drgn.opening.no_debug_info import attach
from mmscope.drgn.opening.target import open_target
from mmscope.drgn.sections.files import Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import Found

NEGATIVE = 20_000  # guest/workload_ledger.c


@dataclass(frozen=True)
class DentriesLab:
    """A frozen guest that has looked up names that do not exist."""

    capture: Capture
    prog: Program
    found: Found

    @property
    def rows(self) -> list[FilesystemDentries]:
        return self.found.by_name["filesystem_dentries"]

    @property
    def counts(self) -> list[DentryCount]:
        return self.found.by_name["dentry_counts"]

    def mounted(self, path: str) -> FilesystemDentries:
        (row,) = [row for row in self.rows if row.mount == path]
        return row


@pytest.fixture(scope="module", params=KERNELS)
def dentries_lab(request: pytest.FixtureRequest, say: Callable[[str], None]) -> DentriesLab:
    """The ``ledger`` workload on a kernel."""
    return read(capture(request.param, "ledger", say=say))


def read(taken: Capture) -> DentriesLab:
    prog = open_target(taken.vmcore, [taken.vmlinux])
    return DentriesLab(taken, prog, dentries_from_memory(Memory(prog)))


def assert_as_printed(lab: DentriesLab) -> None:
    """What was found is what the kernel printed just before the freeze."""
    assert not lab.found.notes
    printed: list[DentryCount] = dentries_from_files(Files(lab.capture.truth_b)).by_name[
        "dentry_counts"
    ]
    assert [(row.counter, row.found) for row in lab.counts] == [
        (row.counter, row.kernel_says) for row in printed
    ]
    assert len(printed) == 5
    sums = {row.counter: row.found for row in lab.counts}
    assert sum(row.dentries for row in lab.rows) == sums["dentry_stat.nr_dentry"]
    assert sum(row.inodes for row in lab.rows) == sums["inodes_stat.nr_inodes"]


def test_all_together_are_what_the_kernel_printed(dentries_lab: DentriesLab) -> None:
    assert_as_printed(dentries_lab)
    assert not any(row.difference for row in dentries_lab.counts)


@pytest.mark.any_kernel
def test_a_name_that_is_damaged_is_told_of(dentries_lab: DentriesLab) -> None:
    prog = opened(dentries_lab.capture)
    dentry = find_task(prog, 1).mm.exe_file.f_path.dentry

    def notes(bit: int) -> list[str]:
        say(dentry.d_name.hash, dentry.d_name.hash.value_() ^ bit)
        return dentries_from_memory(Memory(prog)).notes

    assert in_a_fork(lambda: notes(0)) == []
    assert in_a_fork(lambda: notes(1)) == ["the name of 1 dentry does not fit its hash or length"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_free_objects_that_are_poisoned_are_not_counted(
    kernel: str, say: Callable[[str], None]
) -> None:
    found = read(capture(kernel, "ledger_poison", say=say))
    assert_as_printed(found)
    assert found.mounted("/sys").negative == planted(kernel)


def planted(kernel: str) -> int:
    """Negative dentries: none before "kernfs: use VFS negative dentry caching" (v5.15)."""
    return 0 if kernel == "5.10" else NEGATIVE


def test_negative_dentries_have_their_file_system(dentries_lab: DentriesLab) -> None:
    """
    sysfs keeps what was looked up in vain (v5.15), tmpfs does not (simple_lookup(), fs/libfs.c).
    """
    negative = planted(dentries_lab.capture.kernel)
    sysfs, tmpfs = dentries_lab.mounted("/sys"), dentries_lab.mounted("/tmp")
    assert (sysfs.filesystem, sysfs.negative, sysfs.unused_negative) == (
        "sysfs",
        negative,
        negative,
    )
    assert (tmpfs.filesystem, tmpfs.negative) == ("tmpfs", 0)
    assert sum(row.negative for row in dentries_lab.rows) == negative


def test_inodes_are_those_on_the_lists_of_their_super_blocks(dentries_lab: DentriesLab) -> None:
    """But for those of sockets and pipes, which are on none (sock_alloc(), net/socket.c)."""
    walked = {}
    head = dentries_lab.prog["super_blocks"].address_of_()
    for sb in list_for_each_entry("struct super_block", head, "s_list"):
        inodes = list_for_each_entry("struct inode", sb.s_inodes.address_of_(), "i_sb_list")
        walked[hex(sb.value_())] = sum(1 for _ in inodes)
    listed = [row for row in dentries_lab.rows if walked[row.superblock] > 2]
    assert len(listed) >= 6
    assert {row.superblock: row.inodes for row in listed} == {
        row.superblock: walked[row.superblock] for row in listed
    }


def test_their_bytes_are_those_of_their_caches(dentries_lab: DentriesLab) -> None:
    sysfs = dentries_lab.mounted("/sys")
    assert sysfs.dentry_bytes == 192 * sysfs.dentries
    assert sysfs.bytes == sysfs.dentry_bytes + sysfs.inode_bytes


def test_beyond_the_largest_they_are_added_up(
    dentries_lab: DentriesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dentry_cache, "MAX_FILE_SYSTEMS", 3)
    rows: list[FilesystemDentries] = dentries_from_memory(Memory(dentries_lab.prog)).by_name[
        "filesystem_dentries"
    ]
    assert len(rows) == 4
    assert rows[-1].superblock == "others"
    assert sum(row.bytes for row in rows) == sum(row.bytes for row in dentries_lab.rows)


@pytest.mark.btf
def test_they_are_the_same_without_debug_info(dentries_lab: DentriesLab) -> None:
    prog = Program()
    prog.set_core_dump(dentries_lab.capture.vmcore)
    attach(prog)
    assert dentries_from_memory(Memory(prog)).by_name == dentries_lab.found.by_name
