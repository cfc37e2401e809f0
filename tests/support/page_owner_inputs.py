# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Text as ``mm/page_owner.c`` prints it, made up: for the tests and benchmarks of its readers.

The format is the kernel's to the byte (5.10, 5.11, 5.15, 6.1, 6.12, 7.2, 7.3:
``print_page_owner()``, ``stack_print()``); what it tells is invented: stacks of 8 to 25 frames from
a common root, counts that fall off as 1/rank, a few hundred tasks. The same seed gives the same
text.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

LEAVES = (
    ("post_alloc_hook+0x1a4/0x1c0", "get_page_from_freelist+0x1416/0x1600"),
    ("get_page_from_freelist+0x1416/0x1600",),
)
ALLOCATORS = (
    "__alloc_frozen_pages_noprof+0x18c/0x1000\n alloc_pages_mpol+0x43/0x100\n"
    " folio_alloc_noprof+0x56/0xa0",
    "__alloc_frozen_pages_noprof+0x18c/0x1000\n alloc_pages_mpol+0x43/0x100\n"
    " vma_alloc_folio_noprof+0x68/0xc0",
    "__alloc_frozen_pages_noprof+0x18c/0x1000\n alloc_pages_mpol+0x43/0x100\n"
    " allocate_slab+0x2a1/0x400\n ___slab_alloc+0x3a0/0x860\n kmem_cache_alloc_noprof+0x1f4/0x3a0",
    "__alloc_frozen_pages_noprof+0x18c/0x1000\n alloc_pages_mpol+0x43/0x100\n"
    " alloc_pages_noprof+0x5d/0xd0\n __vmalloc_node_range_noprof+0x3c2/0x8b0",
)
PARTS = (
    "vfs",
    "ext4",
    "xfs",
    "tcp",
    "skb",
    "blk",
    "mm",
    "do",
    "handle",
    "sys",
    "nf",
    "bpf",
    "iomap",
)
VERBS = (
    "read",
    "write",
    "fault",
    "alloc",
    "map",
    "open",
    "submit",
    "queue",
    "charge",
    "walk",
    "init",
)
NOUNS = ("page", "folio", "inode", "bio", "sock", "range", "entry", "table", "node", "work", "iter")
MODULES = ("xfs", "nf_tables", "btrfs", "mlx5_core", "nvme", "kvm")
ROOTS = (
    "do_user_addr_fault+0x205/0x600\n exc_page_fault+0x61/0x130\n asm_exc_page_fault+0x26/0x30",
    "do_syscall_64+0x84/0x2f0\n entry_SYSCALL_64_after_hwframe+0x76/0x7e",
    "kthread+0xfc/0x240\n ret_from_fork+0x1c1/0x1f0\n ret_from_fork_asm+0x1a/0x30",
)
GFP = (
    (0x140DCA, "GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO", "Movable"),
    (
        0x152C4A,
        "GFP_NOFS|__GFP_HIGHMEM|__GFP_NOWARN|__GFP_NORETRY|__GFP_COMP|__GFP_HARDWALL",
        "Movable",
    ),
    (0xCC0, "GFP_KERNEL", "Unmovable"),
    (0xD2040, "__GFP_IO|__GFP_NOWARN|__GFP_NORETRY|__GFP_COMP|__GFP_NOMEMALLOC", "Unmovable"),
    (0x52CD0, "GFP_KERNEL|__GFP_NOWARN|__GFP_NORETRY|__GFP_COMP|__GFP_RECLAIMABLE", "Reclaimable"),
)
FLAGS = (
    "0x17ffffc0020028(uptodate|lru|mappedtodisk|node=0|zone=2|lastcpupid=0x1fffff)",
    "0x17ffffc0000000(node=0|zone=2|lastcpupid=0x1fffff)",
    "0x57ffffc002002c(referenced|uptodate|lru|mappedtodisk|node=1|zone=2|lastcpupid=0x1fffff)",
)
COMMS = (
    "systemd",
    "kworker/u8:1",
    "java",
    "postgres",
    "containerd-shim",
    "bash",
    "khugepaged",
    "ksmd",
)
# Forms without a process.
BEFORE_5_18 = ("5.10", "5.11", "5.15")


@dataclass(frozen=True)
class Stack:
    """A made-up stack: its depot handle, its lines as printed, and how it allocates."""

    handle: int
    text: str  # " frame\n frame\n", leaf first
    order: int
    gfp: tuple[int, str, str]


def make_stacks(count: int, seed: int = 1) -> list[Stack]:
    """Distinct stacks of 8 to 25 frames."""
    chance = random.Random(seed)
    found: dict[str, Stack] = {}
    while len(found) < count:
        frames = [*chance.choice(LEAVES), chance.choice(ALLOCATORS)]
        for _ in range(chance.randint(3, 16)):
            name = "_".join(map(chance.choice, (PARTS, VERBS, NOUNS)))
            size = chance.randrange(0x40, 0x1000, 0x10)
            module = f" [{chance.choice(MODULES)}]" if chance.random() < 0.15 else ""
            frames.append(f"{name}+{chance.randrange(size):#x}/{size:#x}{module}")
        frames.append(chance.choice(ROOTS))
        text = "".join(f" {frame}\n" for frame in frames)
        handle = 27000000 + 37 * len(found)
        order = chance.choices((0, 1, 2, 3, 9), (90, 4, 3, 2, 1))[0]
        found[text] = Stack(handle, text, order, chance.choice(GFP))
    return list(found.values())


def page_owner_record(
    stack: str,
    *,
    order: int = 0,
    gfp: tuple[int, str, str] = GFP[0],
    pid: int = 1,
    tgid: int = 1,
    comm: bytes = b"systemd",
    ts: int = 1,
    pfn: int = 0,
    block_type: str = "Movable",
    flags: str = FLAGS[0],
    form: str = "7.2",
    handle: int | None = None,
    tail: bytes = b"",
) -> bytes:
    """
    One record of ``page_owner``.

    :param form: ``5.10`` (no thread, no time), ``5.11`` (no process), ``5.15`` (that, and free_ts),
        ``6.1`` (free_ts), all of these with a decimal PFN; ``6.6`` (free_ts) or ``7.2``.
    :param handle: print the line of 7.3's modes ``handle`` and ``stack_handle``.
    :param tail: lines about migration and memcg.
    """
    thread = "" if form == "5.10" else f", pid {pid}"
    time = "" if form == "5.10" else f", ts {ts} ns"
    if form in ("5.15", "6.1", "6.6"):
        time += ", free_ts 0 ns"
    process = b"" if form in BEFORE_5_18 else b", tgid %d (%b)" % (tgid, comm)
    place = f"{pfn}" if form in (*BEFORE_5_18, "6.1") else f"{pfn:#x}"
    mask, names, migratetype = gfp
    return b"".join(
        (
            f"Page allocated via order {order}, mask {mask:#x}({names}){thread}".encode(),
            process,
            f"{time}\n"
            f"PFN {place} type {migratetype} Block {pfn >> 9} type {block_type} Flags {flags}\n"
            f"{stack}{'' if handle is None else f'handle: {handle}' + chr(10)}".encode(),
            tail,
            b"\n",
        )
    )


def page_owner_records(
    stacks: list[Stack], records: int, *, seed: int = 2, form: str = "7.2"
) -> Iterator[bytes]:
    """Records of ``page_owner``, the stack of rank n as often as 1/n, in runs as on a machine."""
    chance = random.Random(seed)
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(stacks) + 1)))
    tasks = [
        (pid, pid if pid % 3 else pid - 1, COMMS[pid % len(COMMS)].encode())
        for pid in (chance.randrange(2, 99999) for _ in range(300))
    ]
    tails = [b"" for _ in range(6)] + [b"Slab cache page\n"]
    tails += [f"Charged to memcg app-{n}.service\n".encode() for n in range(20)]
    tails += [
        b"Page has been migrated, last migrate reason: compaction\nCharged to memcg init.scope\n"
    ]
    pfn, ts = 0x1000, 10**9
    while records:
        stack = chance.choices(stacks, cum_weights=weights)[0]
        pid, tgid, comm = chance.choice(tasks)
        tail = chance.choice(tails)
        for _ in range(min(records, chance.choice((1, 2, 5, 10, 20)))):
            pfn += 1 << stack.order
            ts += chance.randrange(1000, 100000)
            records -= 1
            yield page_owner_record(
                stack.text,
                order=stack.order,
                gfp=stack.gfp,
                pid=pid,
                tgid=tgid,
                comm=comm,
                ts=ts,
                pfn=pfn,
                block_type=stack.gfp[2] if pfn % 7 else "Movable",
                flags=FLAGS[pfn % 3],
                form=form,
                tail=tail,
            )


def series(stacks: list[Stack], count: int, *, seed: int = 3) -> Iterator[list[tuple[Stack, int]]]:
    """Pages of each stack at ``count`` moments: a few only grow, a fifth moves, the rest stays."""
    chance = random.Random(seed)
    pages = [max(60000 // rank, 1) for rank in range(1, len(stacks) + 1)]
    for _ in range(count):
        yield list(zip(stacks, pages, strict=True))
        for n in range(len(pages)):
            if n % 50 == 7:
                pages[n] += chance.randrange(1, 20)
            elif chance.random() < 0.2:
                pages[n] = max(pages[n] + chance.randrange(-8, 9), 1)


def show_stacks(snapshot: list[tuple[Stack, int]]) -> str:
    """As ``show_stacks`` prints it."""
    return "".join(f"{stack.text}nr_base_pages: {pages}\n\n" for stack, pages in snapshot)


def show_handles(snapshot: list[tuple[Stack, int]]) -> str:
    """As ``show_handles`` prints it."""
    return "".join(
        f"handle: {stack.handle}\nnr_base_pages: {pages}\n\n" for stack, pages in snapshot
    )


def show_stacks_handles(stacks: list[Stack]) -> str:
    """As ``show_stacks_handles`` prints it."""
    return "".join(f"{stack.text}handle: {stack.handle}\n\n" for stack in stacks)
