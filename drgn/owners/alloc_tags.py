# SPDX-License-Identifier: LGPL-2.1-or-later
"""
``struct alloc_tag`` (include/linux/alloc_tag.h): the lines of the kernel's source that allocate,
and what each of them holds. The text that says the same is /proc/allocinfo.

``alloc_tag_cttype`` (lib/alloc_tag.c; mm/alloc_tag.c in 7.3) has a range of tags for the kernel
and for each module (``codetag_module.range``). A tag has counters for each possible CPU, which
``alloc_tag_read()`` adds up, and so does this. Tags of kernels since "lib: add allocation tagging
support for memory allocation profiling" (22d407b164ff, in v6.10).

What the counters count (7.2): pages of an allocation by ``__pgalloc_tag_add()`` (mm/page_alloc.c);
slots of slab objects by ``__alloc_tagging_slab_alloc_hook()`` (mm/slub.c), while the pages of their
slabs are those of ``alloc_slab_page()``; of percpu memory the size for one CPU by
``pcpu_alloc_tag_alloc_hook()`` (mm/percpu.c), in 7.3 that for all and what describes it
(``pcpu_obj_full_size()``). So they do not add up to memory: the same page may be in two of them,
and up to 7.2 a percpu allocation is larger than its tag says.

Costs some reads for thousands of tags and their names. Cannot know: what was allocated before
page_ext was there, while profiling was off, or in the first percpu chunk, which has no room for
references (``pcpu_alloc_first_chunk()``); of which processes or devices it is.
"""

import contextlib
from collections.abc import Iterable, Sequence

import numpy as np
from drgn import Program, sizeof

from mmscope.drgn.cgroups.id_trees import xarray_pointers
from mmscope.drgn.reading.cpus import percpu_offsets
from mmscope.drgn.reading.kernel_arrays import Bools, Gaps, S64s, U64s, read_array, struct_dtype
from mmscope.drgn.reading.kernel_names import names_at
from mmscope.drgn.reading.scattered_reads import read_scattered
from mmscope.drgn.sections import prices
from mmscope.drgn.sections.files import Absent, Files
from mmscope.drgn.sections.memory import Memory
from mmscope.drgn.sections.section import TOP, Command, Found, Section
from mmscope.drgn.tables.display import if_any
from mmscope.drgn.tables.rows import LONGEST_NAME, column
from mmscope.drgn.tables.table import table, tables_of
from mmscope.drgn.text.allocinfo import ALLOCINFO, HEADER, LINE
from mmscope.drgn.text.kernel_text import MAX_COUNT, whole_lines

MAX_TAGS = 1 << 20  # a kernel with all its modules has some tens of thousands
INACCURATE = 1  # CODETAG_FLAG_INACCURATE, include/linux/codetag.h (7.2; 6.12 has no flags)
MAX_ERRNO = 4095  # IS_ERR(), include/linux/err.h


@table(
    "alloc_tags", "Memory by the line of source that allocated it", measure="bytes", memory="again"
)
class AllocTag:
    """A line of the kernel's source that allocates."""

    module: str = column(holds="kernel", key=True, help="module; empty: the kernel itself")
    file: str = column(holds="source", key=True, help="source file, as the compiler was told it")
    line: int = column(key=True, high=1 << 32, help="line in the file")
    function: str = column(holds="kernel", key=True, help="function that allocates")
    tags: int = column(
        low=1, high=MAX_TAGS, help="tags of this line; an inline function has one for each caller"
    )
    calls: int | None = column(
        help="allocations held; each piece of a split block counts; empty: not readable"
    )
    bytes: int | None = column(
        unit="bytes",
        help="pages, slab slots, or percpu size of one CPU (7.3: of all); empty: not readable",
    )
    accurate: bool = column(help="false: the kernel says that its counts are incomplete")


NOT_COMPILED_IN = (
    "alloc tags are not compiled in; boot a kernel with CONFIG_MEM_ALLOC_PROFILING=y, with "
    "sysctl.vm.mem_profiling=1 on its command line"
)
NEVER = (
    "memory allocation profiling is compiled in, but was not on at boot or has shut itself down, "
    "which the kernel's log says; boot with sysctl.vm.mem_profiling=1"
)
OFF = (
    "memory allocation profiling is compiled in, but switched off; boot with "
    "sysctl.vm.mem_profiling=1"
)
STALE = (
    "memory allocation profiling is switched off (vm.mem_profiling): the counters are as they were "
    "then"
)

Source = tuple[str, str, int, str]  # module, file, line and function
Tag = tuple[Source, int | None, int | None, bool]  # with bytes, calls, and if these are accurate


def alloc_tags_off(prog: Program) -> str | None:
    """Why there are no tags, and what to do; None if there are."""
    try:
        types = prog["alloc_tag_cttype"].value_()
        prog.type("struct alloc_tag")
    except LookupError:
        return NOT_COMPILED_IN
    return NEVER if not types or types >= (1 << 64) - MAX_ERRNO else None


def profiling_on(prog: Program) -> bool:
    """True if allocations are counted now (``mem_alloc_profiling_enabled()``)."""
    return bool(prog["mem_alloc_profiling_key"].key.enabled.counter.value_() > 0)


def read_tags(prog: Program) -> tuple[dict[int, Tag], Gaps, list[str]]:
    """
    Read every tag and its counters.

    :return: the tags by address; and what could not be read, in words as well.
    :raises LookupError: the kernel's layout is unknown.
    :raises FaultError: the type of the tags, or the offsets of CPUs, cannot be read.
    :raises ValueError: the mask of possible CPUs is damaged.
    """
    gaps, notes = Gaps(), list[str]()
    tag = prog.type("struct alloc_tag")
    dtype = struct_dtype(
        tag,
        {
            "flags": "ct.flags",
            "line": "ct.lineno",
            "module": "ct.modname",
            "function": "ct.function",
            "file": "ct.filename",
            "counters": "counters",
        },
    )
    addresses, parts = [np.empty(0, np.uint64)], [np.empty(0, dtype)]
    for start, count in _ranges(prog, sizeof(tag), gaps, notes):
        for first, part in read_array(prog, start, count, dtype, gaps):
            numbers = np.arange(first, first + len(part), dtype=np.uint64)
            addresses.append(np.uint64(start) + numbers * np.uint64(dtype.itemsize))
            parts.append(part)
    found, order = np.unique(np.concatenate(addresses), return_index=True)
    raw = np.concatenate(parts)[order]
    counts, counted = _counts(prog, raw["counters"].astype(np.uint64), gaps)
    modules, files, functions = (_names(prog, raw[name]) for name in ("module", "file", "function"))
    sources = zip(modules, files, raw["line"].tolist(), functions, strict=True)
    accurate = ((raw["flags"] & INACCURATE) == 0).tolist()
    tags: list[Tag] = [
        (source, size if known else None, calls if known else None, exact)
        for source, (size, calls), known, exact in zip(
            sources, counts.tolist(), counted.tolist(), accurate, strict=True
        )
    ]
    nameless = sum(name.startswith("(0x") for name in modules + files + functions)
    notes += if_any(nameless, "{} of tags could not be read: shown by address", "name")
    notes += if_any(int(np.count_nonzero(~counted)), "the counters of {} could not be read", "tag")
    return dict(zip(found.tolist(), tags, strict=True)), gaps, notes


def _ranges(prog: Program, size: int, gaps: Gaps, notes: list[str]) -> list[tuple[int, int]]:
    """Arrays of tags, of the kernel and of each module: (address, number of tags)."""
    modules, damaged = xarray_pointers(prog, prog["alloc_tag_cttype"].mod_idr.idr_rt, gaps)
    notes += if_any(damaged, "{} of the tree of modules could not be followed", "node")
    dtype = struct_dtype(
        prog.type("struct codetag_module"), {"start": "range.start", "stop": "range.stop"}
    )
    rows, read = read_scattered(prog, modules, dtype, gaps)
    notes += if_any(int(np.count_nonzero(~read)), "the tags of {} could not be found", "module")
    found, total = [], 0
    for start, stop in zip(rows["start"][read].tolist(), rows["stop"][read].tolist(), strict=True):
        count, rest = divmod(stop - start, size)
        if rest or not 0 <= count <= MAX_TAGS - total:
            notes.append(f"a range of tags is damaged: {start:#x} to {stop:#x}")
            continue
        total += count
        found.append((start, count))
    return found


def _counts(prog: Program, counters: U64s, gaps: Gaps) -> tuple[S64s, Bools]:
    """``alloc_tag_read()``: (bytes and calls of each tag, whose could be read)."""
    dtype = struct_dtype(
        prog.type("struct alloc_tag_counters"), {"bytes": "bytes", "calls": "calls"}
    )
    sums = np.zeros((len(counters), 2), np.int64)
    counted = counters != 0
    for offset in percpu_offsets(prog):
        rows, read = read_scattered(prog, counters + offset, dtype, gaps)
        counted &= read
        # What is freed on another CPU than it was allocated on is below zero there.
        sums[:, 0] += rows["bytes"].astype(np.int64)
        sums[:, 1] += rows["calls"].astype(np.int64)
    return sums, counted


def _names(prog: Program, pointers: U64s) -> list[str]:
    """The names of a column; empty where there is no pointer."""
    unique, back = np.unique(pointers, return_inverse=True)
    names = [
        ("" if not address else f"({address:#x})" if name is None else name)
        for address, name in zip(unique.tolist(), names_at(prog, unique), strict=True)
    ]
    return [names[at] for at in back.tolist()]


def alloc_tag_rows(tags: Iterable[Tag], *, live: bool = False) -> list[AllocTag]:
    """
    The rows of all tags, one for those of a line, what holds most first.

    :param live: the kernel went on meanwhile. What was then allocated on a CPU that had been read,
        and freed on one that was read later, may leave less than zero: that is shown as zero.
    """
    by_source: dict[Source, list[tuple[int | None, int | None, bool]]] = {}
    for source, size, calls, accurate in tags:
        if live and size is not None and calls is not None:
            size, calls = max(size, 0), max(calls, 0)
        by_source.setdefault(source, []).append((size, calls, accurate))
    rows = []
    for source, counts in by_source.items():
        held = known_sum([calls for _, calls, _ in counts])
        total = known_sum([size for size, _, _ in counts])
        exact = all(accurate for _, _, accurate in counts)
        rows.append(AllocTag(*source, len(counts), held, total, exact))
    return sorted(rows, key=lambda row: (-(row.bytes or 0), row.module, row.file, row.line))


def known_sum(values: Sequence[int | None]) -> int | None:
    """The sum; None if a value is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def read_allocinfo(text: str) -> list[AllocTag]:
    """
    The same rows from /proc/allocinfo, ``allocinfo_show()``.

    Without its first line it is a part of the file (:func:`tags_part`).

    :raises ValueError: the text is not /proc/allocinfo's, or its last line is cut.
    """
    first, *lines = whole_lines(text, ALLOCINFO)
    if tags_part(text) and not LINE.fullmatch(first):
        raise ValueError(f"not {ALLOCINFO}, or of a version that is not known: {first[:60]!r}")
    found: list[Tag] = []
    for line in [first, *lines] if tags_part(text) else lines:
        if line.startswith("#"):
            continue
        if not (match := LINE.fullmatch(line)):
            raise ValueError(f"{ALLOCINFO} is damaged: {line[:80]!r}")
        size, calls, file, number, module, function, inaccurate = match.groups()
        if max(map(len, (file, module or "", function))) > LONGEST_NAME:
            raise ValueError(f"{ALLOCINFO} is damaged: {line[:80]!r}... is longer than a line is")
        source = module or "", file, int(number), function
        found.append((source, _printed(size), _printed(calls), not inaccurate))
    return alloc_tag_rows(found)


def tags_part(text: str) -> str:
    """In words, that a text is a part of /proc/allocinfo, as of sort; empty if it is not."""
    return "" if HEADER.match(text) else f"{ALLOCINFO} is not whole: its first line is not there"


def _printed(text: str) -> int:
    """
    A counter as it was printed, signed or not. CPUs are added up while they count: what is below
    zero for a moment is shown as zero, as of a running kernel's memory.
    """
    number = int(text)
    if number >= 1 << 64:
        raise ValueError(f"{ALLOCINFO} is damaged: {text} is not a count")
    return number if 0 <= number <= MAX_COUNT else 0


def tags_once(memory: Memory) -> tuple[dict[int, Tag], Gaps, list[str]]:
    """
    All tags, as of :func:`read_tags`, once for all sections.

    :raises Absent: there are none; the words say why.
    :raises LookupError, FaultError, ValueError: as :func:`read_tags`.
    """
    if reason := alloc_tags_off(memory.prog):
        raise Absent(reason)
    return memory.once("alloc_tags", lambda: read_tags(memory.prog))


def from_memory(memory: Memory) -> Found:
    tags, gaps, notes = tags_once(memory)
    on = profiling_on(memory.prog)
    if not on and not any(size or calls for _, size, calls, _ in tags.values()):
        raise Absent(OFF)
    found = Found(memory.live, unreadable_bytes=gaps.bytes, notes=list(notes))
    if not on:
        found.notes.append(STALE)
    registered = int(memory.prog["alloc_tag_cttype"].count)
    if len(tags) != registered:
        found.differ(f"{len(tags):,} tags were found, the kernel has {registered:,}")
    return found.add(AllocTag, alloc_tag_rows(tags.values(), live=memory.live))


def from_files(files: Files) -> Found:
    text = files.read("proc/allocinfo")
    rows = read_allocinfo(text)
    on = True
    with contextlib.suppress(OSError):  # a copy may have one file only
        on = files.open("proc/sys/vm/mem_profiling").strip() != "0"
    if not on and not any(row.calls for row in rows):
        raise Absent(OFF)
    found = Found(notes=[words for words in (tags_part(text), "" if on else STALE) if words])
    return found.add(AllocTag, rows)


ALLOC_TAGS_SECTION = Section(
    name="alloc_tags",
    title="Memory by line of source",
    tables=tables_of(
        AllocTag,
    ),
    intro="""
Memory allocation profiling counts for every line of the kernel's source what it has allocated and
not freed ([kernel documentation:
allocation profiling](https://docs.kernel.org/mm/allocation-profiling.html)): /proc/allocinfo.

The rows do not add up to memory. Slab objects are counted by the line that asked for them, and the
pages of their slabs once more by `alloc_slab_page` in `mm/slub.c`; percpu memory by the size for
one CPU (7.3: for all). Table `ledger_tags` has pages of the ledger's classes by line, each once.
""",
    command=Command("memory by the line of source that allocated it", top=TOP),
    since="0.2.0",
    from_memory=from_memory,
    from_files=from_files,
    reads=(prices.ALLOCINFO, prices.SETTINGS),
    optional=True,
)


if __name__ == "__main__":
    from mmscope.drgn.sections.script import print_section

    print_section("alloc_tags")
