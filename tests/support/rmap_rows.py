# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Rows of a machine with an expensive reverse map, for the tests of findings and of the report: a
Java process whose heap mprotect() has split into 20,000 VMAs, merged by KSM.
"""

from rows_of_tables import Contents, tables_of_rows

from mmscope.drgn.processes.processes import ProcessVmas
from mmscope.drgn.rmap.anon_vmas import (
    AnonVma,
    AnonVmaFanout,
    AnonVmaLock,
    AnonVmaMap,
    AnonVmaWaiter,
)
from mmscope.drgn.rmap.file_maps import (
    FileMapping,
    FileMappingCheck,
    FileMappingFanout,
    FileMappingLock,
    FileMappingWaiter,
)
from mmscope.drgn.rmap.ksm import KsmChain, KsmPage, KsmProcess, KsmTotal
from mmscope.drgn.rmap.reverse_maps import AnonVmaCheck
from mmscope.drgn.rmap.rmap_cost import AnonFolioWalks, RmapCost, RmapWalk
from mmscope.drgn.rmap.vma_splits import VmaNeighbours, VmaSplits

HEAP, ROOT = "0xffff888100a81c30", "0xffff888100a81000"
NODE = "0xffff888100c00300"
VMAS, SHARED = 20_000, 256


def anon_vma(
    address: str = HEAP, *, vmas: int = VMAS, processes: int = 1, depth: int = 0, root: str = "",
    pid: int | None = 4711, comm: str | None = "java", items: int = 0,
) -> AnonVma:  # fmt: skip
    return AnonVma(
        anon_vma=address, root=root or address, parent=root or None, depth=depth, children=0,
        vmas=vmas, active_vmas=vmas // max(processes, 1), processes=processes, pid=pid, comm=comm,
        vmas_of_pid=vmas // max(processes, 1), first_index="0x7fd1234cc", pages=20_000,
        ksm_items=items, lock="free",
    )  # fmt: skip


def ksm_page(pfn: int = 0x100, *, chain: str | None = "0x1", mappings: int = SHARED,
             visits: int = SHARED * VMAS, ns: float = 60.0) -> KsmPage:  # fmt: skip
    a_pass = visits * ns / 1e6
    return KsmPage(
        pfn, "chain" if chain else "tree", chain, 0, mappings, mappings, 1, 1, visits, mappings, 0,
        visits / mappings * ns / 1e6, 1, a_pass, 2 * a_pass, 2 * a_pass / 3, 2 * a_pass * 5,
        mappings * 32 * ns / 1e6, NODE, HEAP,
    )  # fmt: skip


def walk(kind: str = "ksm", *, visits: int = 2 * SHARED * VMAS, hold: int = VMAS, of: str = HEAP,
         comm: str | None = "java") -> RmapWalk:  # fmt: skip
    ms = 60.0 / 1e6
    a_pass = visits // 2 if kind == "ksm" else visits
    return RmapWalk(
        kind, None if kind == "file" else of, of if kind == "file" else None,
        4711 if comm else None, comm, 79, 0x100, 1, visits, a_pass, hold, hold * ms,
        hold * ms / 3, hold * ms * 5, a_pass * ms, visits * ms, visits * ms / 3, visits * ms * 5,
        79 * visits,
    )  # fmt: skip


def cost(what: str, pages: int, visits: int, indexed: int, here: str) -> RmapCost:
    return RmapCost(
        what, pages, visits, indexed, here, 60.0, 20.0, 300.0, 500.0, 170.0, 5000.0, False
    )


COST = cost("KSM pages", 79, 400_000_000, 20_000, "whole range")
SPLITS = VmaSplits(HEAP, 4711, "java", VMAS, VMAS - 1, VMAS - 2, 0, "mprotect", VMAS - 1)
LOCK = AnonVmaLock(ROOT, "read", 1, 77, "kcompactd0", "last reader", 3, 9, VMAS,
                   "kthread;rmap_walk_ksm")  # fmt: skip
WAITERS = [
    AnonVmaWaiter(ROOT, 0, 4711, "java", "write", "do_mprotect_pkey;rwsem_down_write_slowpath"),
    AnonVmaWaiter(ROOT, 1, 4712, "java", "write", None),
    AnonVmaWaiter(ROOT, 2, 4713, "kswapd0", "read", "kswapd;rmap_walk_ksm"),
]


LIBC = "0xffff888100b00000"


FILE_LOCK = FileMappingLock(
    LIBC, "write", 0, 4712, "java", "writer", 2, 2_000, "fork;dup_mmap"
)  # fmt: skip
FILE_WAITERS = [
    FileMappingWaiter(LIBC, 0, 4711, "java", "write", "do_exit;exit_mmap;free_pgtables"),
    FileMappingWaiter(LIBC, 1, 77, "kswapd0", "read", "kswapd;rmap_walk_file"),
]


def file_mapping(
    file: str = "/usr/lib/libc.so.6", *, mapping: str | None = LIBC, vmas: int = 2_000,
    over_one_page: int = 500, processes: int = 500,
) -> FileMapping:  # fmt: skip
    return FileMapping(
        mapping, "fe:01", "1234", "ext4", file, False, False, vmas, processes, 12, "worker",
        vmas // processes, 0, 0, "0x0", 480, 470, over_one_page, 400.5, "free",
    )  # fmt: skip


def process(vmas: int = VMAS + 12, limit: int | None = 65_530) -> ProcessVmas:
    return ProcessVmas(4711, "java", vmas, limit, 10, HEAP, VMAS)


def tables() -> dict[str, Contents]:
    """All of it, as the tables of a bundle."""
    rows = [
        anon_vma(items=VMAS), anon_vma(ROOT, vmas=5, processes=5, comm="init", pid=1),
        anon_vma("0xffff888100a82000", vmas=1, depth=1, root=ROOT, comm="worker", pid=12),
        AnonVmaFanout(0, 0, 0, 0, 0), AnonVmaFanout(1, 1, 640, 640, 40),
        AnonVmaFanout(2, 3, 80, 190, 0),
        AnonVmaFanout(4, 7, 12, 60, 0), AnonVmaFanout(16384, 32767, 1, VMAS, VMAS),
        *[
            AnonVmaMap(HEAP, hex(0x7FD1234CC + 400 * n), 400, 400, 200, 400, (n % 3) * 200)
            for n in range(50)
        ],
        SPLITS,
        VmaNeighbours(HEAP, 4711, "rw-p", "r--p", "protection", "mprotect", VMAS // 2),
        VmaNeighbours(HEAP, 4711, "r--p", "rw-p", "protection", "mprotect", VMAS // 2 - 1),
        LOCK, *WAITERS, process(), ProcessVmas(1, "init", 12, 65_530, 4, ROOT, 2),
        KsmTotal("pages_shared", 80, 80), KsmTotal("pages_sharing", 19_960, 19_960),
        KsmTotal("max_page_sharing", SHARED, None),
        *[ksm_page(0x100 + n) for n in range(8)],
        ksm_page(0x200, mappings=32, visits=32 * VMAS),
        ksm_page(0x300, chain=None, mappings=40, visits=40),
        KsmChain("0x1", 0, 9, VMAS), KsmProcess(4711, "java", VMAS, VMAS, VMAS, 0, 80_640_000),
        walk(), walk("anon", visits=512, hold=512), walk("anon", of=ROOT, visits=5, hold=5),
        COST,
        cost("anonymous folios", 1_046, 5_783, 5_783, "page offset"),
        cost("folios of mapped files", 2_100, 90_000, 90_000, "page offset"),
        walk("file", visits=500, hold=500, of=LIBC),
        file_mapping(), FileMappingFanout(1, 1, 40, 40), FileMappingFanout(1024, 2047, 1, 2_000),
        FILE_LOCK, *FILE_WAITERS,
        FileMappingCheck(None, "VMAs with a file of process 12, walked", 4, 5),
        AnonFolioWalks(1, 1, 640, 640), AnonFolioWalks(512, 1023, 1, 512),
    ]  # fmt: skip
    return tables_of_rows(rows, empty=(AnonVmaCheck,))
