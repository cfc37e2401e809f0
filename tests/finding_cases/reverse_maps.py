# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about reverse maps: walks, locks, KSM, VMAs, families of forks."""

import dataclasses

import rmap_rows as rmap
from finding_cases.case import Case

from mmscope.reports.rows.profile_rows import ProfileKsmWalk, ProfileRecording

# The machine of the series that brought page offsets: a page of three mappings, or of one.
FEW = 22_169
THREE, ONE = (
    [rmap.walk(visits=2 * n * FEW, hold=FEW), rmap.anon_vma(vmas=FEW, items=1_500),
     rmap.ksm_page(chain=None, mappings=n, visits=n * FEW)]
    for n in (3, 1)
)  # fmt: skip
RECORDED = ProfileKsmWalk("rmap", rmap.NODE, 10, 133_014_000, 7_980_840, 26_602_800)
RECORDING = ProfileRecording("rmap", *[None] * 7, "7.2.12", None, None)
OTHER_BOOT = dataclasses.replace(RECORDING, release="6.12.117")
FOUND: dict[str, Case] = {
    "a walk that stalls": Case(
        "rmap-walk-stalls",
        [rmap.walk(), rmap.anon_vma(), rmap.COST, rmap.SPLITS,
         rmap.ksm_page()],
        ["A reverse map walk of KSM pages of java (pid 4711) visits 10,240,000 tree nodes: "
         "about 614",
         "has 20,000 VMAs of 1 process.",
         "the 256 mappings of the page visits the tree for each: 5,120,000 visits",
         "it would be 256), about 307.2 ms", "takes two: 10,240,000 visits",
         "614.4 ms a whole walk (204.8 to 3,072.0)",
         "held for 1.20 ms (0.40 to 6.00) at a stretch", "Assumes 60.0 ns a visit.",
         "19,999 of 19,999 pairs of neighbours were split by mprotect"],
        "warning",
    ),
    "a walk that stalls, by a measured time": Case(
        "rmap-walk-stalls",
        [rmap.walk(), rmap.anon_vma(), dataclasses.replace(rmap.COST, measured=True)],
        ["At the given 60.0 ns a visit."], "critical",
    ),
    "KSM pages of few mappings on very many VMAs": Case(
        "rmap-walk-stalls",
        [*THREE, rmap.COST, rmap.SPLITS],
        ["KSM pages of java (pid 4711) visits 133,014 tree nodes: about 8 ms",
         "has 22,169 VMAs of 1 process.",
         "KSM has merged 1,500 mappings on it.",
         "the 3 mappings of the page visits the tree for each: 66,507 visits",
         "page offset it would be 3), about 4.0 ms", "8.0 ms a whole walk (2.7 to 39.9)",
         "held for 1.33 ms (0.44 to 6.65) at a stretch. Assumes 60.0 ns a visit.",
         "With the page offset, estimate: 0.0058 ms.", "split by mprotect"],
        "warning",
    ),
    "a KSM page of one mapping, which saves nothing": Case(
        "rmap-walk-stalls",
        [*ONE, rmap.COST],
        ["visits 44,338 tree nodes: about 3 ms",
         "the one mapping of the page visits the whole tree: 22,169 visits", "it would be 1)"],
        "warning", ["split by"],
    ),
    "walks of its pages that were recorded": Case(
        "rmap-walk-stalls",
        [*THREE, rmap.COST, RECORDING, RECORDED],
        ["about 13 ms", "13.3 ms a whole walk (8.0 to 26.6)", "2.22 ms (1.33 to 4.43) at a stretch",
         "At 100 ns a visit (60 to 200), as recorded here (rmap): 10 walks of 1 KSM "
         "page by the visits"],
        "warning", ["Assumes"],
    ),
    "walks that were recorded of another boot": Case(
        "rmap-walk-stalls",
        [*THREE, rmap.COST, OTHER_BOOT, RECORDED],
        ["about 8 ms", "Assumes 60.0 ns a visit."],
        "warning", ["as recorded"],
    ),
    "a time that was given, beside recorded walks": Case(
        "rmap-walk-stalls",
        [*THREE, dataclasses.replace(rmap.COST, measured=True), RECORDING, RECORDED],
        ["At the given 60.0 ns a visit."],
        "warning", ["as recorded"],
    ),
    "a hold that any process may reach": Case(
        "rmap-walk-stalls",
        [rmap.walk("anon", visits=65_530, hold=65_530), rmap.anon_vma(vmas=65_530), rmap.COST],
        ["about 4 ms", "held for 3.93 ms"], "warning",
    ),
    "a hold that stalls, of anonymous memory": Case(
        "rmap-walk-stalls",
        [rmap.walk("anon", visits=100_000, hold=100_000, comm=None),
         rmap.anon_vma(vmas=100_000, processes=500),
         dataclasses.replace(rmap.COST, measured=True)],
        ["anonymous pages of a process that is gone visits 100,000 tree nodes: about 6 ms",
         "of 500 processes", "6.0 ms a whole walk (2.0 to 30.0)", "Assumes 500.0 ns a visit."],
        "warning", ["mappings of the page", "split by"],
    ),
    "a page under too many VMAs": Case(
        "file-walk-stalls",
        [rmap.walk("file", visits=400_000, hold=400_000, of=rmap.LIBC), rmap.COST,
         rmap.file_mapping(vmas=800_000, processes=9_000)],
        ["A page of /usr/lib/libc.so.6 lies under 400,000 VMAs", "takes about 24 ms",
         "800,000 VMAs of 9,000 processes map the file, 400 over a page on average.",
         "held for 24.0 ms (8.0 to 120.0) at a stretch. Assumes 500.0 ns a visit."],
        "notice",
    ),
    "the same of a file that is not listed": Case(
        "file-walk-stalls",
        [rmap.walk("file", visits=400_000, hold=400_000, of=rmap.LIBC), rmap.COST],
        [f"A page of mapping {rmap.LIBC} lies under 400,000 VMAs", "79 folios of it are"],
        "notice", ["map the file"],
    ),
    "a queue on a file's lock": Case(
        "file-lock-queue",
        [dataclasses.replace(rmap.FILE_LOCK, waiters=5), *rmap.FILE_WAITERS, rmap.file_mapping()],
        ["5 tasks are queued on the i_mmap_rwsem of /usr/lib/libc.so.6, held by java (4712)",
         "The lock is held to write.", "1 queued writer, first java (4711).",
         "2,000 VMAs of 500 processes map the file. This is one moment:"],
        "warning",
    ),
    "a queue on the lock of a file that is not listed": Case(
        "file-lock-queue",
        [dataclasses.replace(rmap.FILE_LOCK, waiters=9, state="changing hands", owner_pid=None,
                             owner_comm=None, owner_is=None)],
        [f"9 tasks are queued on the i_mmap_rwsem of the mapping {rmap.LIBC}", "changing hands.",
         "2,000 VMAs map the file."],
        "warning", ["held by", "want to write"],
    ),
    "sharing that costs more": Case(
        "ksm-costs-more",
        [*[rmap.ksm_page(0x100 + n) for n in range(78)],
         rmap.ksm_page(0x200, mappings=32, visits=32 * rmap.VMAS), rmap.COST,
         rmap.ksm_page(0x300, chain=None, mappings=40, visits=40)],
        ["KSM saves 77.82 MiB with one content, but walking its 79 pages once takes about "
         "48.0 s",
         "20,000 mappings share 79 pages (0x1): 19,921 pages saved",
         "48.0 s (16.0 to 240.0), 2.41 ms for each page saved"],
        "notice",
    ),
    "sharing of several contents on one anon_vma": Case(
        "ksm-costs-more",
        [*[dataclasses.replace(rmap.ksm_page(n, chain=None, mappings=3, visits=3 * FEW),
                               stable_node=hex(n)) for n in range(2)],
         rmap.ksm_page(2, chain=None, mappings=1, visits=FEW), rmap.COST],
        ["KSM saves 16 KiB with 3 contents, but walking its 3 pages once takes about 19 ms",
         f"7 mappings share 3 pages (anon_vma {rmap.HEAP}): 4 pages saved"],
        "notice", ["0 B"],
    ),
    "near the limit of VMAs": Case(
        "near-max-map-count", [rmap.process(60_000), rmap.SPLITS],
        ["java (pid 4711) has 60,000 of 65,530 VMAs (91.6 %)", "20,000 of them are on one anon_vma",
         "19,999 of 19,999 pairs of neighbours on it were split by mprotect"],
        "warning",
    ),
    "at the limit of VMAs, from text": Case(
        "near-max-map-count",
        [dataclasses.replace(rmap.process(65_530), comm=None, anon_vmas=None, vmas_on_it=None,
                             largest_anon_vma=None)],
        ["Process (pid 4711) has 65,530 of 65,530 VMAs (100 %)"], "critical",
        ["on one anon_vma", "split by"],
    ),
    "a deep hierarchy": Case(
        "deep-fork-hierarchy",
        [rmap.anon_vma(rmap.ROOT, vmas=6, processes=6, comm="init", pid=1),
         *[rmap.anon_vma(f"0x{n}", vmas=6 - n, processes=6 - n, depth=n, root=rmap.ROOT,
                         comm=f"level-{n}", pid=10 + n) for n in range(1, 6)]],
        ["init (1) and its children: up to 5 forks deep, 6 processes on one anon_vma",
         "6 anon_vmas in 1 family with one lock", "(level-5, 15)"],
        "notice",
    ),
    "a wide hierarchy of a process that is gone": Case(
        "deep-fork-hierarchy",
        [rmap.anon_vma(vmas=3000, processes=1000, comm=None, pid=None)],
        ["A process that is gone and its children: up to 0 forks deep, 1,000 processes"],
    ),
    "a queue on a lock": Case(
        "anon-vma-lock-queue", [dataclasses.replace(rmap.LOCK, waiters=4), *rmap.WAITERS],
        [f"4 tasks are queued on the lock of anon_vma {rmap.ROOT}, last taken by kcompactd0 (77)",
         "The lock is held to read, by 1 reader;",
         "2 queued writers, first java (4711).",
         "9 anon_vmas share it, with 20,000 VMAs"],
        "warning",
    ),
    "a queue on a lock of a kernel that does not note what they want": Case(
        "anon-vma-lock-queue",
        [dataclasses.replace(rmap.LOCK, waiters=4, owner_pid=None, owner_comm=None, owner_is=None),
         *[dataclasses.replace(row, wants=row.wants if not row.position else None)
           for row in rmap.WAITERS]],
        ["The lock is held to read, by 1 reader;",
         "first in it is java (4711); this kernel does not record what each wants."],
        "warning", ["held by", "want to write"],
    ),
    "the same of a file": Case(
        "file-lock-queue",
        [dataclasses.replace(rmap.FILE_LOCK, waiters=5),
         *[dataclasses.replace(row, wants=None) for row in rmap.FILE_WAITERS]],
        ["The lock is held to write. First in it is java (4711);"],
        "warning", ["want to write"],
    ),
    "a queue on a lock that changes hands": Case(
        "anon-vma-lock-queue",
        [dataclasses.replace(rmap.LOCK, state="changing hands", readers=0, owner_pid=None,
                             owner_comm=None, owner_is=None, waiters=16)],
        ["16 tasks are queued on the lock", "No task has it: it is changing hands;"],
        "critical", ["held by", "want to write"],
    ),
}  # fmt: skip

CLEAR: dict[str, Case] = {
    "a library that many map": Case(
        "file-walk-stalls",
        [rmap.walk("file", visits=20_000, hold=20_000, of=rmap.LIBC), rmap.COST],
    ),
    "a task that waits for a file's lock": Case("file-lock-queue", [rmap.FILE_LOCK]),
    "a walk that is short": Case(
        "rmap-walk-stalls", [rmap.walk(visits=33_000, hold=33_000), rmap.anon_vma(), rmap.COST]
    ),
    "KSM pages on very many VMAs of a kernel that goes by the page offset": Case(
        "rmap-walk-stalls",
        [rmap.walk(visits=96, hold=16), rmap.anon_vma(vmas=FEW, items=1_500),
         dataclasses.replace(rmap.COST, used_here="page offset")],
    ),
    "very many VMAs of which KSM has none": Case(
        "rmap-walk-stalls",
        [rmap.walk(visits=2 * FEW, hold=FEW), rmap.anon_vma(vmas=FEW), rmap.COST],
    ),
    "pages that KSM saves nothing with": Case(
        "ksm-costs-more",
        [rmap.ksm_page(chain=None, mappings=1, visits=FEW), rmap.COST],
    ),
    "sharing that is worth it": Case(
        "ksm-costs-more", [rmap.ksm_page(chain=None, mappings=256, visits=512), rmap.COST]
    ),
    "few VMAs": Case("near-max-map-count", [rmap.process()]),
    "forks as usual": Case(
        "deep-fork-hierarchy",
        [rmap.anon_vma(rmap.ROOT, vmas=5, processes=5),
         rmap.anon_vma(depth=4, root=rmap.ROOT, vmas=1)],
    ),
    "a server and its 300 workers": Case(
        "deep-fork-hierarchy", [rmap.anon_vma(vmas=300, processes=300, comm="postgres", pid=9)]
    ),
    "a lock that a few wait for at this moment": Case("anon-vma-lock-queue", [rmap.LOCK]),
}  # fmt: skip

NOT_CHECKED: dict[str, Case] = {
    "no walks": Case("rmap-walk-stalls", [], why_not="no table rmap_walks in this bundle"),
    "no file that is mapped": Case(
        "file-walk-stalls", [rmap.walk(), rmap.COST],
        why_not="rmap_walks has no row where kind = 'file'",
    ),
    "no locks of files": Case(
        "file-lock-queue", [], why_not="no table file_mapping_locks in this bundle"
    ),
    "no KSM": Case("ksm-costs-more", [rmap.COST], why_not="no table ksm_pages in this bundle"),
    "an unknown limit of VMAs": Case(
        "near-max-map-count", [rmap.process(60_000, None)],
        why_not="process_vmas.max_map_count is unknown in this bundle",
    ),
    "no anon_vmas": Case("deep-fork-hierarchy", [], why_not="no table anon_vmas in this bundle"),
    "no locks": Case("anon-vma-lock-queue", [], why_not="no table anon_vma_locks in this bundle"),
}  # fmt: skip
