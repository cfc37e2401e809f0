# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Slab caches (``slab_caches``, SLUB) and every slab they have.

The slabs are found in the memory map, not on lists: a page is a slab if it has the slab page type
(PG_slab before v6.10) and its ``slab_cache`` is a cache. So slabs are found that are on no list (a
CPU's own, before v7.0), and a damaged list costs nothing. It takes a pass over the struct pages,
which ``struct slab`` overlays, shared with others (:class:`SlabFinder`) or its own; for each cache
the slabs found are held against ``nr_slabs``.

Sheaves, since "slab: add opt-in caching layer of percpu sheaves" (2d517aa09bbc, in v6.18), are
arrays of free objects that CPUs and nodes keep; ``inuse`` of a slab counts those as used, and so
does /proc/slabinfo. What waits in one for RCU is not free yet.

Cannot know: which objects of its slab a CPU keeps for itself before v7.0 (per-CPU freelists): they
count as in use, as they do in /proc/slabinfo. Kmalloc beyond the largest cache
(8 KiB on x86) has no slab and is in no cache; NR_SLAB_UNRECLAIMABLE_B counts it all the same.

The text that says the same is /proc/slabinfo (root only).
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
from drgn import FaultError, Object, Program, offsetof
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.rbtree import rbtree_inorder_for_each_entry
from drgn.helpers.linux.slab import slab_total_usage

from mmscope.drgn.opening.constants import flag, vmcoreinfo_number
from mmscope.drgn.reading.cpus import percpu_offsets
from mmscope.drgn.reading.kernel_arrays import (
    TORN,
    Array,
    Bools,
    Columns,
    Gaps,
    S64s,
    U64s,
    bit_field,
    read_array,
    struct_dtype,
)
from mmscope.drgn.reading.kernel_names import name_at
from mmscope.drgn.reading.linked_lists import find
from mmscope.drgn.reading.mem_sections import valid_page_ranges
from mmscope.drgn.reading.nodes import check_node_ids
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.reading.shares import SharedColumns, merges
from mmscope.drgn.reading.struct_pages import SLAB_COLUMNS, PageChunk, page_dtype, slab_type
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.tables.rows import LONGEST_NAME, MOST_ORDER, column, table_row
from mmscope.drgn.tables.table import Inside, Table, table
from mmscope.drgn.text.kernel_text import printed_number, row_number, whole_lines

# Flags where they are not enumerators yet, before "mm, slab: use an enum to define SLAB_ cache
# creation flags" (cc61eb851c9a, in v6.9).
FLAGS = {
    "_SLAB_STORE_USER": 0x00010000,
    "_SLAB_KMALLOC": 0x00001000,
    "_SLAB_RECLAIM_ACCOUNT": 0x00020000,
}
# More than any machine has: the list is damaged then, or runs in a circle.
MAX_CACHES = 20_000
MOST_IN_SYSFS = 1 << 16
MAX_SLABS = 4 << 20
SLABS_TOGETHER = 2048


@table("slab_caches", "Slab caches", measure="pages", inside=(Inside("slab", "pages"),))
class SlabCache:
    """A slab cache and what it holds."""

    cache: str = column(
        holds="kernel",
        key=True,
        low=1,
        high=LONGEST_NAME,
        help="name; with its address if not unique",
    )
    objects: int = column(
        high="slots",
        help="in use; text, or before 7.0: CPUs' free ones, too",
    )
    object_bytes: int | None = column(
        unit="bytes", low=1, high="slot_bytes", help="size that its user sees"
    )
    slot_bytes: int = column(unit="bytes", low=4, high=1 << 30, help="size with debug metadata")
    slots: int = column(help="room for objects in its slabs")
    slabs: int = column(unit="slabs", high="pages", help="slabs found")
    pages: int = column(unit="pages", help="pages of the slabs")
    store_user: bool | None = column(help="objects remember who allocated them (slab_debug=U)")
    sheaf_objects: int | None = column(
        high="slots",
        since="0.3.0",
        default=None,
        help="free objects in sheaves of CPUs and nodes; empty: before 6.18, or text",
    )


@table_row
class SlabCheck:
    """A disagreement about a cache's slabs."""

    cache: str = column(holds="kernel", key=True, help="name")
    problem: str = column(holds="words", key=True, help="what disagrees")
    slabs: int = column(unit="slabs", help="slabs affected")
    objects: int | None = column(help="objects missing from all counts")


SLAB_CHECKS = Table(
    "slab_checks",
    "Slab caches that do not add up",
    SlabCheck,
    empty="Every cache's slabs agree with its counts.",
)
SLAB_OWNER_CHECKS = Table("slab_owner_checks", "Tracks that do not add up", SlabCheck)


@dataclass(frozen=True, slots=True)
class Cache:
    """``struct kmem_cache``: what is needed to find objects in a slab."""

    address: int
    name: str
    store_user: bool
    kmalloc: bool
    reclaimable: bool
    size: int  # of a slot
    object_size: int
    inuse: int
    offset: int  # of the free pointer in an object
    red_left_pad: int
    random: int | None  # CONFIG_SLAB_FREELIST_HARDENED
    orders: dict[int, int]  # objects of a slab to its order
    nr_slabs: int | None  # None without CONFIG_SLUB_DEBUG


# A node keeps 10 full sheaves at most (MAX_FULL_SHEAVES, mm/slub.c, 7.2).
MOST_SHEAVES = 1000

# A slab: its cache by its position in the list of caches.
SLAB = np.dtype(
    [("pfn", "<u8"), ("cache", "<u2"), ("objects", "<u2"), ("inuse", "<u2"), ("freelist", "<u8")]
)
# What is counted of each cache; odd slabs have another number of objects than the cache's.
TOTALS = np.dtype(
    [(name, np.int64) for name in ("slabs", "slots", "objects", "pages", "odd", "empty")]
)


def read_caches(prog: Program) -> tuple[list[Cache], str | None]:
    """
    Every ``struct kmem_cache``, and why their list could not be followed to its end, if so.

    :raises LookupError: the allocator is not SLUB.
    """
    if not prog.type("struct kmem_cache").has_member("offset"):
        raise LookupError("the slab allocator is not SLUB")
    masks = {name: flag(prog, name, old) for name, old in FLAGS.items()}
    caches: list[Cache] = []
    names: set[str] = set()
    lost = 0
    try:
        head = prog["slab_caches"].address_of_()
        for number, cache in enumerate(list_for_each_entry("struct kmem_cache", head, "list")):
            if number == MAX_CACHES:
                return caches, "the list of slab caches runs in a circle"
            try:
                caches.append(_read_cache(prog, cache, masks, names))
            except FaultError:
                lost += 1
    except FaultError as error:
        return caches, f"the list of slab caches breaks off after {len(caches) + lost}: {error}"
    return caches, f"{lost} slab caches could not be read" if lost else None


def _read_cache(prog: Program, cache: Object, masks: dict[str, int], names: set[str]) -> Cache:
    address = cache.value_()
    try:
        name = name_at(cache.name)
    except FaultError:
        name = ""
    if not name or name in names:
        name = f"{name} ({address:#x})".strip()
    names.add(name)
    flags = cache.flags.value_()
    oo, least = cache.oo.x.value_(), cache.min.x.value_()
    return Cache(
        address=address,
        name=name,
        store_user=bool(flags & masks["_SLAB_STORE_USER"]),
        kmalloc=bool(flags & masks["_SLAB_KMALLOC"]),
        reclaimable=bool(flags & masks["_SLAB_RECLAIM_ACCOUNT"]),
        size=cache.size.value_(),
        object_size=cache.object_size.value_(),
        inuse=cache.inuse.value_(),
        offset=cache.offset.value_(),
        red_left_pad=cache.red_left_pad.value_() if hasattr(cache, "red_left_pad") else 0,
        random=cache.random.value_() if hasattr(cache, "random") else None,
        orders={value & 0xFFFF: value >> 16 for value in (least, oo)},
        nr_slabs=_nr_slabs(cache),
    )


def cache_nodes(cache: Object) -> Iterator[Object]:
    """
    ``struct kmem_cache_node *`` of each node of a ``struct kmem_cache *``; NULL: it has none.

    :raises ValueError: ``nr_node_ids`` cannot be a number of nodes.
    """
    # "slab: decouple pointer to barn from kmem_cache_node" (5ba6bc27b1f9, in v7.1)
    moved = hasattr(cache, "per_node")
    for node in range(check_node_ids(cache.prog_, "nr_node_ids")):
        yield cache.per_node[node].node if moved else cache.node[node]


def _nr_slabs(cache: Object) -> int | None:
    """The slabs of all nodes, as the cache counts them; None if it does not, or unreadable."""
    try:
        # A NULL pointer does not fault in every core (QEMU's give p_vaddr = p_paddr).
        return sum(int(node.nr_slabs.counter) for node in cache_nodes(cache) if node)
    except (AttributeError, FaultError, ValueError):
        return None


class SlabFinder(SharedColumns):
    """
    Consumer of the struct page pass: where every slab is, so that :class:`SlabScan` needs no pass
    of its own.

    Memory: 22 bytes a slab, up to :data:`MAX_SLABS`, or fewer where memory is tight; with more it
    has none of them.

    :param caches: what :func:`read_caches` gave.

    :raises LookupError: the kernel's layout is unknown, or its allocator is not SLUB.
    """

    columns = ("flags", "mapcount", *SLAB_COLUMNS)
    ROWS = "slabs"
    KINDS = (SLAB,)
    MERGES = merges(slabs=add)

    def __init__(self, prog: Program, caches: tuple[list[Cache], str | None] | None = None) -> None:
        self.caches, self.broken_off = read_caches(prog) if caches is None else caches
        self.dtype = page_dtype(prog, self.columns)
        addresses = np.array([cache.address for cache in self.caches], np.uint64)
        self._order = np.argsort(addresses)
        self._addresses = addresses[self._order]
        # "mm: free up PG_slab" (46df8e73a4a3, in v6.10)
        self._mapcount = vmcoreinfo_number(prog, "NUMBER(PAGE_SLAB_MAPCOUNT_VALUE)")
        self._flag = np.uint64(flag(prog, "PG_slab") if self._mapcount is None else 0)
        # The counters of struct slab are bit fields, whose neighbours change.
        slab = slab_type(prog)
        word = offsetof(slab, "counters") * 8
        self._bits = {}
        for name in ("objects", "inuse"):
            shift, size = bit_field(slab, name)
            self._bits[name] = np.uint64(shift - word), np.uint64((1 << size) - 1)
        self.slabs, self.MOST = 0, MAX_SLABS
        super().__init__()

    def find(self, start_pfn: int, pages: Array) -> Array:
        """The slabs that begin in some struct pages."""
        if self._mapcount is not None:
            heads = pages["mapcount"].view(np.uint32) == np.uint32(self._mapcount & 0xFFFFFFFF)
        else:
            heads = (pages["flags"] & self._flag) != 0
        at = np.flatnonzero(heads)
        cache = find(self._addresses, pages["slab_cache"][at])
        at, cache = at[cache >= 0], cache[cache >= 0]
        found = np.empty(len(at), SLAB)
        found["pfn"], found["cache"] = start_pfn + at, self._order[cache]
        found["freelist"] = pages["freelist"][at]
        for name, (shift, mask) in self._bits.items():
            found[name] = pages["counters"][at] >> shift & mask
        return found

    def take(self, chunk: PageChunk) -> None:
        self.keep(self.find(chunk.start_pfn, chunk.columns))

    @property
    def whole(self) -> bool:
        """True if it has all slabs."""
        return not self.overflowed

    def chunks(self) -> Iterator[Array]:
        """The slabs, by their address."""
        for begin in range(0, self.slabs, SLABS_TOGETHER):
            yield self._kept[0][begin : min(begin + SLABS_TOGETHER, self.slabs)]


class SlabScan:
    """
    Every slab of every cache: arrays of :data:`SLAB`, those of an array read at one instant.

    :ivar totals: by cache, of what was iterated over.
    :ivar broken_off: why there may be more caches.
    :param found: the slabs, by a pass that went before, and what that could not read.
    :param progress: called with (pages done, pages in all).
    :raises LookupError: the kernel's layout is unknown, or its allocator is not SLUB.
    """

    def __init__(
        self,
        prog: Program,
        found: tuple[SlabFinder, Gaps] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.prog, self.progress, self.gaps = prog, progress, Gaps()
        self._found = found is not None and found[0].whole
        if found is not None and self._found:
            self._finder, self.gaps = found[0], Gaps(found[1].bytes, found[1].died)
        else:
            self._finder = SlabFinder(prog)
        self.caches, self.broken_off = self._finder.caches, self._finder.broken_off
        self.totals = np.zeros(len(self.caches), TOTALS)
        # The numbers of objects that a cache's slabs have, one or two, with their orders.
        made = [[*cache.orders.items()] for cache in self.caches]
        self._made = np.array([(each[0], each[-1]) for each in made], np.int64).reshape(-1, 2, 2)

    def __iter__(self) -> Iterator[Array]:
        for slabs in self._finder.chunks() if self._found else self._pass():
            counted: dict[str, Any] = {
                "slabs": 1,
                "slots": slabs["objects"],
                "objects": slabs["inuse"],
                "pages": self.pages_of(slabs),
                "odd": ~self.plausible(slabs),
                "empty": slabs["inuse"] == 0,
            }
            for name, values in counted.items():
                np.add.at(self.totals[name], slabs["cache"], values)
            yield slabs

    def plausible(self, slabs: Array) -> Bools:
        """Slabs with as many objects as their cache makes; others are KFENCE's, or damaged."""
        made = self._made[slabs["cache"]][:, :, 0]
        return np.asarray((slabs["objects"][:, None] == made).any(axis=1))

    def pages_of(self, slabs: Array) -> S64s:
        """Pages of each slab; of one that is not plausible: at least."""
        made = self._made[slabs["cache"]]
        fits = slabs["objects"][:, None] == made[:, :, 0]
        return np.asarray(np.int64(1) << (fits * made[:, :, 1]).max(axis=1))

    def _pass(self) -> Iterator[Array]:
        """A pass over every struct page."""
        dtype, ranges = self._finder.dtype, valid_page_ranges(self.prog)
        total, done = sum(end - start for start, end, _ in ranges), 0
        for start_pfn, end_pfn, address in ranges:
            pages = end_pfn - start_pfn
            for first, array in read_array(self.prog, address, pages, dtype, self.gaps):
                done += len(array)
                if self.progress is not None:
                    self.progress(done, total)
                slabs = self._finder.find(start_pfn + first, array)
                if len(slabs):
                    yield slabs


def slab_scan(memory: Memory) -> SlabScan:
    """
    The slabs of a memory that is read: those that the first pass found, else by a pass of its own.

    :raises LookupError: as :class:`SlabScan`.
    """
    return SlabScan(memory.prog, memory.kept_consumer(SlabFinder), memory.progress)


def misnamed(prog: Program) -> list[str]:
    """
    In words, which of the first two caches does not go by its name: then others may not, either.

    ``kmem_cache_init()`` (mm/slub.c) names them after the variables that hold them.
    """
    words = []
    for name in ("kmem_cache", "kmem_cache_node"):
        with contextlib.suppress(LookupError, FaultError):
            if (given := name_at(prog[name].name)) != name:
                words.append(
                    f"the slab cache {name} goes by the name {given[:40]!r}: names of slab caches "
                    "are damaged"
                )
    return words[:1] or _not_in_sysfs(prog)


def _not_in_sysfs(prog: Program) -> list[str]:
    """
    In words, which slab caches are not in /sys/kernel/slab by their name (``sysfs_slab_add()``,
    mm/slub.c: a directory, or a link to that of merged caches). One that is just made or destroyed
    is not there, or could not be put there: where many are not, none is judged. Names that are
    constants of the kernel's are in one place for both (``kstrdup_const()``).
    """
    try:
        children = prog["slab_kset"].kobj.sd.dir.children.address_of_()
        nodes = rbtree_inorder_for_each_entry("struct kernfs_node", children, "rb")
        there = {name_at(node.name) for node in itertools.islice(nodes, MOST_IN_SYSFS)}
        caches = list_for_each_entry("struct kmem_cache", prog["slab_caches"].address_of_(), "list")
        names = [name_at(each.name) for each in itertools.islice(caches, MOST_IN_SYSFS)]
    except TORN:
        return []
    lost = [name for name in names if name not in there]
    if not lost or len(lost) * 10 > len(names):
        return []
    return [f"no slab cache in sysfs is called {lost[0][:40]!r}: about to come or go, or damage"]


def has_sheaves(prog: Program) -> bool:
    """True of a kernel whose caches may have sheaves."""
    return bool(prog.type("struct kmem_cache").has_member("cpu_sheaves"))


def objects_in_sheaves(prog: Program, caches: list[Cache]) -> list[int | None]:
    """
    Free objects that each cache keeps in sheaves: of a CPU its ``main`` and ``spare``, of a node
    the full ones of its barn. None: there are none in this kernel, or they could not be read.
    """
    found: list[int | None] = [None] * len(caches)
    if not has_sheaves(prog):
        return found
    with contextlib.suppress(FaultError, ValueError):
        addresses = np.array([cache.address for cache in caches], np.uint64)
        cache_type = prog.type("struct kmem_cache")
        columns: Columns = {"sheaves": "cpu_sheaves", "capacity": "sheaf_capacity"}
        declared, known = read_scattered(
            prog, addresses, struct_dtype(cache_type, columns), gaps := Gaps()
        )
        owner, sheaf, read = _sheaves_of_cpus(prog, declared["sheaves"], gaps)
        np.logical_and.at(known, owner, read)
        full: list[tuple[int, int]] = []
        for at, address in enumerate(addresses.tolist()):
            try:
                full += [(at, each) for each in _full_sheaves(prog, address)]
            except (FaultError, ValueError):
                known[at] = False
        of_nodes = np.array(full, np.uint64).reshape(-1, 2)
        owner = np.concatenate([owner[sheaf != 0], of_nodes[:, 0].astype(np.int64)])
        sheaf = np.concatenate([sheaf[sheaf != 0], of_nodes[:, 1]])
        dtype = struct_dtype(prog.type("struct slab_sheaf"), {"size": "size"})
        sizes, read = read_scattered(prog, sheaf, dtype, gaps)
        sound = read & (sizes["size"] <= declared["capacity"][owner])
        np.logical_and.at(known, owner, sound)
        free = np.bincount(owner[sound], sizes["size"][sound], len(caches)).astype(int).tolist()
        found = [n if is_known else None for n, is_known in zip(free, known, strict=True)]
    return found


def _sheaves_of_cpus(prog: Program, percpu: U64s, gaps: Gaps) -> tuple[S64s, U64s, Bools]:
    """
    The caches' positions, the sheaves of each CPU (0: it has none) and whether both were read.

    :param percpu: of each cache, its ``cpu_sheaves``; 0: it has none.
    """
    at, offsets = np.flatnonzero(percpu), percpu_offsets(prog)
    columns: Columns = {"main": "main", "spare": "spare"}
    dtype = struct_dtype(prog.type("struct slub_percpu_sheaves"), columns)
    here = (percpu[at][:, None] + offsets).ravel()
    kept, read = read_scattered(prog, here, dtype, gaps)
    owner = np.tile(np.repeat(at, len(offsets)), 2)
    return owner, np.concatenate([kept["main"], kept["spare"]]), np.tile(read, 2)


def _full_sheaves(prog: Program, address: int) -> list[int]:
    """The full sheaves that the nodes keep for a cache, unlocked: on a live kernel they move."""
    cache = Object(prog, "struct kmem_cache", address=address)
    moved, found = hasattr(cache, "per_node"), list[int]()  # 5ba6bc27b1f9, in v7.1
    for number in range(check_node_ids(prog, "nr_node_ids")):
        node = cache.per_node[number] if moved else cache.node[number]
        if (moved or node) and node.barn:
            full = node.barn.sheaves_full.address_of_()
            for sheaf in list_for_each_entry("struct slab_sheaf", full, "barn_list"):
                found.append(sheaf.value_())
                if len(found) > MOST_SHEAVES * (number + 1):
                    raise ValueError("the list of full sheaves runs in a circle")
    return found


def pages_in_no_cache(prog: Program, scan: SlabScan) -> int:
    """
    Pages that the kernel counts as slab (NR_SLAB_RECLAIMABLE_B, NR_SLAB_UNRECLAIMABLE_B) beyond
    those of the slabs found: kmalloc beyond the largest cache.
    """
    return slab_total_usage(prog).total_pages - int(scan.totals["pages"].sum())


def slab_caches(scan: SlabScan) -> tuple[list[SlabCache], list[SlabCheck]]:
    """All caches, those with most memory first, and those whose slabs do not add up."""
    rows, checks = [], []
    kept = objects_in_sheaves(scan.prog, scan.caches)
    page = int(scan.prog["PAGE_SIZE"].value_())
    for cache, counted, free in zip(scan.caches, scan.totals.tolist(), kept, strict=True):
        slabs, slots, objects, pages, odd, empty = counted
        size, tracks = cache.object_size, cache.store_user
        used = max(objects - (free or 0), 0)
        rows.append(
            SlabCache(cache.name, used, size, cache.size, slots, slabs, pages, tracks, free)
        )
        # discard_slab() (mm/slub.c) takes an empty slab off nr_slabs before its pages are freed: by
        # RCU, so some time later, where the cache is SLAB_TYPESAFE_BY_RCU.
        if cache.nr_slabs is not None and not 0 <= slabs - cache.nr_slabs <= empty:
            problem = f"nr_slabs is {cache.nr_slabs}, but {slabs} slabs were found"
            checks.append(SlabCheck(cache.name, problem, abs(cache.nr_slabs - slabs), None))
        if not _as_made(cache, page):
            problem = "its slabs have room for another number of objects of its size: damaged"
            checks.append(SlabCheck(cache.name, problem, slabs, None))
        if odd:
            problem = "a number of objects that the cache does not make: KFENCE's, or damaged"
            checks.append(SlabCheck(cache.name, problem, odd, None))
    return sorted(rows, key=lambda row: (-row.pages, row.cache)), checks


def _as_made(cache: Cache, page: int) -> bool:
    """True if its slabs are as ``calculate_sizes()`` and ``oo_make()`` (mm/slub.c) make them."""
    size, orders = max(cache.size, 1), cache.orders.items()
    fits = all(
        objects == (page << order) // size for objects, order in orders if order <= MOST_ORDER
    )
    return fits and cache.object_size <= cache.inuse <= size


# A cache's name may be anything; the numbers are counted from the end.
OF_CACHE = re.compile(
    r"(.+?) +(\d+) +(\d+) +(\d+) +\d+ +(\d+) : tunables [\d ]+ : slabdata +\d+ +(\d+) +\d+ *"
)


# A row of slabtop (procps-ng), whose sizes are in KiB: a slot's with two digits.
OF_SLABTOP = re.compile(r" *(\d+) +(\d+) +\d+% +(\d+)[.,](\d\d)K +(\d+) +(\d+) +(\d+)K (.+?) *")


def read_slabinfo(text: str, page_size: int = 4096) -> list[SlabCache]:
    """
    The same rows from /proc/slabinfo, which has neither the object's own size nor the flags.

    Without its first line it is a part of the file, or slabtop's output (:func:`slab_part`).

    :param page_size: of the kernel, in bytes; slabtop has KiB alone.
    :raises ValueError: the text is neither, or it is cut short.
    """
    lines = whole_lines(text, "/proc/slabinfo")
    part = slab_part(text)
    if part and not (lines[0].startswith("# name") or _cache_of(lines[0], page_size)):
        raise ValueError("not /proc/slabinfo: it does not begin with its version")
    rows = []
    for line in lines if part else lines[1:]:
        if line.startswith("#"):
            continue
        if (row := _cache_of(line, page_size)) is None:
            raise ValueError(f"/proc/slabinfo is damaged: {line[:60]!r}")
        rows.append(row)
    return sorted(rows, key=lambda row: (-row.pages, row.cache))


def _cache_of(line: str, page_size: int) -> SlabCache | None:
    """The cache of a line of /proc/slabinfo or of slabtop; None if it is neither."""
    if match := OF_CACHE.fullmatch(line):
        used, slots, size, pages, slabs = (
            printed_number(number, "/proc/slabinfo") for number in match.groups()[1:]
        )
        pages = row_number(slabs * pages, "/proc/slabinfo")
        return SlabCache(match[1], used, None, size, slots, slabs, pages, None)
    if match := OF_SLABTOP.fullmatch(line):
        slots, used, whole, hundredths, slabs, per_slab, kib = (
            printed_number(number, "slabtop") for number in match.groups()[:-1]
        )
        largest = int((whole + (hundredths + 0.5) / 100) * 1024)
        if slabs * per_slab:  # no more than a slab has room for
            largest = min(largest, (kib << 10) // (slabs * per_slab))
        size = max(largest & ~7, 8)
        return SlabCache(match[8], used, None, size, slots, slabs, (kib << 10) // page_size, None)
    return None


def slab_part(text: str) -> str:
    """In words, that a text is a part of /proc/slabinfo, as of grep or sort; empty if it is not."""
    if text.startswith("slabinfo - version: 2"):
        return ""
    if "slabdata" not in text:
        return "slabtop rounds the sizes of slots to 0.01 KiB and may show the first caches alone"
    return "/proc/slabinfo is not whole: its first line is not there"


def caches_once(memory: Memory) -> tuple[list[Cache], str | None]:
    """As :func:`read_caches`, once for all sections."""
    return memory.once("slab caches", lambda: read_caches(memory.prog))


def slab_consumer(memory: Memory) -> SlabFinder | None:
    """
    Finds slabs while another section passes over the struct pages.

    Not on a live kernel: there slabs are looked at when they are found, later they are others'.
    """
    return None if memory.live else SlabFinder(memory.prog, caches_once(memory))


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("slab_caches")
