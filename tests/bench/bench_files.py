# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``make bench``, the part about files: a million files of tmpfs, a page each, with drgn's walks one
object at a time beside it.

The guest has 8.5 GiB and takes minutes to boot and to dump; its capture is kept like others. As in
``bench.py``: medians in one process, and the ratio is what to look at. The loops are measured on a
sample.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/lab"), str(ROOT)]

from bench import median_seconds  # noqa: E402
from capture import capture  # noqa: E402
from drgn import Program  # noqa: E402
from drgn.helpers.linux.list import list_for_each_entry  # noqa: E402
from plain_walks import file_pages_loop  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from mmscope.drgn.filesystems.cached_file_rows import file_rows, filesystem_rows  # noqa: E402
from mmscope.drgn.filesystems.cached_files import read_cached_files  # noqa: E402
from mmscope.drgn.filesystems.dentry_cache import read_dentry_cache  # noqa: E402
from mmscope.drgn.filesystems.super_blocks import SuperBlocks, read_super_blocks  # noqa: E402
from mmscope.drgn.ledger.file_pages import FilePages  # noqa: E402
from mmscope.drgn.ledger.ledger_pages import LedgerPages  # noqa: E402
from mmscope.drgn.ledger.page_places import page_places  # noqa: E402
from mmscope.drgn.opening.target import open_target  # noqa: E402
from mmscope.drgn.owners.slab_caches import SlabFinder  # noqa: E402
from mmscope.drgn.reading.mem_sections import valid_page_ranges  # noqa: E402
from mmscope.drgn.reading.struct_pages import Scan, scan_struct_pages  # noqa: E402
from mmscope.drgn.sections.memory import Memory  # noqa: E402

SAMPLE = 20_000


class NoFiles(FilePages):
    """Collects nothing: what the ledger costs without."""

    def take(self, *arguments: object) -> None:
        pass


def inode_loop(prog: Program, supers: SuperBlocks) -> float:
    """Seconds an inode, looking at what is looked at of each cached file."""
    sb = max(range(len(supers.address)), key=lambda at: supers.mounted(at).path == "/tmp")
    head = prog["super_blocks"].address_of_()
    (tmp,) = [
        each
        for each in list_for_each_entry("struct super_block", head, "s_list")
        if each.value_() == int(supers.address[sb])
    ]
    begin, done = time.perf_counter(), 0
    inodes = list_for_each_entry("struct inode", tmp.s_inodes.address_of_(), "i_sb_list")
    for inode in islice(inodes, SAMPLE):
        inode.i_data.nrpages.value_(), inode.i_ino.value_(), inode.i_size.value_()
        inode.i_nlink.value_(), inode.i_dentry.first.value_()
        done += 1
    return (time.perf_counter() - begin) / max(done, 1)


def page_loop(prog: Program) -> float:
    """Seconds a page."""
    start, end, _ = max(valid_page_ranges(prog), key=lambda each: each[1] - each[0])
    begin = time.perf_counter()
    file_pages_loop(prog, start, min(end, start + SAMPLE))
    return (time.perf_counter() - begin) / SAMPLE


def peak_mib(work: Callable[[], object]) -> float:
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / (1 << 20)


def main() -> int:
    taken = capture("stable", "many_files", say=lambda line: print(line, file=sys.stderr))
    prog = open_target(taken.vmcore, [taken.vmlinux])
    places = page_places(Memory(prog))
    supers = read_super_blocks(prog)
    pages = sum(end - start for start, end, _ in valid_page_ranges(prog))

    def counted(collector: type[FilePages]) -> LedgerPages:
        ledger = LedgerPages(prog, places.ram, places.owned)
        ledger.files = collector(prog)
        scan = scan_struct_pages(prog, [ledger])
        assert not scan.failures
        ledger.files.settle()
        return ledger

    def slabs() -> tuple[SlabFinder, Scan]:
        finder = SlabFinder(prog)
        return finder, scan_struct_pages(prog, [finder])

    plain, whole = (median_seconds(lambda c=c: counted(c), 3) for c in (NoFiles, FilePages))
    found = counted(FilePages)
    files = read_cached_files(prog, found.files, supers)
    reading = median_seconds(lambda: read_cached_files(prog, found.files, supers), 3)
    rows = median_seconds(lambda: (file_rows(files, pages), filesystem_rows(files, pages)), 3)
    finder, scan = slabs()
    dentries = median_seconds(lambda: read_dentry_cache(prog, supers, found=(finder, scan.gaps)), 3)
    sums = read_dentry_cache(prog, supers, found=(finder, scan.gaps)).sums
    objects = int(sums["dentries"].sum() + sums["inodes"].sum())
    per_page, per_inode = page_loop(prog), inode_loop(prog, supers)
    table = Table(title=f"{len(files.mapping):,} files, {pages:,} struct pages")
    for name in ("what", "here", "beside it", "ratio"):
        table.add_column(name, justify="left" if name == "what" else "right")
    beside = per_page * pages
    table.add_row(
        "pages by file, in the ledger's pass",
        f"{whole - plain:.2f} s more than {plain:.2f} s",
        f"{beside:.0f} s page by page",
        f"{beside / max(whole - plain, 1e-3):.0f}x",
    )
    beside = per_inode * len(files.mapping)
    table.add_row(
        "their inodes, dentries, file systems",
        f"{reading + rows:.2f} s",
        f"{beside:.0f} s inode by inode",
        f"{beside / (reading + rows):.0f}x",
    )
    beside = per_inode * objects
    table.add_row(
        f"{objects:,} dentries and inodes",
        f"{dentries:.2f} s",
        f"{beside:.0f} s one by one",
        f"{beside / dentries:.0f}x",
    )
    Console(width=120).print(table)
    peaks = [peak_mib(lambda c=c: counted(c)) for c in (NoFiles, FilePages)]
    reads = peak_mib(lambda: read_cached_files(prog, found.files, supers))
    slab = peak_mib(lambda: read_dentry_cache(prog, supers, found=(finder, scan.gaps)))
    print(
        f"peak memory: {peaks[1]:.0f} MiB of the pass, {peaks[0]:.0f} without files; "
        f"{reads:.0f} MiB to read inodes, {slab:.0f} MiB for all dentries and inodes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
