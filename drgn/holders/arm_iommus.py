# SPDX-License-Identifier: LGPL-2.1-or-later
"""
Memory of Arm's IOMMUs of version 3 (drivers/iommu/arm/arm-smmu-v3), by what the hardware reads of
each (``iommu_device_list``).

The stream table leads, by device, to a context descriptor and the page tables of its domain (Arm
SMMU architecture, version 3, chapter 5); beside it are queues of commands, events and page
requests. All but the page tables is memory for DMA, in no counter of the kernel.

Costs a read of the stream table, and of each table that is not of the last level.

Cannot know: tables of domains that no device has, such as those of groups that a process was
given; of PASIDs other than 0; tables of pages other than 4 KiB, which are noted; IOMMUs of version
2 and other ones of arm64.
"""

from itertools import islice

import numpy as np
from drgn import Architecture, Object, Program, container_of
from drgn.helpers.linux.list import list_for_each_entry

from mmscope.drgn.holders.holdings import Holder, Holdings
from mmscope.drgn.holders.second_tables import add_page_tables, virtual_of
from mmscope.drgn.reading.kernel_arrays import U64s
from mmscope.drgn.reading.kernel_names import name_in
from mmscope.drgn.reading.scattered_reads import read_scattered

MOST_UNITS, MOST_STREAMS = 1 << 10, 1 << 20
MOST_SHIFT, MOST_WORDS = 19, 8  # of a queue (SMMU_IDR1), and of an entry
SECOND = 256  # entries of a table of the second level (STRTAB_SPLIT)
MOST_CONTEXTS = 20  # bits of a PASID
TWO_LEVELS = 1  # ARM_SMMU_FEAT_2_LVL_STRTAB
QUEUES = ("cmdq", "evtq", "priq")
# Of a stream table entry and of a context descriptor: 64 bytes.
WORDS = np.dtype([("words", "<u8", (8,))])
VALID, FIRST_STAGE, SECOND_STAGE = np.uint64(1), np.uint64(1 << 1), np.uint64(1 << 2)
TRANSLATES = np.uint64(1 << 3)
CONTEXT_VALID = np.uint64(1 << 31)  # CTXDESC_CD_0_V
ADDRESS = np.uint64((1 << 52) - (1 << 4))
SPAN = 0x1F  # STRTAB_L1_DESC_SPAN
TABLE_OF = np.uint64(3)  # an entry that leads to a table (ARM_LPAE_PTE_TYPE_TABLE)
BITS, PAGE_BITS = 9, 12  # of a level, and of an address in a page


def add_arm_iommus(prog: Program, found: Holdings, kind: int) -> None:
    """Pages by IOMMU; of page tables, which several may have, together."""
    if prog.platform is None or prog.platform.arch != Architecture.AARCH64:
        return
    try:
        # Version 2 has another struct of this name.
        type_ = prog.type("struct arm_smmu_master").member("smmu").type.type
        head = Object(prog, "struct list_head", address=prog.symbol("iommu_device_list").address)
    except LookupError:
        return
    parts = []
    units = list_for_each_entry("struct iommu_device", head.address_of_(), "list")
    for unit in islice(units, MOST_UNITS):
        name = name_in(unit.dev.kobj.name.string_())
        if name.startswith("smmu3."):
            parts.append(_of_unit(container_of(unit, type_, "iommu"), name, found, kind))
    add_page_tables(prog, parts, found, kind, _next_levels)


def _next_levels(entries: U64s, level: int) -> U64s:
    """The levels of the tables that entries lead to; 0: to none."""
    leads = (entries & TABLE_OF) == TABLE_OF
    return np.where(leads, np.uint64(level - 1), np.uint64(0))


def _of_unit(smmu: Object, name: str, found: Holdings, kind: int) -> tuple[U64s, U64s]:
    """The first tables of the domains of an IOMMU's devices, and their levels; adds the others."""
    prog = smmu.prog_
    page = prog["PAGE_SIZE"].value_()
    blocks, streams = _queues(smmu, name, found), _streams(smmu, name, found)
    blocks += [(begin, count * WORDS.itemsize) for begin, count in streams]
    if smmu.features & TWO_LEVELS:
        first = smmu.strtab_cfg.l2
        blocks.append((first.l1tab.value_(), _bounded(first.num_l1_ents, name, found) * 8))
    rows = [np.empty((0, 8), np.uint64)]
    for begin, count in streams:
        places = np.uint64(begin) + np.arange(0, count * 64, 64).astype(np.uint64)
        rows.append(_read(prog, places, found))
    entries = np.concatenate(rows)
    entries = entries[(entries[:, 0] & (VALID | TRANSLATES)) == (VALID | TRANSLATES)]
    first_stage = entries[(entries[:, 0] & FIRST_STAGE) != 0, 0]
    contexts = virtual_of(prog, first_stage)
    blocks += [
        (at, WORDS.itemsize << min(word >> 59, MOST_CONTEXTS))
        for at, word in zip(contexts.tolist(), first_stage.tolist(), strict=True)
    ]
    addresses = np.array([at for at, _ in blocks], np.uint64)
    sizes = np.array([size for _, size in blocks], np.int64)
    found.memory(Holder("IOMMU", name), kind, addresses, -(-sizes // page))
    descriptors = _read(prog, contexts + (first_stage & np.uint64(0xFC0)), found)
    of_first = _first_stage(prog, descriptors, found)
    of_second = _second_stage(prog, entries[(entries[:, 0] & SECOND_STAGE) != 0], found)
    return np.append(of_first[0], of_second[0]), np.append(of_first[1], of_second[1])


def _queues(smmu: Object, name: str, found: Holdings) -> list[tuple[int, int]]:
    """Addresses and bytes of the queues of an IOMMU."""
    blocks = []
    for what in QUEUES:
        queue = getattr(smmu, what).q
        shift, words = queue.llq.max_n_shift.value_(), queue.ent_dwords.value_()
        if shift <= MOST_SHIFT and words <= MOST_WORDS:
            blocks.append((queue.base.value_(), (words * 8) << shift))
        else:
            found.missing.append(f"IOMMUs of Arm: {what} of {name}, of 2^{shift} entries")
    return blocks


def _streams(smmu: Object, name: str, found: Holdings) -> list[tuple[int, int]]:
    """Addresses of the tables of streams, and how many entries each has."""
    prog, config = smmu.prog_, smmu.strtab_cfg
    if not smmu.features & TWO_LEVELS:
        count = _bounded(config.linear.num_ents, name, found)
        return [(config.linear.table.value_(), count)]
    raw = prog.read(config.l2.l1tab.value_(), _bounded(config.l2.num_l1_ents, name, found) * 8)
    words = [word for word in np.frombuffer(raw, "<u8").tolist() if word & SPAN]
    if len(words) > MOST_STREAMS // SECOND:
        found.missing.append(f"IOMMUs of Arm: streams of {name} beyond {MOST_STREAMS:,}")
        words = words[: MOST_STREAMS // SECOND]
    begins = virtual_of(prog, np.array(words, np.uint64)).tolist()
    counts = [min(1 << (word & SPAN) - 1, SECOND) for word in words]
    return list(zip(begins, counts, strict=True))


def _bounded(number: Object, name: str, found: Holdings) -> int:
    """A number of entries of a table of streams, which may be damaged."""
    count: int = number.value_()
    if count > MOST_STREAMS:
        found.missing.append(f"IOMMUs of Arm: streams of {name} beyond {MOST_STREAMS:,}")
    return min(count, MOST_STREAMS)


def _first_stage(prog: Program, contexts: U64s, found: Holdings) -> tuple[U64s, U64s]:
    """The first tables of context descriptors, and their levels, by the size of addresses."""
    contexts = contexts[(contexts[:, 0] & CONTEXT_VALID) != 0]
    contexts = _of_small_pages(contexts, contexts[:, 0] >> np.uint64(6), found)
    bits = 64 - (contexts[:, 0] & np.uint64(0x3F)).astype(np.int64) - PAGE_BITS
    return virtual_of(prog, contexts[:, 1] & ADDRESS), (-(-bits // BITS)).astype(np.uint64)


def _second_stage(prog: Program, entries: U64s, found: Holdings) -> tuple[U64s, U64s]:
    """The first tables of streams, of which there may be several side by side, and their levels."""
    entries = _of_small_pages(entries, entries[:, 2] >> np.uint64(46), found)
    levels = (entries[:, 2] >> np.uint64(38) & np.uint64(3)) + np.uint64(2)
    bits = 64 - (entries[:, 2] >> np.uint64(32) & np.uint64(0x3F)).astype(np.int64) - PAGE_BITS
    beside = 1 << np.clip(bits - BITS * levels.astype(np.int64), 0, 4)
    tables = np.repeat(virtual_of(prog, entries[:, 3] & ADDRESS), beside)
    number = np.arange(len(tables)) - np.repeat(np.cumsum(beside) - beside, beside)
    return tables + (number << PAGE_BITS).astype(np.uint64), np.repeat(levels, beside)


def _of_small_pages(rows: U64s, granules: U64s, found: Holdings) -> U64s:
    """Rows whose tables are of pages of 4 KiB; the others are noted."""
    small = (granules & np.uint64(3)) == 0
    if not small.all():
        found.missing.append("IOMMUs of Arm: page tables for pages other than 4 KiB")
    result: U64s = rows[small]
    return result


def _read(prog: Program, places: U64s, found: Holdings) -> U64s:
    """Entries of eight words, of which those that can be read."""
    rows, read = read_scattered(prog, places, WORDS, found.gaps)
    result: U64s = rows["words"][read]
    return result
