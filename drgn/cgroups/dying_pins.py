# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Pins of memory cgroups that were removed: the files that have pages charged to them, swapped out
memory, dying cgroups below them; or nothing of that.

A removed cgroup is freed when its last reference goes. Each page that is charged to it has one up
to 6.12 (``charge_memcg()``, mm/memcontrol.c), its swap has one as long as there is any (through the
cgroup's id, ``mem_cgroup_id_put_many()``), sockets that were opened in it have
(``mem_cgroup_sk_alloc()``), and its children. In 7.2 pages pass to the parent when a cgroup is
removed (``memcg_reparent_objcgs()``).

Costs a read of each ``address_space`` and inode together, and of a few dentries for each file that
is listed.

Cannot know: which socket or which writeback has a reference.
"""

import contextlib
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from drgn import Object, Program

from mmscope.drgn.cgroups.memcgs import Memcgs
from mmscope.drgn.reading.dentry_paths import alias_offset, dentry_name, path_below
from mmscope.drgn.reading.kernel_arrays import TORN, Array, Gaps, S64s, U64s, struct_dtype
from mmscope.drgn.reading.kernel_names import device_numbers, name_at
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.tables.rows import MOST, column
from mmscope.drgn.tables.table import table

MAX_FILES = 1000  # that have rows of their own
FILE, OTHER_FILES, ANONYMOUS, SWAP_CACHE, SWAP, BELOW, NOTHING = (
    "file",
    "other files",
    "anonymous memory",
    "swapped in, of nobody yet",
    "swapped out",
    "a dying cgroup below it",
    "no page, no swap",
)


@table(
    "dying_cgroup_pins",
    "What keeps dying memory cgroups",
    measure="cgroups",
    lasting=("pin", "file"),
    memory="again",
    empty="No memory cgroup is dying.",
)
class DyingPin:
    """Something that keeps dying memory cgroups."""

    pin: str = column(
        holds="words",
        key=True,
        help=f"{FILE}: cached pages; {SWAP}: swap entries; {NOTHING}: another reference, "
        "such as a socket",
    )
    filesystem: str | None = column(holds="kernel", help="type of the file's file system")
    device: str | None = column(holds="kernel", key=True, help="major:minor")
    # Some file systems use all 64 bits, which not every table's integers hold.
    inode: str | None = column(holds="kernel", key=True, help="i_ino")
    file: str | None = column(holds="file", help="path from the root of its file system")
    deleted: bool | None = column(help="no directory has it any more (i_nlink is 0)")
    cgroups: int = column(help="dying cgroups it keeps")
    alone: int = column(high="cgroups", help="kept by nothing else listed here")
    pages: int = column(unit="pages", high=MOST, help="charged to them; swap: pages there")
    bytes: int = column(unit="bytes", high=MOST, help="of these pages")


# A pin: the address of an address_space, or words.
Pin = int | str


def dying_pins(
    prog: Program,
    memcgs: Memcgs,
    mappings: Mapping[tuple[int, int], int],
    charged: Array,
    gaps: Gaps,
) -> list[DyingPin]:
    """
    The pins of all dying cgroups, those of most cgroups first.

    :param mappings: pages by (address of the memcg, ``folio.mapping``), of dying ones.
    :param charged: all pages, by :func:`charged_pages.charges`.
    """
    page = int(prog["PAGE_SIZE"].value_())
    position = {int(address): at for at, address in enumerate(memcgs.address.tolist())}
    keeps: dict[Pin, dict[int, int]] = defaultdict(dict)  # pages by position of the memcg
    # Those whose mapping was not kept are what others leave.
    other_pages = np.bincount(charged["memcg"], charged["pages"], len(position)).astype(np.int64)
    for (memcg, mapping), pages in mappings.items():
        other_pages[position[memcg]] -= pages
        pin: Pin = {0: SWAP_CACHE, 1: ANONYMOUS, 2: OTHER_FILES, 3: ANONYMOUS}.get(mapping, mapping)
        here = keeps[pin]
        here[position[memcg]] = here.get(position[memcg], 0) + pages
    for at in np.flatnonzero(memcgs.dying & (other_pages > 0)).tolist():
        keeps[OTHER_FILES][at] = int(other_pages[at])
    swap = memcgs.column("swap.usage.counter")
    if swap is not None and memcgs.unified:
        # A page_counter has what its children have as well.
        own, children = swap.astype(np.int64), memcgs.parent >= 0
        np.subtract.at(own, memcgs.parent[children], own[children])
        for at in np.flatnonzero(memcgs.dying & (own > 0)).tolist():
            keeps[SWAP][at] = int(own[at])
    for at in memcgs.parent[memcgs.dying].tolist():
        if at >= 0 and memcgs.dying[at]:
            keeps[BELOW][at] = 0
    kept = np.zeros(len(memcgs.address), np.int64)
    for by_memcg in keeps.values():
        kept[list(by_memcg)] += 1
    for at in np.flatnonzero(memcgs.dying & (kept == 0)).tolist():
        keeps[NOTHING][at] = 0
        kept[at] = 1
    return _rows(prog, keeps, kept, page, gaps)


def _rows(
    prog: Program, keeps: dict[Pin, dict[int, int]], kept: S64s, page: int, gaps: Gaps
) -> list[DyingPin]:
    """
    Rows of pins; files beyond the largest are other files.

    :param keeps: pages by pin and position of the memcg; :param kept: pins of each memcg.
    """

    def counts(by_memcg: Mapping[int, int]) -> tuple[int, int, int, int]:
        alone = int((kept[list(by_memcg)] == 1).sum())
        pages = sum(by_memcg.values())
        return len(by_memcg), alone, pages, pages * page

    files = sorted(
        (pin for pin in keeps if isinstance(pin, int)),
        key=lambda pin: (-len(keeps[pin]), -sum(keeps[pin].values()), pin),
    )
    for pin in files[MAX_FILES:]:
        others = keeps.setdefault(OTHER_FILES, {})
        for at, pages in keeps.pop(pin).items():
            others[at] = others.get(at, 0) + pages
    found = _files(prog, np.array(files[:MAX_FILES], np.uint64), gaps)
    rows = [
        DyingPin(FILE, *file, *counts(keeps.pop(pin)))
        for pin, file in zip(files, found, strict=False)
    ]
    rows += [
        DyingPin(str(pin), None, None, None, None, None, *counts(by_memcg))
        for pin, by_memcg in keeps.items()
    ]
    return sorted(rows, key=lambda row: (-row.cgroups, -row.pages))


File = tuple[str | None, str | None, str | None, str | None, bool | None]


def _files(prog: Program, mappings: U64s, gaps: Gaps) -> list[File]:
    """The file of each address_space: file system, device, inode, path, and if it is deleted."""
    spaces = struct_dtype(prog.type("struct address_space"), {"host": "host"})
    hosts, read = read_scattered(prog, mappings, spaces, gaps)
    type_ = prog.type("struct inode")
    wanted = {"ino": "i_ino", "links": "i_nlink", "sb": "i_sb", "dentry": "i_dentry.first"}
    inodes, there = read_scattered(prog, hosts["host"], struct_dtype(type_, wanted), gaps)
    file_systems: dict[int, tuple[str | None, str | None]] = {}
    result: list[File] = []
    for inode, known in zip(inodes, (read & there).tolist(), strict=True):
        if not known:
            result.append((None, None, None, None, None))
            continue
        sb = int(inode["sb"])
        if sb not in file_systems:
            file_systems[sb] = _file_system(prog, sb)
        path = _path(prog, int(inode["dentry"]))
        result.append((*file_systems[sb], str(inode["ino"]), path, not inode["links"]))
    return result


def _file_system(prog: Program, address: int) -> tuple[str | None, str | None]:
    try:
        sb = Object(prog, "struct super_block", address=address)
        return name_at(sb.s_type.name), device_numbers(sb.s_dev.value_())
    except TORN:
        return None, None


def _path(prog: Program, alias: int) -> str | None:
    """The path of a file's first name (``inode.i_dentry``) from the root of its file system."""
    if not alias:
        return None
    address = alias - alias_offset(prog)
    path, _ = path_below(prog, address, {})
    if path != "/":
        return path
    # Files in no directory (memfd, SysV shared memory) have a name all the same.
    with contextlib.suppress(*TORN):
        return dentry_name(Object(prog, "struct dentry", address=address))
    return None


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("memory_cgroups", "dying_cgroup_pins")
